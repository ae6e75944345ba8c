"""Rows of a table with what was measured, as cells for people and numbers for programs."""

from typing import Any, NamedTuple

from modular_fairseq.runs.config import Config
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.papers.table import COLUMNS, Row, Table
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq.runs.statistics import difference
from modular_fairseq_cli.scoring.spread import shown, spread


class Results(NamedTuple):
    """A row, the file that it trains, and its measurements by seed and override."""

    row: Row
    config: Config
    measurements: list[Measurement]

    @property
    def found(self) -> list[Measurement]:
        """The measurements that are finished."""
        return [each for each in self.measurements if each.result is not None]

    @property
    def is_complete(self) -> bool:
        return len(self.found) == len(self.measurements)

    def numbers(self, column: str) -> list[float]:
        """Return the values of a column for every measurement that is finished and has it."""
        if column == "percent":  # is known without any
            return [0 if self.row.pretrained else self.row.percent]
        return [each.result[column] for each in self.found if column in each.result]

    @property
    def missing(self) -> str:
        """What is missing, in a word or two."""
        if self.is_complete:
            return ""
        return f"{len(self.found)} of {len(self.measurements)}" if self.found else "missing"


def sheet(table: Table, results: dict[str, Results], samples: int, notes: list[str]) -> Sheet:
    """Return the table of what there is.

    Args:
        results: by row; a row without is only quoted.
        samples: of a bootstrap.
        notes: sentences below the table.
    """
    columns = [COLUMNS[name] for name in table.columns]
    quoted = [
        name for name in table.columns if COLUMNS[name].paper and any(name in row.paper for row in table.rows)
    ]
    heads = [each.heading for each in columns] + ["difference (p)"] + [COLUMNS[name].paper for name in quoted]
    spreads = [f"{name}{suffix}" for name in [*table.columns, "difference"] for suffix in ("", "_std")]
    tests = ["p", "welch_p"]
    numbers: list[list[Any]] = [
        ["row", "label", "translations", *spreads, *tests, *(f"paper_{name}" for name in quoted)]
    ]
    main, *_ = [*table.evaluations, None]
    first = next((number for number, name in enumerate(table.columns) if name != "percent"), 0)
    lines = []
    for row in table.rows:
        ours, apart = results.get(row.name), None
        values = [ours.numbers(name) if ours else [] for name in table.columns]
        cells = [shown(each, column.pattern) for each, column in zip(values, columns, strict=True)]
        if ours and ours.missing:
            cells[first] = f"{cells[first]} ({ours.missing})" if ours.found else ours.missing
        if ours and main and row.baseline not in ("", row.name):
            apart = difference(main, ours.measurements, results[row.baseline].measurements, samples)
        pattern = main.columns[main.key].pattern.replace(":", ":+") if main else ""
        theirs = [row.paper.get(name, "") for name in quoted]
        lines.append(Line([row.label, *cells, apart.shown(pattern) if apart else "", *map(str, theirs)]))
        pairs = [spread(each) or (None, None) for each in [*values, apart.values if apart else []]]
        tested = (apart.p, apart.welch_p) if apart else (None, None)
        count = len(ours.found) if ours else 0
        numbers.append([row.name, row.label, count, *(n for pair in pairs for n in pair), *tested, *theirs])
    return Sheet(table.title, ["", *heads], lines, numbers, notes)
