"""The base of evaluations whose scores follow from sums over the parts of the data, such as documents."""

from abc import abstractmethod
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from modular_fairseq.runs.evaluation import Evaluation, Measurement, Pair
from modular_fairseq_cli.scoring.intervals import Interval, jackknife, over_pairs
from modular_fairseq_cli.scoring.significance import bootstrap_p

Floats = NDArray[np.float64]
SAME = ("words", "inputs")  # keys of digests of what was predicted, which must be equal to compare models


class OverParts(Evaluation):
    """The base of evaluations that have a paired bootstrap and an interval over parts of the data.

    The key "words" of a result tells which words of the data were masked, and "inputs" which inputs were
    predicted. Results for masked words have the former, and those for classes and values the latter.
    """

    @abstractmethod
    def statistics(self, measurement: Measurement) -> Floats:
        """Return the numbers of each part of the data [parts, n], whose sums decide the score."""

    @abstractmethod
    def score(self, sums: Floats) -> Floats:
        """Return the values [...] of the first column from sums [..., n]."""

    @property
    def scores(self) -> dict[str, Callable[[Floats], Floats]]:
        """For each column that follows from the sums, the function from sums [..., n] to its values [...]."""
        return {self.key: self.score}

    def compare(
        self, ours: Measurement, baseline: Measurement, samples: int
    ) -> tuple[float, float | None] | None:
        """Return the difference, and the p of the paired bootstrap over parts of the data.

        The result is None if the two were measured on different data, or if one has no score. p is None if
        the data have only one part, or if a resample of them has no score.
        """
        results = [each.finished_result() for each in (baseline, ours)]
        if any(results[0].get(key) != results[1].get(key) for key in ("data", *SAME)):
            return None
        statistics = [self.statistics(each) for each in (baseline, ours)]
        before, now = (float(self.score(each.sum(axis=0))) for each in statistics)
        if not np.isfinite([before, now]).all():
            return None
        return now - before, bootstrap_p(statistics[0], statistics[1], self.score, samples)

    def interval(self, by_seed: Sequence[Sequence[Pair]]) -> Interval | None:
        """Return the 95 % interval of the difference, over seeds and parts of the data."""
        return over_pairs(
            [[(self._scored(pair.baseline), self._scored(pair.ours)) for pair in pairs] for pairs in by_seed]
        )

    def _scored(self, measurement: Measurement) -> tuple[float, Floats]:
        """Return the score, and the jackknife's pseudo-value of each part."""
        return jackknife(self.statistics(measurement), lambda sums: float(self.score(sums)))
