"""Compute differences between rows over seeds, and test their significance."""

from collections.abc import Sequence
from statistics import fmean
from typing import NamedTuple

from modular_fairseq.runs.evaluation import Evaluation, Measurement, Pair
from modular_fairseq_cli.scoring import compare_seeds
from modular_fairseq_cli.scoring.intervals import Interval
from modular_fairseq_cli.scoring.spread import shown


class Difference(NamedTuple):
    """The difference between a row and its baseline.

    Args:
        values: the difference of each seed, which is the mean if a seed has several; of one seed all of them.
        p: the largest p of the evaluation's own significance test, or None if it has none.
        welch_p: the p of Welch's t-test over seeds, or None if there are too few seeds.
        interval: the 95 % interval of the difference, or None if there are too few seeds.
    """

    values: list[float]
    p: float | None
    welch_p: float | None
    interval: Interval | None

    def shown(self, pattern: str) -> str:
        """Return the mean difference, its interval or deviation, and the p-values in parentheses."""
        of_interval = self.interval.p_value if self.interval else None
        tests = "; ".join(f"{p:.3f}" for p in (of_interval, self.p, self.welch_p) if p is not None)
        text = self.interval.shown(pattern) if self.interval else shown(self.values, pattern)
        return text + (f" ({tests})" if tests else "")


def difference(
    evaluation: Evaluation, ours: Sequence[Measurement], baseline: Sequence[Measurement], samples: int
) -> Difference | None:
    """Compare each measurement of a row with the baseline's of the same seed.

    If the row or the baseline has one model only, it is compared with all models of the other one.

    A row that is measured with several sets of overrides has several measurements of a seed. Each is compared
    with each of the baseline's, and their mean counts as one seed.

    Args:
        evaluation: the evaluation whose first column is compared.
        ours, baseline: the measurements of the row and of its baseline. Unfinished ones are left out.
        samples: number of resamples, for a bootstrap.

    Returns:
        The difference, or None if no two measurements can be compared.

    Raises:
        UsageError: see `Evaluation.compare`.
    """
    finished = [[each for each in row if each.result is not None] for row in (ours, baseline)]
    compared, by_seed = [], dict[int, list[Pair]]()
    paired = all(len({each.run.seed for each in row}) > 1 for row in (ours, baseline))
    single = len({each.run.seed for each in ours}) == 1
    for each in finished[0]:
        for partner in finished[1]:
            if paired and partner.run.seed != each.run.seed:
                continue
            if (found := evaluation.compare(each, partner, samples)) is not None:
                compared.append(found)
                seed = (partner if single else each).run.seed
                by_seed.setdefault(seed, []).append(Pair(each, partner, found[0]))
    if not compared:
        return None
    interval = evaluation.interval(list(by_seed.values()))
    of_samples = [p for _, p in compared if p is not None]
    key = evaluation.key
    theirs, numbers = (_by_seed(row, key) for row in reversed(finished))
    welch = compare_seeds(theirs, numbers)["welch_p"]
    of_seeds = [[pair.difference for pair in pairs] for pairs in by_seed.values()]
    values = of_seeds[0] if len(of_seeds) == 1 else list(map(fmean, of_seeds))
    return Difference(values, max(of_samples, default=None), welch, interval)


def _by_seed(measurements: Sequence[Measurement], key: str) -> list[float]:
    """Return the mean of a column for each seed that has values."""
    values: dict[int, list[float]] = {}
    for each in measurements:
        if (value := each.finished_result()[key]) is not None:
            values.setdefault(each.run.seed, []).append(value)
    return [fmean(found) for found in values.values()]
