"""Perplexity on a part of the data: fairseq-validate computes it if the criterion of the task logs it."""

import shlex
from typing import Any

from modular_fairseq.loading import SKIP_INVALID
from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, register
from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import parse

SIZES = ("--max-tokens", "--batch-size", "--max-sentences")  # options that limit the size of a batch
# The options of fairseq-train that evaluations need, too.
OPTIONS = (*SIZES, "--num-workers", "--cpu", SKIP_INVALID)


@register
class Perplexity(Evaluation):
    """The evaluation that measures perplexity by fairseq-validate."""

    columns = {"perplexity": Column("perplexity", "paper: perplexity")}
    lower_is_better = True

    def fits(self, run: Run) -> bool:
        return by_option(list(run.words)).get("--task") not in (["sentence_prediction"], ["sentence_ranking"])

    def commands(self, measurement: Measurement) -> list[str]:
        return [
            shlex.join([*validate_command(measurement.run, measurement.subset), *measurement.model_overrides])
        ]

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        run, subset, log = measurement.run, measurement.subset, f"{measurement.name}.validate.log"
        found = perplexities(run, subset, say, log, measurement.model_overrides)
        return {"perplexity": found[subset]}


def validate_command(run: Run, subsets: str) -> list[str]:
    """Return the words of the command that evaluates a run's checkpoint, with the batch size of the run.

    Args:
        subsets: names of parts of the data, separated by commas.
    """
    task = by_option(list(run.words)).get("--task", ["translation"])
    own = ["--user-dir", run.plugin, "--path", run.checkpoint, "--valid-subset", subsets]
    own += ["--log-format", "json", "--task", *task]
    return ["fairseq-validate", run.corpus.binarized, *own, *options_of_batches(run)]


def options_of_batches(run: Run) -> list[str]:
    """Return the options of a run's training that evaluations need, too, such as the sizes of batches."""
    given = by_option(list(run.words))
    given |= {name: given[f"{name}-valid"] for name in SIZES if f"{name}-valid" in given}
    return [word for name in OPTIONS if name in given for word in (name, *given[name])]


def perplexities(
    run: Run, subsets: str, say: Say, log: str = "validate.log", more: list[str] | None = None
) -> dict[str, float]:
    """Compute the perplexity of a run's checkpoint on parts of the data, without dropout.

    Args:
        run: a run that has been trained.
        subsets: names of parts of the data, separated by commas.
        say: is called with a sentence about the command.
        log: name of the file in the run's folder for the output of fairseq-validate.
        more: further options of the command.

    Returns:
        The perplexities, keyed by part, with the two decimals that fairseq logs.

    Raises:
        UsageError: the command failed or showed no perplexity.
    """
    lines = run.execute([*validate_command(run, subsets), *(more or [])], log, say)
    found = {split: numbers["ppl"] for split, numbers in map(parse, lines) if "ppl" in numbers}
    if not set(subsets.split(",")) <= found.keys():
        raise UsageError(f"{run.name}: fairseq-validate showed no perplexity; see {run.path(log)}")
    return found
