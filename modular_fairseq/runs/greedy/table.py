"""The table of the greedy protocol, as table 1 of the paper: a block an iteration, headed by the model that
it starts from.
"""

from collections.abc import Callable
from typing import NamedTuple

from modular_fairseq.runs.greedy.protocol import Model, iterations
from modular_fairseq.runs.greedy.trial import Result
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq_cli.scoring.spread import Spread, spread

COLUMNS = {"valid": "validation (selects)", "test": "test", "train": "training"}


class Row(NamedTuple):
    """A model that heads the block of an iteration, or what that iteration `added` to it.

    `results` are by seed, None where missing.
    """

    iteration: int
    model: str
    added: str
    results: list[Result | None]

    @property
    def diverged(self) -> int:
        return sum(result["diverged"] for result in self.results if result)

    def line(self) -> Line:
        label = f"+ {self.added}" if self.added else self.model
        found = [over_seeds(self.results, column) for column in COLUMNS]
        cells = ["missing" if each is None else each.shown("{:.2f}") for each in found]
        return Line([label + (" (diverged)" if self.diverged else ""), *cells], heads=not self.added)

    def numbers(self) -> list[str | float | None]:
        found = [over_seeds(self.results, column) or (None, None) for column in COLUMNS]
        return [self.iteration, self.model, self.added, *(n for pair in found for n in pair), self.diverged]


def over_seeds(results: list[Result | None], column: str) -> Spread | None:
    """Return mean and deviation of a column; None if a result is missing."""
    return None if None in results else spread([result[column] for result in results])


def validation_perplexity(results: Callable[[Model], list[Result | None]]) -> Callable[[Model], float | None]:
    """Return what selects: a model's mean over seeds, None if a result is missing."""
    return lambda model: (over_seeds(results(model), "valid") or [None])[0]


def rows(names: list[str], results: Callable[[Model], list[Result | None]]) -> list[Row]:
    """Return the table's rows as far as they are known.

    The last iteration, which has nothing to choose, is one row: full transformer.

    Args:
        names: of the switches.
        results: of a model, by seed.
    """
    found = []
    for number, (base, candidates) in enumerate(iterations(names, validation_perplexity(results)), 1):
        if len(candidates) > 1 or not base:
            found.append(Row(number, " + ".join(base) or "baseline", "", results(base)))
        if len(candidates) > 1:
            found += [Row(number, " + ".join(model), model[-1], results(model)) for model in candidates]
        else:
            found.append(Row(number, "full transformer", "", results(candidates[0])))
    return found


def sheet(title: str, names: list[str], results: Callable[[Model], list[Result | None]]) -> Sheet:
    """Return the table of what there is; the arguments are those of `rows`."""
    found = rows(names, results)
    spreads = [name for column in COLUMNS for name in (column, f"{column}_std")]
    numbers = [["iteration", "model", "added", *spreads, "diverged"], *(row.numbers() for row in found)]
    return Sheet(title, ["", *COLUMNS.values()], [row.line() for row in found], numbers)
