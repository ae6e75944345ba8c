"""The results of a table's rows, which become cells for people and numbers for programs."""

from typing import Any, NamedTuple

from modular_fairseq.runs.config import Config
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.papers.table import COLUMNS, Row, Table
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq.runs.statistics import difference
from modular_fairseq_cli.scoring.spread import shown, spread


class Results(NamedTuple):
    """The results that a row has so far.

    Args:
        row: the row.
        config: the file of the row, scaled.
        measurements: one for each seed and set of overrides, finished or not.
    """

    row: Row
    config: Config
    measurements: list[Measurement]

    @property
    def found(self) -> list[Measurement]:
        """The measurements that have finished."""
        return [each for each in self.measurements if each.result is not None]

    @property
    def is_complete(self) -> bool:
        """Whether all measurements are finished."""
        return len(self.found) == len(self.measurements)

    def numbers(self, column: str) -> list[float]:
        """Return the values of a column for every measurement that has finished and has a value in it."""
        if column == "percent":  # known without any measurement
            return [0 if self.row.pretrained else self.row.percent]
        results = [each.finished_result() for each in self.found]
        return [result[column] for result in results if result.get(column) is not None]

    @property
    def missing(self) -> str:
        """A short remark about missing measurements: "", "missing", or such as "1 of 3"."""
        if self.is_complete:
            return ""
        return f"{len(self.found)} of {len(self.measurements)}" if self.found else "missing"


def sheet(table: Table, results: dict[str, Results], samples: int, notes: list[str]) -> Sheet:
    """Return the table of the results that exist.

    Args:
        table: the table.
        results: the results of the rows, keyed by name. A row without any is only quoted from the paper.
        samples: number of resamples, for a bootstrap.
        notes: sentences below the table.
    """
    columns = [COLUMNS[name] for name in table.columns]
    quoted = [
        name for name in table.columns if COLUMNS[name].paper and any(name in row.paper for row in table.rows)
    ]
    heads = (
        [each.heading for each in columns]
        + ["difference [95 %] (p)"]
        + [COLUMNS[name].paper for name in quoted]
    )
    spreads = [f"{name}{suffix}" for name in [*table.columns, "difference"] for suffix in ("", "_std")]
    tests = ["difference_low", "difference_high", "interval_p", "p", "welch_p"]
    numbers: list[list[Any]] = [
        ["row", "label", "translations", *spreads, *tests, *(f"paper_{name}" for name in quoted)]
    ]
    main, *_ = [*table.evaluations, None]
    first = next((number for number, name in enumerate(table.columns) if name != "percent"), 0)
    lines = []
    for row in table.rows:
        ours, gap = results.get(row.name), None
        values = [ours.numbers(name) if ours else [] for name in table.columns]
        cells = [shown(each, column.pattern) for each, column in zip(values, columns, strict=True)]
        if ours and ours.missing:
            cells[first] = f"{cells[first]} ({ours.missing})" if ours.found else ours.missing
        if ours and main and row.baseline not in ("", row.name):
            gap = difference(main, ours.measurements, results[row.baseline].measurements, samples)
        pattern = main.columns[main.key].pattern.replace(":", ":+") if main else ""
        theirs = [row.paper.get(name, "") for name in quoted]
        lines.append(Line([row.label, *cells, gap.shown(pattern) if gap else "", *map(str, theirs)]))
        pairs = [spread(each) or (None, None) for each in [*values, gap.values if gap else []]]
        limits = gap.interval[1:4] if gap and gap.interval else (None, None, None)
        tested = (*limits, *((gap.p, gap.welch_p) if gap else (None, None)))
        count = len(ours.found) if ours else 0
        numbers.append([row.name, row.label, count, *(n for pair in pairs for n in pair), *tested, *theirs])
    return Sheet(table.title, ["", *heads], lines, numbers, notes)
