"""Test scripts/mae_deficit.py, which asks the records why MAE-7 is below the Transformer."""

import numpy as np
import pytest

from modular_fairseq.runs.evidence.claims import Claim
from modular_fairseq_cli.scoring.intervals import over_seeds, over_seeds_and_sentences
from tests.places import ROOT
from tests.scripts import script

RANDOM = np.random.default_rng(3)
SENTENCES = {(row, seed): RANDOM.normal(30, 5, 20) for row in "abc" for seed in (1, 2, 3, 4)}


@pytest.fixture(scope="module")
def deficit():
    return script("mae_deficit")


@pytest.fixture
def records():
    """Return records of three rows; the third has another device with seed 3, and no record with seed 4."""
    found = {}
    for (row, seed), values in SENTENCES.items():
        curves = {"valid": {"nll_loss": [[10, 5.0], [20, 3.0 + values[0]]]}, "train": {"loss": [[20, 7.0]]}}
        if row == "a":
            curves["train"]["g_loss"] = [[20, 6.5]]
        found[f"multi30k/{row}", seed] = {
            "made": {"device": "cuda" if (row, seed) == ("c", 3) else "cpu"},
            "curves": curves,
            "rows": {f"multi30k/{row}": [{"bleu": float(values.mean()), "by_unit": {"bleu": values}}]},
            "training": {},
        }
    del found["multi30k/c", 4]
    return found


def test_seeds_are_those_of_all_rows_on_one_device(deficit, records):
    assert deficit.seeds_of(records, {"a": 1, "b": -1}) == [1, 2, 3, 4]
    assert deficit.seeds_of(records, {"a": 1, "c": -1}) == [1, 2]


def test_a_contrast_is_a_weighted_sum_with_the_interval_of_the_claims(deficit, records):
    weights = {"a": 0.5, "b": 0.5, "c": -1}
    sums = np.stack([sum(w * SENTENCES[row, seed] for row, w in weights.items()) for seed in (1, 2)])
    expected = over_seeds_and_sentences(list(sums.mean(axis=1)), sums)
    assert deficit.contrast(records, weights, None) == pytest.approx(expected)
    losses = [sum(w * SENTENCES[row, seed][0] for row, w in weights.items()) for seed in (1, 2)]
    last, second = (deficit.loss("valid", "nll_loss", epoch) for epoch in (0, 2))
    assert deficit.contrast(records, weights, last) == pytest.approx(over_seeds(losses))
    assert deficit.contrast(records, weights, second) == deficit.contrast(records, weights, last)
    del records["multi30k/c", 1]
    with pytest.raises(SystemExit, match="a, b, c have too few seeds in common"):
        deficit.contrast(records, weights, last)


def test_the_loss_with_all_heads_is_the_one_of_g_steps_where_there_are_any(deficit, records):
    all_heads, f_steps = deficit.training_loss_with_all_heads(2), deficit.loss("train", "loss", 2)
    a, b = records["multi30k/a", 1], records["multi30k/b", 1]
    assert (all_heads(a, ""), all_heads(b, "")) == (6.5, 7.0)
    assert deficit.less(f_steps, all_heads)(a, "") == 0.5


def interval(sums, unit):
    """Return the interval of one column as a loss, or of all columns as the units of BLEU."""
    return (
        over_seeds_and_sentences(list(sums.mean(axis=1)), sums) if unit is None else over_seeds(sums[:, unit])
    )


def record_of(row, values):
    """Return a record whose BLEU is the mean of the values, and whose losses are the first two of them."""
    return {
        "made": {"device": "cpu"},
        "curves": {"valid": {"nll_loss": [[9, values[0]]]}, "train": {"nll_loss": [[9, values[1]]]}},
        "rows": {f"multi30k/{row}": [{"bleu": float(values.mean()), "by_unit": {"bleu": values}}]},
        "training": {},
    }


def cells_of(table):
    """Return the cells of the lines of a table in Markdown."""
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in table.splitlines()[2:]]


def test_pairs_of_a_variant_are_compared_from_two_seeds_on(deficit):
    letters = {"mae-7": "a", "base": "b", "mae-7-long": "c", "uni-mae-7-long": "a", "nobcd-long": "b"}
    records = {
        (f"multi30k/{row}", seed): record_of(row, SENTENCES[letter, seed])
        for row, letter in letters.items()
        for seed in (1, 2, 3)
        if (row, seed) not in {("uni-mae-7-long", 2), ("nobcd-long", 1), ("nobcd-long", 3)}
    }
    variants = {"": "", "-long": ", 12 epochs"}
    lines = cells_of(deficit.comparisons(records, deficit.ENDS, variants, deficit.Claims([], "")))
    expected = [("MAE-7 less Transformer", "a", "b", (1, 2, 3))]
    expected += [("MAE-7 less UNI-MAE-7, 12 epochs", "c", "a", (1, 3))]
    assert [line[0] for line in lines] == [name for name, *_ in expected]
    for line, (_, one, other, seeds) in zip(lines, expected, strict=True):
        sums = np.stack([SENTENCES[one, seed] - SENTENCES[other, seed] for seed in seeds])
        cells = [deficit.shown(interval(sums, unit), digits) for unit, digits in ((None, 2), (0, 3), (1, 3))]
        assert line[1:] == [*cells, ", ".join(map(str, seeds))]


