"""Compute and format the mean (or median) and standard deviation of numbers over seeds, for all commands."""

import math
from collections.abc import Callable, Sequence
from statistics import mean, stdev
from typing import NamedTuple

Average = Callable[[Sequence[float]], float]


class Spread(NamedTuple):
    """A mean of numbers, or what stands for it, together with their sample standard deviation.

    The deviation is None for a single number, or if a number is not finite.
    """

    mean: float
    deviation: float | None

    def shown(self, pattern: str) -> str:
        """Return "mean ± deviation", each formatted by `pattern` such as "{:.2f}", or the mean alone.

        The mean stands alone if there is no deviation, or if the pattern is for whole numbers that are all
        equal, such as numbers of parameters.
        """
        text = pattern.format(self.mean)
        if self.deviation is None or (self.deviation == 0 and ".0f" in pattern):
            return text
        return f"{text} ± {pattern.replace('+', '').format(self.deviation)}"


def spread(values: Sequence[float], average: Average = mean) -> Spread | None:
    """Return the mean and the deviation of `values`, one for each seed, or None if there are no values.

    Args:
        values: the values.
        average: what stands for the mean, such as the median.
    """
    if not values:
        return None
    several = len(values) > 1 and all(map(math.isfinite, values))
    return Spread(average(values), stdev(values) if several else None)


def shown(values: Sequence[float], pattern: str, average: Average = mean) -> str:
    """Return `values` as `Spread.shown` formats them, or "" if there are none; see `spread`."""
    found = spread(values, average)
    return found.shown(pattern) if found else ""
