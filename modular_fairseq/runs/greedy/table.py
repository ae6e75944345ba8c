"""The table of an ablation: a block per iteration, headed by the model that it starts from, as in the paper's
table 1.
"""

import math
from collections.abc import Callable
from statistics import stdev
from typing import Any, NamedTuple

from modular_fairseq.runs.greedy.protocol import Model, iterations

COLUMNS = {"valid": "validation (selects)", "test": "test", "train": "training"}
Result = dict[str, Any]  # perplexities by column, and whether training `diverged`


class Row(NamedTuple):
    """A model that heads the block of an iteration, or what that iteration `added` to it; its results by
    seed, None where missing.
    """

    iteration: int
    model: str
    added: str
    results: list[Result | None]

    @property
    def cells(self) -> list[str]:
        label = f"+ {self.added}" if self.added else self.model
        if any(result and result["diverged"] for result in self.results):
            label += " (diverged)"
        return [label, *(format_cell(summarize(self.results, column)) for column in COLUMNS)]


def summarize(results: list[Result | None], column: str) -> tuple[float, float | None] | None:
    """Mean and standard deviation (of a sample; None for one seed and for what is not finite) over seeds;
    None if a result is missing.
    """
    if None in results:
        return None
    values = [result[column] for result in results]
    return sum(values) / len(values), stdev(values) if len(values) > 1 and all(
        map(math.isfinite, values)
    ) else None


def format_cell(found: tuple[float, float | None] | None) -> str:
    """What `summarize` gives."""
    if found is None:
        return "missing"
    mean, deviation = found
    return f"{mean:.2f}" if deviation is None else f"{mean:.2f} ± {deviation:.2f}"


def validation_perplexity(results: Callable[[Model], list[Result | None]]) -> Callable[[Model], float | None]:
    """What selects: a model's mean over seeds, None if a result is missing."""
    return lambda model: (summarize(results(model), "valid") or [None])[0]


def rows(names: list[str], results: Callable[[Model], list[Result | None]]) -> list[Row]:
    """The table's lines as far as they are known; the last iteration, which has nothing to choose, is one
    line: full transformer.

    Args:
        names: of the mechanisms.
        results: of a model, by seed.
    """
    lines = []
    for number, (base, candidates) in enumerate(iterations(names, validation_perplexity(results)), 1):
        if len(candidates) > 1 or not base:
            lines.append(Row(number, " + ".join(base) or "baseline", "", results(base)))
        if len(candidates) > 1:
            lines += [Row(number, " + ".join(model), model[-1], results(model)) for model in candidates]
        else:
            lines.append(Row(number, "full transformer", "", results(candidates[0])))
    return lines


def format_text(lines: list[Row], title: str) -> str:
    """The title, aligned columns, a blank line between blocks."""
    table = [["", *COLUMNS.values()]]
    for row in lines:
        label, *cells = row.cells
        table.append([f"  {label}" if row.added else label, *cells])
    widths = [max(map(len, column)) for column in zip(*table, strict=True)]
    head, *rest = (
        "  ".join([cells[0].ljust(widths[0]), *map(str.rjust, cells[1:], widths[1:])]) for cells in table
    )
    text = [title, "", head]
    for row, line in zip(lines, rest, strict=True):
        if not row.added:
            text.append("")
        text.append(line)
    return "\n".join(text) + "\n"


def format_markdown(lines: list[Row], title: str) -> str:
    """The same for GitHub and its like; what heads a block is bold."""
    table = [["model", *COLUMNS.values()], ["---", *["---:"] * len(COLUMNS)]]
    table += [[row.cells[0] if row.added else f"**{row.cells[0]}**", *row.cells[1:]] for row in lines]
    return "\n".join([title, "", *(f"| {' | '.join(cells)} |" for cells in table)]) + "\n"


def format_tsv(lines: list[Row]) -> str:
    """The same for programs: numbers in full, nothing where they are missing, and in every line the whole
    model.
    """
    table = [
        [
            "iteration",
            "model",
            "added",
            *(name for column in COLUMNS for name in (column, f"{column}_std")),
            "diverged",
        ]
    ]
    for row in lines:
        numbers = [number for column in COLUMNS for number in summarize(row.results, column) or (None, None)]
        diverged = sum(result["diverged"] for result in row.results if result)
        table.append(
            [
                row.iteration,
                row.model,
                row.added,
                *("" if number is None else number for number in numbers),
                diverged,
            ]
        )
    return "".join("\t".join(map(str, cells)) + "\n" for cells in table)
