"""Which analyses there are, and the way from their names to their reports."""

from collections.abc import Iterable
from pathlib import Path

from torch import nn

from modular_fairseq.analysis.clusters import Clusters
from modular_fairseq.analysis.competition import CompetitionOfMechanisms
from modular_fairseq.analysis.gates import Experts, Gates
from modular_fairseq.analysis.model_and_data import MAX_TOKENS, batches, load
from modular_fairseq.analysis.one_pass import Analysis, Report, one_pass
from modular_fairseq.analysis.patterns import Patterns
from modular_fairseq.analysis.redundancy import Redundancy
from modular_fairseq_cli.errors import UsageError

# By the name on the command line; a --user-dir may add its own.
ANALYSES: dict[str, type[Analysis]] = {
    "gates": Gates,
    "experts": Experts,
    "clusters": Clusters,
    "competition": CompetitionOfMechanisms,
    "patterns": Patterns,
    "redundancy": Redundancy,
}
ALL = "all"


def analyze(
    path: str | Path,
    data: str | Path,
    subset: str = "valid",
    names: Iterable[str] = (ALL,),
    max_tokens: int = MAX_TOKENS,
) -> dict[str, Report]:
    """The reports of a checkpoint on one part of binarized data, by name; for Python.

    Args:
        names: of `ANALYSES`, or "all".

    Raises:
        UsageError: an unknown name, files that are missing or do not fit, a model or data with nothing to
            see.
    """
    names = chosen([names] if isinstance(names, str) else names)
    loaded = load(path, data, subset)
    analyses, _ = build(names, loaded.model)
    return look(names, loaded.model, batches(loaded.model, loaded.task, subset, max_tokens), analyses)[0]


def chosen(names: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """The names without repetitions; `others` are known beside `ANALYSES`.

    Raises:
        UsageError: one is unknown, or `all` among others.
    """
    names, known = list(dict.fromkeys(names)), [*ANALYSES, *others]
    if ALL in names and names != [ALL]:
        raise UsageError(
            f"{ALL} goes alone; leave it out, or the others: "
            f"{', '.join(name for name in names if name != ALL)}"
        )
    for name in names:
        if name not in known and names != [ALL]:
            raise UsageError(
                f"there is no analysis {name!r}; give {ALL}, or with commas between them some of "
                f"{', '.join(known)}"
            )
    return names


def build(names: list[str], model: nn.Module) -> tuple[dict[str, Analysis], dict[str, str]]:
    """The analyses of the pass, and, with `all`, why the others are left out.

    Raises:
        UsageError: the model has nothing to see for one that was asked for by name.
    """
    analyses: dict[str, Analysis] = {}
    left_out: dict[str, str] = {}
    for name in ANALYSES if names == [ALL] else [name for name in names if name in ANALYSES]:
        try:
            analyses[name] = ANALYSES[name](model)
        except UsageError as error:
            if names != [ALL]:
                raise
            left_out[name] = str(error)
    return analyses, left_out


def look(
    names: list[str], model: nn.Module, batches: Iterable[dict], analyses: dict[str, Analysis]
) -> tuple[dict[str, Report], dict[str, str]]:
    """The pass: reports, and, with `all`, why some analyses have none.

    Raises:
        UsageError: there is no batch, or one that was asked for by name saw nothing.
    """
    reports: dict[str, Report] = {}
    left_out: dict[str, str] = {}
    for name, found in zip(analyses, one_pass(model, batches, analyses.values()), strict=True):
        if isinstance(found, Report):
            reports[name] = found
        elif names == [ALL]:
            left_out[name] = str(found)
        else:
            raise found
    return reports, left_out
