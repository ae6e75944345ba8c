"""The registry of analyses, and the functions that run them by name."""

from collections.abc import Iterable
from pathlib import Path

from torch import nn

from modular_fairseq.analysis.clusters import Clusters
from modular_fairseq.analysis.competition import CompetitionOfMechanisms
from modular_fairseq.analysis.gates import Experts, Gates
from modular_fairseq.analysis.one_pass import Analysis, Report, one_pass
from modular_fairseq.analysis.patterns import Patterns
from modular_fairseq.analysis.pictures import CompetitionInPictures
from modular_fairseq.analysis.redundancy import Redundancy
from modular_fairseq.loading import MAX_TOKENS, Loaded, batches, load
from modular_fairseq_cli.errors import UsageError

# The analyses, keyed by their names on the command line. A plugin (--user-dir) may add its own.
ANALYSES: dict[str, type[Analysis]] = {
    "gates": Gates,
    "experts": Experts,
    "clusters": Clusters,
    "competition": CompetitionOfMechanisms,
    "pictures": CompetitionInPictures,
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
    """Analyse a checkpoint on binarized data, and return the reports, keyed by the name of the analysis.

    This is the Python form of `modular-fairseq analyze`.

    Args:
        path: the checkpoint.
        data: the folder that fairseq-preprocess wrote.
        subset: the part of the data, such as valid or test.
        names: names of analyses in `ANALYSES`, or "all" for all that the model supports.
        max_tokens: maximum number of tokens in a batch.

    Raises:
        UsageError: a name is unknown; a file is missing; the data does not fit the model; or the model or the
            data has nothing that an analysis could examine.
    """
    names = chosen([names] if isinstance(names, str) else names)
    loaded = load(path, data, subset)
    analyses, _ = build(names, loaded)
    return look(names, loaded.model, batches(loaded.model, loaded.task, subset, max_tokens), analyses)[0]


def chosen(names: Iterable[str], others: Iterable[str] = ()) -> list[str]:
    """Check names of analyses, and return them without repetitions.

    Args:
        others: names that are allowed in addition to those in `ANALYSES`.

    Raises:
        UsageError: a name is unknown, or "all" is given together with other names.
    """
    unique, known = list(dict.fromkeys(names)), [*ANALYSES, *others]
    if ALL in unique and unique != [ALL]:
        raise UsageError(
            f"{ALL} cannot be combined with other analyses; leave out {ALL}, or leave out "
            f"{', '.join(name for name in unique if name != ALL)}"
        )
    for name in unique:
        if name not in known and unique != [ALL]:
            raise UsageError(
                f"there is no analysis {name!r}; give {ALL}, or some of {', '.join(known)} with commas "
                "between them, or import the plugin that has it with --user-dir"
            )
    return unique


def build(names: list[str], loaded: Loaded) -> tuple[dict[str, Analysis], dict[str, str]]:
    """Construct analyses for a model and its data.

    Args:
        names: the result of `chosen`. Names that are not in `ANALYSES` are ignored.
        loaded: the model and its task.

    Returns:
        the analyses by name; and with "all", for each analysis that the model or the data do not support, a
        sentence that says why.

    Raises:
        UsageError: the model or the data do not support an analysis that was requested by name.
    """
    analyses: dict[str, Analysis] = {}
    left_out: dict[str, str] = {}
    of_kind = [name for name, kind in ANALYSES.items() if kind.is_for(loaded.task)]
    for name in of_kind if names == [ALL] else [name for name in names if name in ANALYSES]:
        try:
            analysis = ANALYSES[name](loaded.model)
            analysis.of_task(loaded.task)
            analyses[name] = analysis
        except UsageError as error:
            if names != [ALL]:
                raise
            left_out[name] = str(error)
    return analyses, left_out


def look(
    names: list[str], model: nn.Module, batches: Iterable[dict], analyses: dict[str, Analysis]
) -> tuple[dict[str, Report], dict[str, str]]:
    """Run the model once over all batches, and return the reports of the analyses.

    Args:
        names: the result of `chosen`.
        analyses: the analyses by name, from `build`.

    Returns:
        the reports by name; and with "all", for each analysis that has no report, a sentence that says why.

    Raises:
        UsageError: there is no batch, or an analysis that was requested by name found nothing in the data.
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
