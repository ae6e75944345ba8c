"""Perplexity of any part of the data, by fairseq-validate: for every task whose criterion logs it."""

import shlex
from typing import Any

from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, register
from modular_fairseq.runs.run import PLUGIN, Run, Say
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import parse

SIZES = ("--max-tokens", "--batch-size", "--max-sentences")
OPTIONS = ("--task", *SIZES, "--num-workers", "--cpu", "--skip-invalid-size-inputs-valid-test")


@register
class Perplexity(Evaluation):
    columns = {"perplexity": Column("perplexity", "paper: perplexity")}

    def commands(self, of: Measurement) -> list[str]:
        return [shlex.join([*validate_command(of.run, of.subset), *of.model_overrides])]

    def measure(self, of: Measurement, say: Say) -> dict[str, Any]:
        found = perplexities(of.run, of.subset, say, f"{of.name}.validate.log", of.model_overrides)
        return {"perplexity": found[of.subset]}


def validate_command(run: Run, subsets: str) -> list[str]:
    """Return the command that evaluates the run's checkpoint on subsets, with the run's batch size."""
    given = {"--task": ["translation"], **by_option(list(run.words))}
    given |= {name: given[f"{name}-valid"] for name in SIZES if f"{name}-valid" in given}
    own = ["--user-dir", PLUGIN, "--path", run.checkpoint, "--valid-subset", subsets, "--log-format", "json"]
    own += [word for name in OPTIONS if name in given for word in (name, *given[name])]
    return ["fairseq-validate", run.corpus.binarized, *own]


def perplexities(
    run: Run, subsets: str, say: Say, log: str = "validate.log", more: list[str] | None = None
) -> dict[str, float]:
    """Return the perplexity of each subset, of two decimals as fairseq logs them, without dropout.

    Args:
        subsets: names with commas between them.
        log: the file in the run's folder for what fairseq-validate says.
        more: words of its command.

    Raises:
        UsageError: the command failed or showed no perplexity.
    """
    lines = run.execute([*validate_command(run, subsets), *(more or [])], log, say)
    found = {split: numbers["ppl"] for split, numbers in map(parse, lines) if "ppl" in numbers}
    if not set(subsets.split(",")) <= found.keys():
        raise UsageError(f"{run.name}: fairseq-validate shows no perplexity; see {run.path(log)}")
    return found
