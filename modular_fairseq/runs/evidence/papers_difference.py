"""Compare the difference that a paper prints with the interval that was found.

Most differences are compared as they are. A difference of perplexities says little without their level: from
19 to 18.7 is 1.6 % less, and from 110 to 109.7 is .3 %. So perplexities are compared in percent of the
baseline. The percentages are shown beside the registered difference, and no verdict depends on them.
"""

import math

from modular_fairseq.runs.evidence.claims import Claim
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.verdicts import Finding
from modular_fairseq_cli.scoring.intervals import over_seeds


def percent(finding: Finding) -> tuple[float, float, float] | None:
    """Return by how many percent the row is above the baseline, and the ends of the interval.

    It is the interval of the logarithm of the ratio over seeds. The result is None if the quantity is no
    perplexity, if a perplexity is not compared with another one, or if there is no interval.
    """
    claim = finding.claim
    if not QUANTITIES[claim.quantity].in_percent or not claim.baseline or claim.row_minus:
        return None
    if finding.interval is None:
        return None
    found = over_seeds([math.log(ours / theirs) for ours, theirs in finding.values.values()])
    if found is None:
        return None
    low, middle, high = (100 * math.expm1(each) for each in (found.low, found.difference, found.high))
    return middle, low, high


def printed_percent(claim: Claim) -> float | None:
    """Return by how many percent the paper's value of the row is above the one of the baseline.

    The result is None if the quantity is no perplexity, or if the paper does not print both.
    """
    if not QUANTITIES[claim.quantity].in_percent or claim.printed_values is None:
        return None
    row, baseline = claim.printed_values
    return 100 * (row / baseline - 1)


def is_excluded(finding: Finding) -> bool:
    """Return whether the 95 % interval excludes the paper's difference.

    The result is False if the paper prints none, or if there is no interval.
    """
    claim, found = finding.claim, finding.interval
    if found is None or claim.printed is None:
        return False
    if not QUANTITIES[claim.quantity].in_percent:
        return not found.low <= claim.printed <= found.high
    limits, printed = percent(finding), printed_percent(claim)
    return limits is not None and printed is not None and not limits[1] <= printed <= limits[2]
