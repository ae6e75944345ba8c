"""BLEU with one expert in every attention layer (MAE, table 5): how far experts have specialised.

A part of the data is translated by the mixture, by the most specialised expert of each layer (that of the
largest gate, for each sentence or position), and by random experts, one for each layer, drawn five times.
BLEU is sacrebleu's of the tokens that fairseq-generate prints, as in the paper: comparable among the rows,
and to nothing else. `modular-fairseq table configs/mae-5/table.yaml` trains the paper's rows.
"""

import json
import os
import shlex
import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu import BLEU
from tabulate import tabulate

from modular_fairseq.analysis.model_and_data import model_options
from modular_fairseq.analysis.one_pass import Report
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.processes import call, say
from modular_fairseq_cli.scoring import read_output
from modular_fairseq_cli.scoring.spread import Spread, spread

PLUGIN = Path(__file__).parent.parent
SINGLE_EXPERT = "single-expert"
DRAWS = 5
OWN_OPTIONS = ("--path", "--gen-subset", "--model-overrides", "--user-dir", "--results-path", "--nbest")


@dataclass
class Inference:
    """One way to translate: `BLEU` of each draw, their mean, sample standard deviation (None for one), and
    difference from the mixture.
    """

    inference: str
    scores: list[float]
    BLEU: float
    deviation: float | None
    difference: float


@dataclass
class SingleExpertReport(Report):
    """A row for each way to translate, and the options of fairseq-generate that all had."""

    options: str
    rows: list[Inference]

    def text(self) -> str:
        lines = [
            [
                row.inference,
                Spread(row.BLEU, row.deviation).shown("{:.2f}"),
                f"{row.difference:+.2f}",
            ]
            for row in self.rows
        ]
        return tabulate(
            lines, ["experts", "tokenised BLEU", "difference"], tablefmt="plain", disable_numparse=True
        )

    def tables(self) -> dict[str, list[dict]]:
        columns = ("inference", "BLEU", "deviation", "difference")
        return {SINGLE_EXPERT: [{column: getattr(row, column) for column in columns} for row in self.rows]}


def compare_experts(
    path: str,
    data: str,
    subset: str,
    options: list[str],
    folder: Path | None = None,
    user_dir: str | None = None,
) -> SingleExpertReport:
    """Translate and score. In `folder` translations are kept, and those that are there are not made again.

    Args:
        options: of fairseq-generate, such as --beam 4 --remove-bpe.
        user_dir: default: this plugin.

    Raises:
        UsageError: the model has no experts, fairseq-generate failed, or what it printed cannot be scored.
    """
    for option in by_option(options):
        if option in OWN_OPTIONS:
            raise UsageError(f"{option} after --: analyze {SINGLE_EXPERT} sets it; leave it out")
    model = model_options(load_checkpoint(path))
    if "mae" not in str(model.get("attention_type")).split("+"):
        raise UsageError(f"{path} has no experts to translate alone; it needs --attention-type mae")
    if "encoder_layers" not in model:
        raise UsageError(
            f"{path} is no translation model, and {SINGLE_EXPERT} translates; choose other analyses"
        )
    own = ["--user-dir", user_dir or str(PLUGIN), "--path", path, "--gen-subset", subset]
    learned = str(model["mae_gating"]) == "learned"
    ways: dict[str, list[dict[str, Any]]] = {"mixture": [{"mae_inference": "mixture"}]}
    if learned:
        ways["most specialised"] = [{"mae_inference": "specialised"}]
    ways["random"] = [{"mae_inference": "random", "mae_inference_seed": seed} for seed in range(1, DRAWS + 1)]
    rows: list[Inference] = []
    with ExitStack() as stack:
        kept = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, overrides in ways.items():
            scores = [_bleu(_translate([data, *own, *options], each, subset, kept)) for each in overrides]
            average, deviation = spread(scores)
            difference = average - (rows[0].BLEU if rows else average)
            rows.append(Inference(name, scores, average, deviation, difference))
    return SingleExpertReport(shlex.join(options), rows)


def _translate(words: list[str], overrides: dict[str, Any], subset: str, folder: Path) -> Path:
    """The output of fairseq-generate with these words, in a file called after what is special about it."""
    output = folder / ("-".join([SINGLE_EXPERT, subset, *map(str, overrides.values())]) + ".out")
    command = ["fairseq-generate", *words, "--model-overrides", json.dumps(overrides)]
    stamp = f"# {shlex.join(command)}\n# of {os.stat(words[words.index('--path') + 1]).st_mtime_ns}\n"
    if output.exists() and output.read_text(encoding="utf-8").startswith(stamp):
        return output
    say(f"translating {subset} with {' '.join(map(str, overrides.values()))}")
    temporary = output.with_suffix(".tmp")
    write_file(temporary, stamp)
    status, lines = call(
        [sys.executable, "-m", "fairseq_cli.generate", *command[1:]], str(temporary), lambda line: None
    )
    if status:
        temporary.unlink()
        last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
        raise UsageError(f"`{shlex.join(command)}` failed: {last[:300]}")
    os.replace(temporary, output)
    return output


def _bleu(path: Path) -> float:
    output = read_output(path, detokenize="none")
    if output.tokens is None or output.reference_tokens is None:
        raise UsageError(
            "BLEU is of tokens: leave --tokenizer and --bpe out of the options after --, and give "
            "--remove-bpe"
        )
    return BLEU(tokenize="none", force=True).corpus_score(output.tokens, [output.reference_tokens]).score
