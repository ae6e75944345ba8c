"""Test the comparison of any two rows that have records."""

import itertools
from types import SimpleNamespace

import numpy as np
import pytest

from modular_fairseq.runs.evidence.claims import Claim
from modular_fairseq.runs.evidence.pairs import pair
from modular_fairseq.runs.evidence.verdicts import find
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import MARKED, over_seeds

SEEDS = (1, 2, 3)
BLEU = {("a", 1): 30.0, ("a", 2): 31.0, ("a", 3): 33.0, ("b", 1): 30.5, ("b", 2): 30.0, ("b", 3): 31.0}
CLAIM = Claim("b-above-a", "", "secondary", "", "", "multi30k", "bleu", "b", "above", SEEDS, "a")


@pytest.fixture
def rows():
    """Return records of two rows with three seeds, keyed by TABLE/ROW and the seed. Row b alone has chrF."""
    return {
        (f"multi30k/{row}", seed): {
            "diverged": False,
            "training": {},
            "made": {"device": "cpu"},
            "curves": {
                "valid": {"nll_loss": [[10, 5.0], [20, 4.0 + 0.1 * seed * (row == "a")]]},
                "train": {},
            },
            "rows": {f"multi30k/{row}": [{"bleu": bleu} | ({"chrf": 50.0} if row == "b" else {})]},
        }
        for (row, seed), bleu in BLEU.items()
    }


def compared(rows, row="a", baseline="b", claims=()):
    """Return the table of two rows of table multi30k."""
    runs = {f"{name}/seed-{seed}": (name, seed) for name, seed in rows}
    jobs = [
        SimpleNamespace(run=SimpleNamespace(name=run), seed=seed, measurements=[name])
        for run, (name, seed) in runs.items()
    ]
    plan = SimpleNamespace(jobs=jobs, register=SimpleNamespace(claims=claims))
    return pair(plan, {run: rows[key] for run, key in runs.items()}, "multi30k", row, baseline)


def test_there_is_a_line_for_each_quantity_that_both_rows_have(rows):
    interval = over_seeds([-0.5, 1.0, 2.0])
    bleu = f"{interval.difference:+.2f} [{interval.low:+.2f}, {interval.high:+.2f}]"
    loss = "valid. negative log-likelihood (best epoch), bits"
    table = compared(rows)
    assert table.heads == ["", "a", "b", "difference [95 %]", "seeds", "claim"]
    assert [line.cells for line in table.lines] == [
        ["BLEU", "31.33 ± 1.53", "30.50 ± 0.50", bleu, "1, 2, 3", ""],
        [loss, "4.200 ± 0.100", "4.000 ± 0.000", "+0.200 [-0.048, +0.448]", "1, 2, 3", ""],
    ]
    assert MARKED not in table.notes
    assert find(CLAIM, rows).interval[:3] == pytest.approx(
        [-interval.difference, -interval.high, -interval.low]
    )


def test_an_interval_that_may_be_too_narrow_is_marked(rows):
    random = np.random.default_rng(1)
    for (row, seed), record in rows.items():
        record["rows"][row][0] |= {"bleu": 30.0 + 0.01 * seed * (row == "multi30k/a")}
        record["rows"][row][0]["by_unit"] = {"bleu": 30 + random.normal(0, 9, 100)}
    table = compared(rows)
    difference, loss = (line.cells[3] for line in table.lines)
    assert difference.startswith("+0.02 [") and difference.endswith("]†") and "†" not in loss
    assert MARKED in table.notes


def test_a_claim_is_named_that_compares_the_same_in_either_order(rows):
    others = [
        CLAIM._replace(table="mae-4"),
        CLAIM._replace(quantity="chrf"),
        CLAIM._replace(row="c"),
        CLAIM._replace(row_minus="c"),
        CLAIM._replace(seeds=(1, 2)),
    ]
    more = CLAIM._replace(seeds=(1, 2, 3, 4))
    assert [line.cells[-1] for line in compared(rows, claims=[more]).lines] == ["b-above-a", ""]
    for row, baseline in itertools.permutations("ab"):
        assert [line.cells[-1] for line in compared(rows, row, baseline, others).lines] == ["", ""]
        named = compared(
            rows, row, baseline, [*others, CLAIM, CLAIM._replace(name="again", row="a", baseline="b")]
        )
        assert [line.cells[-1] for line in named.lines] == ["b-above-a, again", ""]


def test_pairs_of_two_devices_and_of_a_training_that_diverged_are_left_out(rows):
    rows["multi30k/a", 3]["made"]["device"] = "cuda"
    assert {line.cells[-2] for line in compared(rows).lines} == {"1, 2"}
    rows["multi30k/b", 2] |= {"diverged": True, "rows": {}}
    table = compared(rows)
    assert [line.cells[1:5] for line in table.lines] == [
        ["30.00", "30.50", "-0.50", "1"],
        ["4.100", "4.000", "+0.100", "1"],
    ]
    assert table.notes[-1] == "Seed 2 is left out, because a training diverged."
    del rows["multi30k/b", 1]
    with pytest.raises(
        UsageError, match="--compare multi30k a b: no seed has a whole training of both on one kind"
    ):
        compared(rows)


def test_a_row_is_not_compared_with_itself(rows):
    with pytest.raises(UsageError, match="multi30k a a: a row does not differ from itself; give two rows"):
        compared(rows, "a", "a")


def test_a_row_without_records_is_refused(rows):
    for row, baseline in (("a", "d"), ("d", "a")):
        with pytest.raises(
            UsageError, match=f"{row} {baseline}: no record is of multi30k/d; give two rows of these: "
        ):
            compared(rows, row, baseline)
