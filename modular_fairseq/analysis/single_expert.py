"""Measure by BLEU how far experts have specialised: translate with a single expert in every attention layer.

This is table 5 of the MAE paper. A part of the data is translated in three ways: by the mixture of experts;
by the most specialised expert of each layer, which has the largest gate for each sentence or position; and by
one random expert in each layer, drawn five times. As in the paper, BLEU is sacrebleu's score of the tokens
that fairseq-generate prints. It can be compared between the rows, but not with other scores.

`modular-fairseq table configs/mae-5/table.yaml` trains the models of the paper's table.
"""

import glob
import json
import os
import shlex
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sacrebleu import BLEU
from tabulate import tabulate

from modular_fairseq.analysis.one_pass import Report
from modular_fairseq.models.mae_options import MaeOptions
from modular_fairseq.training.checkpoints import load_checkpoint, options_of
from modular_fairseq.user_dir import PLUGIN
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.processes import call, python_module, say
from modular_fairseq_cli.scoring import read_output
from modular_fairseq_cli.scoring.spread import Spread, spread

SINGLE_EXPERT = "single-expert"
DRAWS = 5  # how often random experts are drawn
OWN_OPTIONS = ("--path", "--gen-subset", "--model-overrides", "--user-dir", "--results-path", "--nbest")


@dataclass
class Inference:
    """The scores of one way to translate.

    Attributes:
        inference: the way: "mixture", "most specialised" or "random".
        scores: BLEU of each draw of experts.
        BLEU: mean of `scores`.
        deviation: sample standard deviation of `scores`; None for a single score.
        difference: `BLEU` minus the BLEU of the mixture.
    """

    inference: str
    scores: list[float]
    BLEU: float
    deviation: float | None
    difference: float


@dataclass
class SingleExpertReport(Report):
    """The scores of all ways to translate.

    Attributes:
        options: the options of fairseq-generate for all translations.
        rows: one entry for each way.
    """

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
    """Translate a part of the data with single experts, and score the translations.

    Args:
        path: the checkpoint.
        data: the folder that fairseq-preprocess wrote.
        subset: the part of the data, such as valid or test.
        options: options of fairseq-generate, such as --beam 4 --remove-bpe.
        folder: a folder that keeps the translations. Those that it already contains are not made again. By
            default, the translations are deleted at the end.
        user_dir: the plugin for fairseq-generate, by default this one.

    Raises:
        UsageError: an option is one that this function sets itself; the model is not a translation model with
            experts; fairseq-generate fails; or its output cannot be scored.
    """
    for option in by_option(options):
        if option in OWN_OPTIONS:
            raise UsageError(
                f"{option} has no place after --, because analyze {SINGLE_EXPERT} sets it; leave it out"
            )
    model = options_of(load_checkpoint(path), "model")
    if "mae" not in str(model.get("attention_type")).split("+"):
        raise UsageError(f"{path} has no experts; analyse a model trained with --attention-type mae")
    if "encoder_layers" not in model:
        raise UsageError(
            f"{path} is not a translation model, which {SINGLE_EXPERT} needs; choose other analyses"
        )
    own = ["--user-dir", user_dir or PLUGIN, "--path", path, "--gen-subset", subset]
    learned = str(model["mae_gating"]) == "learned"
    # A seed in the checkpoint would be refused without random experts.
    seed = MaeOptions.mae_inference_seed
    ways: dict[str, list[dict[str, Any]]] = {
        "mixture": [{"mae_inference": "mixture", "mae_inference_seed": seed}]
    }
    if learned:
        ways["most specialised"] = [{"mae_inference": "specialised", "mae_inference_seed": seed}]
    ways["random"] = [{"mae_inference": "random", "mae_inference_seed": seed} for seed in range(1, DRAWS + 1)]
    rows: list[Inference] = []
    with ExitStack() as stack:
        kept = folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        for name, overrides in ways.items():
            scores = [_bleu(_translate([data, *own, *options], each, subset, kept)) for each in overrides]
            found = spread(scores)
            assert found is not None  # there are scores
            average, deviation = found
            difference = average - (rows[0].BLEU if rows else average)
            rows.append(Inference(name, scores, average, deviation, difference))
    return SingleExpertReport(shlex.join(options), rows)


def _translate(words: list[str], overrides: dict[str, Any], subset: str, folder: Path) -> Path:
    """Return a file with the output of fairseq-generate. It is made unless it exists for the same command.

    Args:
        words: the arguments of fairseq-generate.
        overrides: `mae_inference` and `mae_inference_seed`, instead of those in the checkpoint. The file is
            named after the former, and after the seed of random experts.
        subset: the part of the data, for the name of the file.
        folder: the folder of the file.
    """
    way = [overrides["mae_inference"]]
    if way == ["random"]:
        way.append(str(overrides["mae_inference_seed"]))
    output = folder / ("-".join([SINGLE_EXPERT, subset, *way]) + ".out")
    command = ["fairseq-generate", *words, "--model-overrides", json.dumps(overrides)]
    # The checkpoint and the data may have been replaced by others of the same name.
    read = [words[words.index("--path") + 1]]
    for data in words[0].split(os.pathsep):
        for files in (f"{glob.escape(subset)}.*", "dict.*.txt"):
            read += sorted(glob.glob(os.path.join(glob.escape(data), files)))
    times = " ".join(str(os.stat(path).st_mtime_ns) for path in read)
    stamp = f"# {shlex.join(command)}\n# of {times}\n"
    if output.exists() and output.read_text(encoding="utf-8").startswith(stamp):
        return output
    say(f"translating {subset} with {' '.join(way)}")
    temporary = output.with_suffix(".tmp")
    write_file(temporary, stamp)
    status, lines = call(
        [*python_module("fairseq_cli.generate"), *command[1:]], str(temporary), lambda line: None
    )
    if status:
        temporary.unlink()
        last = next((line for line in reversed(lines) if line.strip()), "it printed nothing")
        raise UsageError(f"`{shlex.join(command)}` failed: {last[:300]}")
    os.replace(temporary, output)
    return output


def _bleu(path: Path) -> float:
    """Return BLEU of the tokens in a file with the output of fairseq-generate."""
    output = read_output(path, detokenize="none")
    if output.tokens is None or output.reference_tokens is None:
        raise UsageError(
            f"{SINGLE_EXPERT} computes BLEU on tokens; replace --tokenizer and --bpe in the options after -- "
            "by --remove-bpe"
        )
    return BLEU(tokenize="none", force=True).corpus_score(output.tokens, [output.reference_tokens]).score
