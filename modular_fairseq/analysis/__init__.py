"""Look inside a trained model, on data: what its gates do, how alike its heads attend.

    modular-fairseq analyze gates DATA --path CHECKPOINT
    modular-fairseq analyze redundancy DATA --path CHECKPOINT --gen-subset test --json redundancy.json

DATA is what fairseq-preprocess wrote. The model reads it once, teacher-forced, in evaluation mode; redundancy takes fairseq's own
Transformers and language models as well.
"""

import argparse
import json
from pathlib import Path

from modular_fairseq.analysis import one_pass
from modular_fairseq.analysis.gates import Gates
from modular_fairseq.analysis.redundancy import Redundancy
from modular_fairseq.errors import UsageError
from modular_fairseq.processes import write_file

ANALYSES: dict[str, type[one_pass.Analysis]] = {"gates": Gates, "redundancy": Redundancy}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=ANALYSES, help="; ".join(f"{name}: {kind.summary}" for name, kind in ANALYSES.items()))
    one_pass.add_arguments(parser)
    parser.add_argument("--json", type=Path, help="write the numbers to this file as well")


def run(args: argparse.Namespace) -> None:
    [report] = one_pass.analyze(args.path, args.data, args.gen_subset, [ANALYSES[args.what]], args.max_tokens)
    print(report.text())
    if args.json:
        try:
            write_file(args.json, json.dumps(report.data(), indent=1))
        except OSError as error:
            raise UsageError(f"--json {args.json} cannot be written ({error.strerror})") from None
