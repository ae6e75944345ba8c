"""Compare every interval in the documents with the intervals that are computed from the records of runs.

The text "lower by .99 BLEU [.04, 1.94]" has the interval [.04, 1.94] of the difference .99. Both must be
equal, up to rounding and the direction, to the result of a registered claim, to a cell in a table that
scripts/mae_deficit.py prints, or to the result of a comparison in `OTHERS`. An interval that may be too
narrow has its mark, † (`scoring.intervals.Interval.mark`), and no other has one.
"""

import re
from functools import partial
from statistics import fmean
from typing import NamedTuple

import pytest
from scipy.stats import ttest_ind

from modular_fairseq.runs.evidence.pairs import unregistered
from modular_fairseq.runs.evidence.papers_difference import percent
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.reading import read_claims
from modular_fairseq.runs.evidence.records import recorded
from modular_fairseq.runs.evidence.verdicts import find
from tests.places import ROOT
from tests.scripts import script

PAGES = [
    "README.md",
    *(f"docs/{name}.md" for name in ("index", "evidence", "results", "results-narrow", "own-data")),
    *(f"docs/{name}.md" for name in ("language-models", "masked-language-models")),
    *(f"docs/mechanisms/{name}.md" for name in ("index", "mae", "mae-gates", "dma", "multistream", "tim")),
    "docs/mechanisms/ensemble.md",
]
NUMBER = r"[-+]?(?:\d+\.\d+|\.\d+|\d+)"
INTERVAL = re.compile(rf"\[({NUMBER}),\s+({NUMBER})\](†?)")
BEFORE = 180  # characters before an interval, among which its difference is


comparison = partial(unregistered, "multi30k")


OTHERS = {  # comparisons that documents have and no claim registers, by the folder of their records
    "results": [
        comparison("mae-7", "base", "bleu", (1, 2, 3, 4, 5, 6)),
        comparison("mae-7", "nobcd", "expert_information", (1, 2, 3, 4, 5)),
        comparison("tim-deep", "base-deep", "valid_nll", (1, 2, 3, 4, 5)),
        comparison("tim-deep", "base-deep", "final_train_nll", (1, 2, 3, 4, 5)),
        comparison("tim-deep", "base-deep", "LR_divergence_encoder", (1, 2, 3, 4, 5)),
        comparison("2x1-skip", "base", "early_perplexity", (1, 2, 3, 4, 5)),
        comparison("2x1-skip", "base", "LR_divergence_encoder", (1, 2, 3, 4, 5)),
    ],
    "results/narrow": [
        comparison("base", "mae-15", "valid_nll", (1, 2, 3)),
        comparison("base", "mae-15", "bleu", (1, 2, 3)),
        comparison("base-dropout-1", "base-dropout-0", "valid_nll", (1, 2, 3)),
        comparison("uni-mae-7-dropout-0", "base-dropout-1", "valid_nll", (1, 2, 3)),
        comparison("uni-mae-7-dropout-0", "base-dropout-1", "bleu", (1, 2, 3)),
        comparison("nobcd-batch", "nobcd", "final_train_nll", (1, 2, 3)),
        comparison("dma", "base", "LR_divergence_encoder", (1, 2, 3)),
        comparison("dma", "base", "HR_divergence_encoder", (1, 2, 3)),
        comparison("dma", "base", "bleu", (1, 2, 3)),
        comparison("dma", "base", "valid_nll", (1, 2, 3)),
        comparison("dma-tiny", "base", "final_train_nll", (1, 2, 3)),
        comparison("dma-qq-letter", "base", "LR_divergence_encoder", (1, 2, 3)),
        comparison("dma-qq-letter", "base", "HR_divergence_encoder", (1, 2, 3)),
        comparison("dma-qq-letter", "base", "bleu", (1, 2, 3)),
        comparison("dma-qq-letter", "dma", "HR_divergence_encoder", (1, 2, 3)),
        *(
            comparison(f"ensemble-{each}", "ensemble-none", "valid_nll", (1, 2, 3))
            for each in ("residual", "heads", "attention", "hidden")
        ),
        *(
            comparison(f"ensemble-residual-{each}", "ensemble-residual", "bleu", (1, 2, 3))
            for each in ("heads", "attention", "hidden")
        ),
        comparison("ensemble-residual-heads", "ensemble-residual", "final_train_nll", (1, 2, 3)),
        comparison("ensemble-residual-heads", "base", "bleu", (1, 2, 3)),
    ],
}


class Shown(NamedTuple):
    """A difference, the ends of its interval, and what follows the interval."""

    difference: float
    low: float
    high: float
    mark: str = ""

    def is_shown(self, low: str, high: str, mark: str, before: list[str]) -> bool:
        """Return whether an interval is this one, or the one of the opposite, after its difference."""
        opposite = Shown(-self.difference, -self.high, -self.low)
        return mark == self.mark and any(
            equal(low, each.low)
            and equal(high, each.high)
            and any(equal(number, each.difference) for number in before)
            for each in (self, opposite)
        )


def equal(number: str, value: float) -> bool:
    """Return whether a number in a text is a value that was rounded to its digits."""
    return abs(float(number) - value) <= 0.5 * 10.0 ** -len(number.partition(".")[2]) + 1e-9


def numbers_in(text):
    return re.findall(rf"(?<![\w.]){NUMBER}", text)


def intervals_in(text):
    """Yield each interval: its ends, its mark, and the numbers that stand before it in its paragraph."""
    for match in INTERVAL.finditer(text):
        before = text[max(0, match.start() - BEFORE) : match.start()].rpartition("\n\n")[2]
        yield *match.groups(), numbers_in(before)


def records_in(folder):
    """Return the records below a folder, keyed by TABLE/ROW and the seed."""
    return {
        (row, int(name.rpartition("-")[2])): record
        for name, record in recorded(ROOT / folder / "evidence").items()
        for row in record["rows"]
    }


def unpaired(records, row, baseline, quantity):
    """Return the difference of two rows of table multi30k if runs of one seed are no pair, by Welch's t."""
    of = QUANTITIES[quantity].of
    both = [
        [of(record, name) for (name, _), record in records.items() if name == f"multi30k/{each}"]
        for each in (row, baseline)
    ]
    return Shown(fmean(both[0]) - fmean(both[1]), *ttest_ind(*both, equal_var=False).confidence_interval())


@pytest.fixture(scope="module")
def measured():
    """Return all intervals that may be shown."""
    found = [
        Shown(float(before[-1]), float(low), float(high), mark)
        for table in script("mae_deficit").tables()
        for low, high, mark, before in intervals_in(table)
    ]
    for folder, others in OTHERS.items():
        records = records_in(folder)
        for claim in [*read_claims(ROOT / folder / "claims.yaml").claims, *others]:
            finding = find(claim, records)
            assert finding.interval or claim not in others
            if interval := finding.interval:
                found.append(Shown(interval.difference, interval.low, interval.high, interval.mark))
                if in_percent := percent(finding):
                    found.append(Shown(*in_percent))
    return [*found, unpaired(records_in("results/narrow"), "uni-mae-7", "base", "valid_nll")]


@pytest.mark.parametrize("page", PAGES)
def test_intervals_are_those_of_the_records(measured, page):
    shown = list(intervals_in((ROOT / page).read_text()))
    wrong = [
        f"... {' ... '.join(before[-3:])} [{low}, {high}]{mark}"
        for low, high, mark, before in shown
        if not any(each.is_shown(low, high, mark, before) for each in measured)
    ]
    assert not wrong