def test_the_epochs_and_the_dropout_of_variants_are_those_of_their_records(deficit):
    rows = {f"{row}{end}": said for end, said in deficit.VARIANTS.items() for row in deficit.NAMES}
    records = deficit.records_of(deficit.NARROW, rows, [1])
    assert len(records) >= len(deficit.VARIANTS)
    for (name, _), record in records.items():
        settings = record["settings"]
        dropout = settings["model.dropout"]
        shown = f"dropout {dropout:g}".replace("0.", ".") if dropout else "no dropout"
        assert rows[name.split("/")[1]] == f", {settings['optimization.max_epoch']} epochs, {shown}"


def test_the_best_epoch_of_narrow_models_is_the_one_with_the_lowest_validation_loss(deficit):
    end = deficit.NARROW_ENDS["validation loss of the best epoch, bits"]
    assert end.value({"curves": {"valid": {"nll_loss": [[1, 5.0], [2, 3.0], [3, 4.0]]}}}, "") == 3.0


def test_a_number_links_to_the_claim_about_the_same_rows_quantity_and_seeds(deficit):
    claim = Claim(
        name="slower",
        registered="2026-11-30",
        kind="secondary",
        paper="No place",
        says="MAE-7 needs it",
        table="multi30k",
        quantity="bleu",
        row="a",
        expected="above",
        seeds=(1, 2, 3),
        baseline="b",
        row_minus="c",
        baseline_minus="d",
    )
    claims, bleu = deficit.Claims([claim], "../page.md"), deficit.ENDS["BLEU"]
    signs = {"a": 1, "b": -1, "c": -1, "d": 1}
    link = "[+1 [0, 2]](../page.md#slower)"
    assert claims.linked("+1 [0, 2]", signs, bleu, [1, 2]) == link
    opposite = {row: -sign for row, sign in signs.items()}
    assert claims.linked("+1 [0, 2]", opposite, bleu, [1, 2, 3]) == link
    others = [
        ({"a": 1, "b": -1}, bleu, [1, 2]),
        (signs | {"c": 1, "d": -1}, bleu, [1, 2]),
        (signs, deficit.ENDS["training loss, bits"], [1, 2]),
        (signs, deficit.ENDS["validation loss, bits"], [1, 2]),
        (signs, bleu, [1, 2, 6]),
    ]
    for weights, end, seeds in others:
        assert claims.linked("+1 [0, 2]", weights, end, seeds) == "+1 [0, 2]"
    elsewhere = deficit.Claims([claim._replace(table="mae-4")], "../page.md")
    assert elsewhere.linked("+1 [0, 2]", signs, bleu, [1, 2]) == "+1 [0, 2]"


def test_a_setting_is_shown_from_two_seeds_of_all_of_its_rows_on(deficit, monkeypatch):
    letters = {"mae-7-long": "a", "mae-7": "b", "base-long": "c", "base": "b", "mae-7-rate-1": "c"}
    records = {
        (f"multi30k/{row}", seed): record_of(row, SENTENCES[letter, seed])
        for row, letter in letters.items()
        for seed in (1, 2, 3, 4)
        if (row, seed) not in {("base", 4), ("base-long", 3), ("mae-7-rate-1", 2), ("mae-7-rate-1", 3)}
    }
    settings = {
        "epochs": deficit.Setting("mae-7-long", "base-long"),
        "rate": deficit.Setting("mae-7-rate-1", None),
        "gates": deficit.Setting("mae-7-long", None),
        "less": deficit.Setting("mae-7-long", "base", "mae-7", "base-long"),
    }
    monkeypatch.setattr(deficit, "SETTINGS", settings)
    lines = cells_of(deficit.settings(records, deficit.ENDS, deficit.Claims([], "")))
    assert [line[:2] for line in lines] == [
        [name, end] for name in ("epochs", "gates", "less") for end in deficit.ENDS
    ]
    a, b, c = (np.stack([SENTENCES[letter, seed] for seed in (1, 2, 3)]) for letter in "abc")
    epochs, gates = (a - b, c - b, a - c, a - c), (a - b, None, None, a - b)
    less = (a - b, b - c, a - b - b + c, a - b)
    for start, seeds, sums in ((0, "1, 2", epochs), (3, "1, 2, 3", gates), (6, "1, 2", less)):
        number = len(seeds.split())
        for line, unit, digits in zip(lines[start:], (None, 0, 1), (2, 3, 3), strict=False):
            expected = ["" if s is None else deficit.shown(interval(s[:number], unit), digits) for s in sums]
            assert line[2:] == [*expected, seeds]


def test_the_page_about_mae_has_the_tables_of_the_records(deficit):
    page = (ROOT / "docs/mechanisms/mae.md").read_text()
    missing = [table for table in deficit.tables() if table not in page]
    assert not missing, "docs/mechanisms/mae.md has not what python scripts/mae_deficit.py prints"
