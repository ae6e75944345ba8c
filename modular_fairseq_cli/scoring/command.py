"""Score translations: BLEU with its signature, chrF and TER by sacrebleu, over seeds, and whether a
difference is significant.

    modular-fairseq score --reference raw/test.en generate.out
    modular-fairseq score --reference raw/test.en seed1.out seed2.out seed3.out \\
        --baseline base1.out base2.out base3.out --json scores.json
    modular-fairseq score --test-set wmt14/full -l en-de generate.out

A file is what fairseq-generate printed (with --remove-bpe), whose H- lines are put in order and detokenised
by sacremoses, or plain detokenised text, one sentence a line. Several files are seeds of one system: their
mean and standard deviation are shown, too. Numbers equal those of `sacrebleu REFERENCE -i FILE -m bleu chrf
ter` on the detokenised text.

Where there are T- lines, BLEU of H- against T- tokens is shown as well, and for German the same after
compound splitting. They depend on how the corpus was tokenised and are comparable to papers that give such
numbers, to nothing else.

--baseline compares with the seeds of another system (repeated: with several systems), one by one, or all with
a single file. Two kinds of p: the paired bootstrap's is of the choice of sentences, for two files, and knows
nothing of training noise; that of Welch's t-test over seeds is of training noise, and knows nothing of the
choice of sentences.
"""

import argparse
import json
import os
import platform
import re
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.scoring.display import find_notes, format_text
from modular_fairseq_cli.scoring.metrics import METRICS, TOKENIZERS, score, summarize
from modular_fairseq_cli.scoring.significance import compare_seeds, paired_bootstrap
from modular_fairseq_cli.scoring.translations import Output, read_lines, read_output, read_test_set


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "files",
        nargs="+",
        metavar="FILE",
        help="output of fairseq-generate or plain text; several are seeds of one system",
    )
    against = parser.add_mutually_exclusive_group(required=True)
    against.add_argument("--reference", metavar="FILE", help="untokenised text, one sentence a line")
    against.add_argument(
        "--test-set", metavar="NAME", help="one that sacrebleu has or fetches, as wmt14/full; needs -l"
    )
    parser.add_argument("-l", "--language-pair", metavar="en-de", help="of --test-set")
    parser.add_argument(
        "--baseline",
        nargs="+",
        action="append",
        default=[],
        metavar="FILE",
        help="seeds of a system to compare with",
    )
    parser.add_argument("--samples", type=int, metavar="N", help="of the paired bootstrap (default: 1000)")
    parser.add_argument(
        "--metrics", nargs="+", choices=METRICS, default=list(METRICS), help="default: all three"
    )
    parser.add_argument(
        "--lowercase", action="store_true", help="ignore case, as -lc --chrf-lowercase of sacrebleu"
    )
    parser.add_argument(
        "--tokenize",
        choices=TOKENIZERS,
        help="for BLEU; default: sacrebleu's for the language, which is mostly 13a",
    )
    parser.add_argument(
        "--target-lang", metavar="LANG", help="default: that of -l, or the suffix of --reference"
    )
    parser.add_argument(
        "--detokenize",
        choices=("moses", "none"),
        help="none: lines as they are; default: moses for tokens of fairseq-generate, none for text",
    )
    parser.add_argument(
        "--compound-split",
        action=argparse.BooleanOptionalAction,
        help="of T- lines; default: where the target is German",
    )
    parser.add_argument("--json", metavar="FILE", help="write everything, replaced once all has gone well")


