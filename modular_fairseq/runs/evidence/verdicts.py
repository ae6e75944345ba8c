"""Test registered claims by the records that exist.

A claim compares two rows, seed by seed, or a row with 0. For BLEU the 95 % interval of the difference
accounts for seeds and sentences (`scoring.intervals`). For the quantities of `by_unit.OF_PARTS` it accounts
for seeds and pictures or inputs, if all records have their numbers. For other quantities it accounts for
seeds. The verdict on a primary claim is

    holds       all seeds are there, and the hypothesis that the row is not above baseline + margin (or not
                below baseline - margin) has p < 0.05
    fails       all seeds are there, and the opposite hypothesis, that the row is above it, has p < 0.05
    open        otherwise: the seeds cannot tell

Both p are one-sided, as claims have a direction. Each is corrected by Holm's method for the number of
primary claims (Holm 1979), the p for and the p against by themselves. So the probability of any wrong "holds"
is about 5 %, and of any wrong "fails" too, as far as the model of `scoring.intervals` holds. Secondary claims
have intervals, but no verdicts.

A run that diverged, a value that is not finite, and a pair of runs on different devices do not count. Such a
seed is lost: the claim has neither a verdict nor an interval, as the seeds that are left are no random
choice.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from modular_fairseq.runs.evidence.claims import Claim
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.records import of_one_device
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import Interval, over_seeds, over_seeds_and_sentences

LEVEL = 0.05


class Finding(NamedTuple):
    """What the records say about a claim.

    Args:
        claim: the claim.
        values: for each seed that is complete the quantity of the row and of the baseline. The latter is 0
            if there is no baseline.
        interval: the difference with its interval, or None if fewer than two seeds are complete, if a seed is
            lost, or if seeds do not differ (`scoring.intervals.over_seeds`).
        missing: the seeds that have no values.
        lost: for each of them that will not have any, the reason.
    """

    claim: Claim
    values: dict[int, tuple[float, float]]
    interval: Interval | None
    missing: list[int]
    lost: Mapping[int, str] = MappingProxyType({})

    @property
    def waits(self) -> bool:
        """Whether a seed without a value can still get one. A seed whose training diverged cannot."""
        return not self.lost.keys() >= set(self.missing)

    @property
    def excess(self) -> float | None:
        """How far the difference is beyond its bound, positive in the expected direction."""
        if self.interval is None:
            return None
        sign = 1 if self.claim.expected == "above" else -1
        return sign * (self.interval.difference - self.claim.bound)

    @property
    def p_values(self) -> tuple[float | None, float | None]:
        """The one-sided p for the claim and against it, not corrected; None if a seed is missing."""
        if self.missing or self.interval is None or self.excess is None:
            return None, None
        half = self.interval.p_value / 2
        return (half, 1 - half) if self.excess > 0 else (1 - half, half)


def find(claim: Claim, records: dict[tuple[str, int], dict[str, Any]]) -> Finding:
    """Compare the rows of a claim.

    Args:
        claim: the claim.
        records: the records, keyed by TABLE/ROW and the seed. A run that diverged stands for its rows, too.

    Raises:
        UsageError: two records have scores of other numbers of sentences or parts.
    """
    _check_units(claim, records)
    table, of = claim.table_name, QUANTITIES[claim.quantity].of
    bound = claim.bound  # the test is of the bound, so it is subtracted, and added to the interval again
    values, lost, by_unit = {}, {}, []
    for seed in claim.seeds:
        found = [records.get((f"{table}/{row}", seed)) for row in claim.rows]
        if any(each and each["diverged"] for each in found):
            lost[seed] = "diverged"
            continue
        if not all(found):
            continue
        if not of_one_device(each for each in found if each):
            lost[seed] = "is of two devices"
            continue
        sides = [
            weighted(
                records, seed, {f"{table}/{name}": sign for name, sign in side if name}, of, claim.quantity
            )
            for side in (
                ((claim.row, 1), (claim.row_minus, -1)),
                ((claim.baseline, 1), (claim.baseline_minus, -1)),
            )
        ]
        (ours, our_units), (theirs, their_units) = sides
        if ours is None or theirs is None:
            lost[seed] = "was not measured"
            continue
        if not (math.isfinite(ours) and math.isfinite(theirs)):
            lost[seed] = "has no finite value"
            continue
        values[seed] = (ours, theirs)
        by_unit.append(None if our_units is None or their_units is None else our_units - their_units - bound)
    beyond = [ours - theirs - bound for ours, theirs in values.values()]
    interval = None if lost else interval_of(beyond, by_unit)
    if interval:
        interval = interval._replace(
            difference=interval.difference + bound, low=interval.low + bound, high=interval.high + bound
        )
    return Finding(claim, values, interval, [seed for seed in claim.seeds if seed not in values], lost)


def weighted(
    records: Mapping[tuple[str, int], dict[str, Any]],
    seed: int,
    weights: Mapping[str, float],
    of: Callable[[dict[str, Any], str], float | None],
    units: str = "",
) -> tuple[float | None, Any]:
    """Return a weighted sum over rows with one seed: of a quantity, and of its values by sentence or part.

    Args:
        records: the records, keyed by TABLE/ROW and the seed.
        seed: the seed.
        weights: the weight of each row, which is called TABLE/ROW.
        of: the quantity (`quantities.Quantity.of`).
        units: the name of the quantity whose values by sentence or part are summed.

    Returns:
        The two sums. The first is None if a record lacks the quantity, and the second if one lacks them.
    """
    total: float | None = 0.0
    by_unit: Any = 0.0
    for row, weight in weights.items():
        record = records[row, seed]
        value = of(record, row)
        total = None if value is None or total is None else total + weight * value
        found = [each.get("by_unit", {}).get(units) for each in record["rows"].get(row, [])]
        if by_unit is None or not found or any(each is None for each in found):
            by_unit = None
        else:
            by_unit = by_unit + weight * np.mean(found, axis=0)
    return total, by_unit


def interval_of(sums: Sequence[float], by_unit: Sequence[Any]) -> Interval | None:
    """Return the mean of a quantity over seeds with its interval; see the module's docstring.

    Args:
        sums: the quantity of each seed.
        by_unit: its values by sentence or part [units] for each seed; None where there are none.
    """
    if len(sums) >= 2 and all(each is not None for each in by_unit):
        return over_seeds_and_sentences(sums, np.stack(by_unit))
    return over_seeds(sums)


def _check_units(claim: Claim, records: dict[tuple[str, int], dict[str, Any]]) -> None:
    """Raise UsageError if the records of a claim do not have scores of equally many sentences or parts."""
    rows = [f"{claim.table_name}/{row}" for row in claim.rows]
    numbers = {
        len(each["by_unit"][claim.quantity]): f"{row}/seed-{seed}"
        for (row, seed), record in records.items()
        if row in rows
        for each in record["rows"].get(row, [])
        if claim.quantity in each.get("by_unit", {})
    }
    if len(numbers) > 1:
        told = " and ".join(f"{name} of {number:,} sentences or parts" for number, name in numbers.items())
        raise UsageError(f"claim {claim.name}: the records have scores of {told}; restore them")


def holm(p_values: Sequence[float | None], tests: int) -> list[float | None]:
    """Return the p-values, corrected by Holm's method.

    Args:
        p_values: the p of each test; None: it has not been made yet, and counts as 1.
        tests: the number of tests that were planned, at least the number of p-values.
    """
    ordered = sorted((p, number) for number, p in enumerate(p_values) if p is not None)
    corrected: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p, number) in enumerate(ordered):
        largest = max(largest, min(1.0, p * (tests - rank)))
        corrected[number] = largest
    return corrected


def verdict(finding: Finding, corrected: tuple[float | None, float | None]) -> str:
    """Return "holds", "fails", "open", or such as "3 of 5 seeds" or "seed 2 diverged"; "" for a secondary
    claim that has all of its seeds.

    Args:
        finding: what the records say.
        corrected: the p for the claim and against it, corrected.
    """
    claim = finding.claim
    if finding.lost:
        return ", ".join(f"seed {seed} {reason}" for seed, reason in finding.lost.items())
    if finding.missing:
        return f"{len(finding.values)} of {len(claim.seeds)} seeds"
    if claim.kind != "primary":
        return ""
    for p, word in zip(corrected, ("holds", "fails"), strict=True):
        if p is not None and p < LEVEL:
            return word
    return "open"
