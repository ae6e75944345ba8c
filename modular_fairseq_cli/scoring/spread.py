"""The mean of some numbers and how far they are spread, computed and shown in one way everywhere."""

import math
from collections.abc import Sequence
from statistics import mean, stdev
from typing import NamedTuple


class Spread(NamedTuple):
    """The mean of some numbers, and their standard deviation (of a sample): None for a single number, or if
    one of them is not finite.
    """

    mean: float
    deviation: float | None

    def shown(self, pattern: str) -> str:
        """Return "mean ± deviation" in the given format, or the mean alone.

        Whole numbers that are all the same, such as parameters, are shown once.
        """
        text = pattern.format(self.mean)
        if self.deviation is None or (self.deviation == 0 and ".0f" in pattern):
            return text
        return f"{text} ± {pattern.replace('+', '').format(self.deviation)}"


def spread(values: Sequence[float]) -> Spread | None:
    """Return the mean and the deviation of numbers, one a seed; None if there are none."""
    if not values:
        return None
    several = len(values) > 1 and all(map(math.isfinite, values))
    return Spread(mean(values), stdev(values) if several else None)


def shown(values: Sequence[float], pattern: str) -> str:
    found = spread(values)
    return found.shown(pattern) if found else ""