def run(args: argparse.Namespace) -> None:
    _refuse_misfits(args)
    language = _language(args)
    references = (
        [read_lines(args.reference)] if args.reference else read_test_set(args.test_set, args.language_pair)
    )
    systems = [
        [read_output(path, language, args.detokenize) for path in paths]
        for paths in (args.files, *args.baseline)
    ]
    if args.compound_split and not any(output.reference_tokens for output in sum(systems, [])):
        raise UsageError(
            "--compound-split: needs T- lines, and no file has them as tokens; leave it out or give output "
            "of fairseq-generate"
        )

    options = {
        "names": args.metrics,
        "lowercase": args.lowercase,
        "tokenize": args.tokenize,
        "language": language,
    }
    scored = [
        [score(output, references, compound_split=args.compound_split, **options) for output in outputs]
        for outputs in systems
    ]
    results: dict[str, Any] = {
        "reference": args.reference or f"{args.test_set} {args.language_pair}",
        "sentences": len(references[0]),
        "language": language,
        "samples": args.samples or 1000,
        "files": scored[0],
        "summary": summarize(scored[0]),
        "baselines": [],
    }
    for outputs, scores in zip(systems[1:], scored[1:], strict=True):
        pairs = compare(references, outputs, systems[0], args.samples or 1000, **options)
        summaries = summarize(scores)
        both = [name for name in summaries if name in results["summary"]]
        seeds = {
            name: compare_seeds([each[name] for each in scores], [each[name] for each in scored[0]])
            for name in both
        }
        results["baselines"].append(
            {"files": scores, "summary": summaries, "bootstrap": pairs, "seeds": seeds}
        )
    results["notes"] = find_notes(references, systems, args.lowercase)
    results["versions"] = _versions()
    if args.json:
        _write_json(args.json, results)
    print(format_text(results), end="")


def compare(
    references: Sequence[Sequence[str]],
    baseline: list[Output],
    system: list[Output],
    samples: int,
    **options: Any,
) -> list[dict]:
    """Return the `paired_bootstrap` of each of a system's outputs against the baseline's output of the same
    place, or its only one, with the paths of both.
    """
    partners = baseline * len(system) if len(baseline) == 1 else baseline
    return [
        {"file": output.path, "baseline": partner.path}
        | paired_bootstrap(references, partner.hypotheses, [output.hypotheses], samples, **options)[0]
        for output, partner in zip(system, partners, strict=True)
    ]


def _refuse_misfits(args: argparse.Namespace) -> None:
    if args.test_set and not args.language_pair:
        raise UsageError(f"--test-set {args.test_set}: needs -l, as in -l en-de; add it")
    if args.language_pair and not args.test_set:
        raise UsageError(
            f"-l {args.language_pair}: is for --test-set; for the language of --reference, give --target-lang"
        )
    if args.samples is not None and (args.samples < 1 or not args.baseline):
        raise UsageError(
            f"--samples {args.samples}: is a number of at least 1 for --baseline; mend it or leave it out"
        )
    for paths in (args.files, *args.baseline):
        real = [os.path.realpath(path) for path in paths]
        for path, place in zip(paths, real, strict=True):
            if real.count(place) > 1:
                raise UsageError(f"{path}: is given twice; give each seed once")
    for paths in args.baseline:
        shared = [path for path in paths if os.path.realpath(path) in map(os.path.realpath, args.files)]
        if shared:
            raise UsageError(
                f"--baseline {shared[0]}: is compared with itself; give the translation of another system"
            )
        if len(paths) not in (1, len(args.files)):
            raise UsageError(
                f"--baseline {' '.join(paths)}: {len(paths)} files cannot be paired with {len(args.files)}; "
                f"give 1, or {len(args.files)}"
            )
    if args.json:
        target = os.path.realpath(args.json)
        if os.path.isdir(target) or not os.path.isdir(os.path.dirname(target)):
            raise UsageError(
                f"--json {args.json}: is a folder or in a folder that does not exist; give a file in one "
                "that does"
            )
        inputs = [*args.files, *sum(args.baseline, []), *([args.reference] if args.reference else [])]
        if target in map(os.path.realpath, inputs):
            raise UsageError(
                f"--json {args.json}: is one of the inputs, and would be lost; give another file"
            )


def _language(args: argparse.Namespace) -> str | None:
    """Return the target language by --target-lang, by -l, or by the ending of a reference called test.de or
    test.de.gz; None if none of them says.
    """
    if args.target_lang or args.test_set:
        return args.target_lang or args.language_pair.rpartition("-")[2]
    suffix = re.search(r"\.([a-z]{2})(?:[-_]\w+)?(?:\.gz)?$", args.reference)
    return suffix[1] if suffix else None


def _versions() -> dict[str, str]:
    versions = {"python": platform.python_version()}
    for package in ("modular_fairseq", "sacrebleu", "sacremoses", "numpy", "scipy"):
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def _write_json(path: str, results: dict[str, Any]) -> None:
    try:
        write_file(
            os.path.realpath(path), json.dumps(results, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
        )
    except OSError as error:
        raise UsageError(
            f"--json {path}: cannot be written ({error.strerror}); what was there is as before"
        ) from None
