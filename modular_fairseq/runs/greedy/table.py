"""The table of the greedy protocol, which has the form of table 1 of the paper.

Each iteration is a block of lines, headed by the model that it starts from.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from modular_fairseq.runs.greedy.protocol import Model, iterations
from modular_fairseq.runs.greedy.trial import Result
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq_cli.scoring.spread import Spread, spread

# The headings of the columns, keyed by the data on which the perplexity is computed.
COLUMNS = {"valid": "validation (selects)", "test": "test", "train": "training"}


class ModelRow(NamedTuple):
    """A line of the table, which shows one model.

    Args:
        iteration: number of the iteration.
        model: the switches that are on.
        added: the switch that this iteration adds; "" for the model that heads the block.
        results: one result for each seed, None if it is missing.
    """

    iteration: int
    model: str
    added: str
    results: list[Result | None]

    @property
    def diverged(self) -> int:
        """The number of seeds whose training diverged."""
        return sum(result["diverged"] for result in self.results if result)

    def line(self) -> Line:
        """Return the line for people."""
        label = f"+ {self.added}" if self.added else self.model
        found = [over_seeds(self.results, column) for column in COLUMNS]
        cells = ["missing" if each is None else each.shown("{:.2f}") for each in found]
        return Line([label + (" (diverged)" if self.diverged else ""), *cells], heads=not self.added)

    def numbers(self) -> list[str | float | None]:
        """Return the line for programs: mean and deviation of each column, None if a result is missing."""
        found = [over_seeds(self.results, column) or (None, None) for column in COLUMNS]
        return [self.iteration, self.model, self.added, *(n for pair in found for n in pair), self.diverged]


def over_seeds(results: list[Result | None], column: str) -> Spread | None:
    """Return the mean and deviation of a column over seeds, or None if a result is missing."""
    found = [result[column] for result in results if result is not None]
    return spread(found) if len(found) == len(results) else None


def validation_perplexity(results: Callable[[Model], list[Result | None]]) -> Callable[[Model], float | None]:
    """Return a function that computes the perplexity by which models are selected.

    It is the mean over seeds on the validation set, or None if a result is missing.

    Args:
        results: returns the results of a model, one for each seed.
    """

    def mean(model: Model) -> float | None:
        found = over_seeds(results(model), "valid")
        return found.mean if found else None

    return mean


def rows(names: list[str], results: Callable[[Model], list[Result | None]]) -> list[ModelRow]:
    """Return the rows of the table, as far as they are known.

    The last iteration, which has only one candidate, is a single row: full transformer.

    Args:
        names: names of the switches.
        results: returns the results of a model, one for each seed.
    """
    found = []
    for number, (base, candidates) in enumerate(iterations(names, validation_perplexity(results)), 1):
        if len(candidates) > 1 or not base:
            found.append(ModelRow(number, " + ".join(base) or "baseline", "", results(base)))
        if len(candidates) > 1:
            found += [ModelRow(number, " + ".join(model), model[-1], results(model)) for model in candidates]
        else:
            found.append(ModelRow(number, "full transformer", "", results(candidates[0])))
    return found


def sheet(title: str, names: list[str], results: Callable[[Model], list[Result | None]]) -> Sheet:
    """Return the table of the results that exist; `names` and `results` are as for `rows`."""
    found = rows(names, results)
    spreads = [name for column in COLUMNS for name in (column, f"{column}_std")]
    header = ["iteration", "model", "added", *spreads, "diverged"]
    numbers: list[Sequence[Any]] = [header, *(row.numbers() for row in found)]
    return Sheet(title, ["", *COLUMNS.values()], [row.line() for row in found], numbers)
