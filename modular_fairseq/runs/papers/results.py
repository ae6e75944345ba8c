"""The results of a table's rows, which become cells for people and numbers for programs."""

import math
from statistics import fmean, mean, median
from typing import Any, NamedTuple

from modular_fairseq.runs.config import Config
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.papers.table import COLUMNS, Row, Table
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq.runs.statistics import difference
from modular_fairseq_cli.scoring.intervals import notes_on
from modular_fairseq_cli.scoring.spread import shown, spread


class Trial(NamedTuple):
    """The measurements of a row with some values of the options that the table searches.

    Args:
        values: the values, keyed by "group.key"; none if the table searches nothing.
        measurements: one for each seed and set of overrides, finished or not.
    """

    values: dict[str, Any]
    measurements: list[Measurement]

    @property
    def found(self) -> list[Measurement]:
        """The measurements that have finished."""
        return [each for each in self.measurements if each.result is not None]


class Results(NamedTuple):
    """The results that a row has so far.

    Args:
        row: the row.
        config: the file of the row, scaled.
        trials: the measurements with each of the values that the table searches.
    """

    row: Row
    config: Config
    trials: list[Trial]

    @property
    def measurements(self) -> list[Measurement]:
        """The measurements of all trials, finished or not."""
        return [measurement for trial in self.trials for measurement in trial.measurements]

    @property
    def seeds(self) -> set[int]:
        """The seeds of all runs, finished or not."""
        return {each.run.seed for each in self.measurements}

    @property
    def chosen(self) -> Trial:
        """The trial that the table shows: of those with all measurements, the one with the best median.

        A measurement without a finite value counts as the worst. Until there is a trial with all
        measurements, it is the one with the most. Of equal ones it is the first.
        """

        def rank(trial: Trial) -> tuple[int, float]:
            found = trial.found
            evaluations = trial.measurements[0].evaluations
            if len(found) < len(trial.measurements) or not evaluations:
                return -len(self.measurements) + len(found), 0.0
            (main, *_) = evaluations
            sign = -1 if main.lower_is_better else 1
            values = [each.finished_result()[main.key] for each in found]
            usable = [value is not None and math.isfinite(value) for value in values]
            return 0, median(
                sign * value if use else -math.inf for value, use in zip(values, usable, strict=True)
            )

        return self.trials[0] if len(self.trials) == 1 else max(self.trials, key=rank)

    @property
    def found(self) -> list[Measurement]:
        """The measurements of the chosen trial that have finished."""
        return self.chosen.found

    @property
    def is_complete(self) -> bool:
        """Whether every measurement of every trial is finished."""
        return all(len(trial.found) == len(trial.measurements) for trial in self.trials)

    def numbers(self, column: str) -> list[float]:
        """Return the values of a column in the measurements that have finished and have a value in it.

        Of several seeds there is one value each, which is the mean if a seed was measured with several sets
        of overrides. Of one seed there is the value of each measurement.
        """
        if column == "percent":  # known without any measurement
            return [0 if self.row.pretrained else self.row.percent]
        by_seed: dict[int, list[float]] = {}
        for each in self.found:
            if (value := each.finished_result().get(column)) is not None:
                by_seed.setdefault(each.run.seed, []).append(value)
        if len(self.seeds) == 1:
            return [value for values in by_seed.values() for value in values]
        return [values[0] if len(set(values)) == 1 else fmean(values) for values in by_seed.values()]

    @property
    def missing(self) -> str:
        """A short remark about missing measurements: "", "missing", or such as "1 of 3"."""
        if self.is_complete:
            return ""
        finished = sum(len(trial.found) for trial in self.trials)
        return f"{finished} of {len(self.measurements)}" if finished else "missing"


def sheet(table: Table, results: dict[str, Results], samples: int, notes: list[str]) -> Sheet:
    """Return the table of the results that exist.

    Args:
        table: the table.
        results: the results of the rows, keyed by name. A row without any is only quoted from the paper.
        samples: number of resamples, for a bootstrap.
        notes: sentences below the table.
    """
    columns = [COLUMNS[name] for name in table.columns]
    average = median if table.average == "median" else mean
    quoted = [
        name for name in table.columns if COLUMNS[name].paper and any(name in row.paper for row in table.rows)
    ]
    heads = (
        [each.heading for each in columns]
        + ["difference [95 %] (p)"]
        + [COLUMNS[name].paper for name in quoted]
    )
    spreads = [f"{name}{suffix}" for name in [*table.columns, "difference"] for suffix in ("", "_std")]
    tests = ["difference_low", "difference_high", "half_by_sentences", "interval_p", "p", "welch_p"]
    numbers: list[list[Any]] = [
        ["row", "label", "measurements", *spreads, *tests, *(f"paper_{name}" for name in quoted)]
    ]
    main, *_ = [*table.evaluations, None]
    first = next((number for number, name in enumerate(table.columns) if name != "percent"), 0)
    lines, gaps = [], []
    for row in table.rows:
        ours, gap = results.get(row.name), None
        values = [ours.numbers(name) if ours else [] for name in table.columns]
        cells = [shown(each, column.pattern, average) for each, column in zip(values, columns, strict=True)]
        if ours and ours.missing:
            cells[first] = f"{cells[first]} ({ours.missing})" if ours.found else ours.missing
        if ours and main and row.baseline not in ("", row.name):
            pair = (ours.chosen.measurements, results[row.baseline].chosen.measurements)
            gap = difference(main, *pair, samples)
        pattern = main.columns[main.key].signed if main else ""
        theirs = [row.paper.get(name, "") for name in quoted]
        lines.append(Line([row.label, *cells, gap.shown(pattern) if gap else "", *map(str, theirs)]))
        pairs = [spread(each, average) or (None, None) for each in values]
        pairs.append(spread(gap.values if gap else []) or (None, None))
        gaps.append(gap)
        limits: tuple[float | None, ...] = (None,) * 4
        if gap and (found := gap.interval):
            limits = (found.low, found.high, found.half_by_sentences, found.p_value)
        tested = (*limits, *((gap.p, gap.welch_p) if gap else (None, None)))
        count = len(ours.found) if ours else 0
        numbers.append([row.name, row.label, count, *(n for pair in pairs for n in pair), *tested, *theirs])
    marked = notes_on(gap.interval for gap in gaps if gap)
    return Sheet(table.title, ["", *heads], lines, numbers, [*notes, *marked])
