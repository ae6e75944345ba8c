"""Test how claims are read, refused, and decided by records."""

import base64
import copy
import gzip
import json
import lzma
import math
import re
import zlib
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from sacrebleu.metrics import BLEU

from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evidence import claim_section, figures, page
from modular_fairseq.runs.evidence.by_paper import by_paper, said
from modular_fairseq.runs.evidence.by_unit import OF_PARTS, packed, packed_parts, unpacked, unpacked_parts
from modular_fairseq.runs.evidence.claims import Change, Claim, Register, check_differences
from modular_fairseq.runs.evidence.jobs import Plan, row_of
from modular_fairseq.runs.evidence.overview import Findings, cells_of, hours_left, numbers_of
from modular_fairseq.runs.evidence.papers_difference import percent, printed_percent
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.reading import read_claims
from modular_fairseq.runs.evidence.records import (
    Folders,
    logs_of,
    plain,
    preloaded_libraries,
    read_record,
    write_log,
    write_record,
)
from modular_fairseq.runs.evidence.rows import lines_of, time_spent
from modular_fairseq.runs.evidence.verdicts import Finding, find, holm, verdict
from modular_fairseq.runs.papers.table import find_table, read_table
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import Interval, over_seeds, over_seeds_and_sentences
from modular_fairseq_cli.training_log import read_log
from tests.places import ROOT

COMMIT = "0123456789abcdef0123456789abcdef01234567"
CLAIM = {
    "name": "first",
    "registered": "2026-11-22",
    "kind": "primary",
    "paper": "table 3",
    "says": "A is better than B.",
    "table": "multi30k",
    "quantity": "bleu",
    "row": "a",
    "baseline": "b",
    "expected": "above",
    "seeds": [1, 2, 3],
    "differ": ["attention_type", "mae_*"],
}
SPEC = {
    "commit": COMMIT,
    "scale": "cpu",
    "corpora": {"c": {"command": "modular-fairseq prepare raw", "sums": {}}},
    "changes": [],
    "claims": [CLAIM],
}


def claim(**changes):
    values = {**CLAIM, **changes}
    return Claim(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})


def written(tmp_path, spec):
    path = tmp_path / "claims.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def changed(**changes):
    """Return the content of a claims.yaml whose only claim has other values; None removes a key."""
    spec = copy.deepcopy(SPEC)
    spec["claims"][0] |= changes
    spec["claims"][0] = {key: value for key, value in spec["claims"][0].items() if value is not None}
    return spec


def test_claims_are_read(tmp_path):
    spec = SPEC | {
        "changes": [
            {
                "date": "2026-11-22",
                "reason": "a defect",
                "claims": {"first": "99"},
                "removed": ["z"],
                "before": COMMIT[::-1],
            }
        ]
    }
    register = read_claims(written(tmp_path, spec))
    assert register.claims == [claim()]
    assert register.changes == [Change("2026-11-22", "a defect", {"first": "99"}, ("z",), (), COMMIT[::-1])]
    assert (register.commit, register.scale) == (COMMIT, "cpu")


def test_the_digest_of_a_claim_depends_on_all_of_it():
    digests = {claim().digest, claim().digest}
    assert len(digests) == 1
    others = [{"row": "c"}, {"margin": 0.1}, {"seeds": [1, 2]}, {"says": "x"}, {"expected": "below"}]
    assert len(digests | {claim(**change).digest for change in others}) == 1 + len(others)
    assert claim(margin=0.0, row_minus="").digest in digests  # as if claims had no such keys
    assert claim(table="configs/multi30k/table.yaml").digest in digests
    assert claim(remark="B was trained with less.").digest in digests


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("- a list", "the file must have the keys changes, claims, commit, corpora, scale"),
        ({**SPEC, "more": 1}, "and no others"),
        (changed(name=None), "a claim has no name"),
        (changed(paper=None), "claim first lacks paper"),
        (changed(colour="red"), "claim first has the unknown key colour"),
        (changed(kind="main"), "claim first: kind is 'main'; it must be one of primary, secondary"),
        (changed(expected="better"), "expected is 'better'; it must be one of above, below"),
        (changed(quantity="blue"), "quantity is 'blue'; it must be one of bleu"),
        (changed(seeds=[1]), "seeds is [1]; it must be a list of at least two different numbers"),
        (changed(seeds=[1, "2"]), "it must be a list of at least two different numbers"),
        (changed(seeds=[1, 1, 2]), "it must be a list of at least two different numbers"),
        (changed(seeds=[1, 2, True]), "it must be a list of at least two different numbers"),
        (changed(seeds=[[1], 2]), "it must be a list of at least two different numbers"),
        (changed(margin="0.08"), "margin is '0.08'; it must be a number"),
        (changed(margin=math.nan), "margin is nan; it must be a number"),
        (changed(printed=[1]), "printed is [1]; it must be a number"),
        (changed(quantity=["bleu"]), "quantity is ['bleu']; it must be a text"),
        (changed(table=5), "table is 5; it must be a text"),
        (changed(remark="B was larger."), "its remark must begin with its date in brackets"),
        (changed(differ=["*"]), "differ is ['*']; it must be a list of keys"),
        (changed(differ=[5]), "differ is [5]; it must be a list of keys"),
        (changed(registered="2999-01-01"), "claim first has the date 2999-01-01, which is in the future"),
        ({**SPEC, "scale": None}, "scale is None; it must be a text"),
        ({**SPEC, "changes": 3}, "changes is 3; it must be a list"),
        ({**SPEC, "corpora": ["c"]}, "corpora is ['c']; it must be a dictionary"),
        ({**SPEC, "corpora": {"c": "prepare"}}, "corpus c must have a `command`, and `sums` of its files"),
        (
            {**SPEC, "corpora": {"c": {"command": "prepare", "sums": {}, "about": 3}}},
            "corpus c has an `about` that is no text",
        ),
        (changed(row_minus="c"), "has only one of row_minus and baseline_minus; give both"),
        (changed(baseline=None), "claim first must have both baseline and differ"),
        (changed(differ=None), "claim first must have both baseline and differ"),
        (
            changed(baseline=None, differ=None, row_minus="c", baseline_minus="d"),
            "if it is about a single row, neither of them and no row_minus",
        ),
        (changed(registered="soon"), "claim first has the date 'soon'; it must be a date such as"),
        ({**SPEC, "claims": [CLAIM, CLAIM]}, "two claims are called first"),
        ({**SPEC, "commit": "0123abc"}, "commit is '0123abc'; it must be a hash of 40 digits, or none"),
        ({**SPEC, "changes": [{"date": "2026-11-01"}]}, "each of `changes` needs a date and a reason"),
        ({**SPEC, "changes": [{"date": "2026-11-01", "reason": " "}]}, "has no reason; give it"),
        (
            {**SPEC, "changes": [{"date": "2026-11-01", "reason": "x", "claims": {"z": "0"}}]},
            "the change of 2026-11-01 names the claim z, which does not exist",
        ),
        (
            {**SPEC, "changes": [{"date": "2026-11-01", "reason": "x", "claims": ["first"]}]},
            "claims must be names with digests in quotes, as in `claims: {name:",
        ),
        (
            {**SPEC, "changes": [{"date": "2026-11-01", "reason": "x", "claims": {"first": "0"}}]},
            "the change of 2026-11-01 is older than the claim first, which was registered on 2026-11-22",
        ),
        (
            {**SPEC, "changes": [{"date": "2026-11-22", "reason": "x", "claims": {"first": 123}}]},
            "claims must be names with digests in quotes",
        ),
        ({**SPEC, "changes": [{"date": "2026-11-22", "reason": 0}]}, "has no reason; give it"),
        (
            {**SPEC, "changes": [{"date": "2026-11-22", "reason": "x", "before": "abc"}]},
            "before is 'abc'; it must be a hash of 40 digits",
        ),
        (
            {**SPEC, "changes": [{"date": "2026-11-22", "reason": "x", "rows": "a/b"}]},
            "rows is 'a/b'; it must be a list of names",
        ),
        (
            {**SPEC, "changes": [{"date": "2026-11-01", "reason": "x", "removed": ["first"]}]},
            "says that the claim first was removed, but it is there",
        ),
        (
            {**SPEC, "changes": [{"date": "2999-01-01", "reason": "x"}]},
            "a change has the date 2999-01-01, which is in the future",
        ),
        ({**SPEC, "changes": [{"date": "x", "reason": "x"}]}, "a change has the date 'x'"),
        (
            {**SPEC, "changes": [{"date": "2026-11-22", "reason": "x", "rows": ["a/b"]}]},
            "has rows, but not the commit whose results count no longer; add `before`",
        ),
        (
            {**SPEC, "changes": [{"date": "2026-11-22", "reason": "x", "removed": None}]},
            "removed is None; it must be a list of names",
        ),
    ],
)
def test_bad_claims_are_refused(tmp_path, spec, sentence):
    with pytest.raises(UsageError) as error:
        read_claims(written(tmp_path, spec))
    assert sentence in str(error.value) and "claims.yaml" in str(error.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"claims.yaml: cannot be read"):
        read_claims(tmp_path / "claims.yaml")


def keys(**model):
    return {"optimizer._name": "adam"} | {f"model.{key}": value for key, value in model.items()}


def test_rows_may_differ_in_what_the_claim_says():
    check_differences(claim(), "ab", [keys(attention_type="mae", mae_gate_lr=1), keys()])


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        (
            {"attention_type": "mae", "mae_gate_lr": 1, "dropout": 0.1},
            "differ in dropout, which the claim does",
        ),
        ({"attention_type": "mae"}, "do not differ in mae_\\*, as `differ` says"),
    ],
)
def test_rows_that_differ_in_more_or_less_are_refused(row, sentence):
    with pytest.raises(UsageError, match=sentence):
        check_differences(claim(), "ab", [keys(**row), keys()])


def test_equal_rows_are_refused():
    with pytest.raises(UsageError, match="rows a and b are equal; compare rows that differ"):
        check_differences(claim(differ=[]), "ab", [keys(dropout=0), keys(dropout=0)])


def test_the_page_shows_the_beginning_of_a_long_change():
    assert page._beginning("One. Two of 3.5.", "x") == "One. Two of 3.5."
    said = page._beginning("One of 2.5 (a). Two b. Three c. Four.", "claims.yaml")
    assert said == "One of 2.5 (a). Two b. The rest of this entry is in `claims.yaml`, under `changes`."


def test_changes_say_which_commits_count():
    changes = [
        Change("2026-11-01", "r", rows=("t/a",), before="old"),
        Change("2026-11-02", "r", before="new"),
    ]
    register = Register("p", "newest", "cpu", {}, changes, [])
    assert register.commits("t/a") == {"newest", "new"}
    assert register.commits("t/b") == {"newest", "new", "old"}
    assert (register.outdated("t/a"), register.outdated("t/b")) == ({"old"}, set())
    later = [changes[1], changes[0]._replace(before="middle")]  # a commit before the one that a change names
    assert register._replace(changes=later).outdated("t/a") == {"new", "middle"}
    reworded = register._replace(changes=[Change("2026-11-01", "r", {"first": "0"})])
    assert reworded.commits("t/b") == {"newest"}


CPU = yaml.safe_load((ROOT / "configs/scales/cpu.yaml").read_text())
RANDOM = np.random.default_rng(1)
SENTENCES = {(row, seed): RANDOM.normal(30, 5, 20).round(2) for row in "abcd" for seed in (1, 2, 3, 4)}


def records(rows="abcd", seeds=(1, 2, 3)):
    return {
        (f"multi30k/{row}", seed): {
            "diverged": False,
            "training": {"parameters": 7},
            "made": {"device": "cpu"},
            "curves": {
                "valid": {"ppl": [[10, 9.0], [20, 8.0 - seed]], "gate_entropy": [[10, 2.0], [20, 1.5]]},
                "train": {"nll_loss": [[10, 4.0], [20, 3.0 + seed]]},
            },
            "rows": {
                f"multi30k/{row}": [
                    {"bleu": float(values.mean()), "chrf": float(seed), "by_unit": {"bleu": list(values)}}
                    for values in (SENTENCES[row, seed], SENTENCES[row, seed] + 1)
                ]
            },
        }
        for row in rows
        for seed in seeds
    }


def test_bleu_is_compared_over_seeds_and_sentences():
    found = find(claim(), records())
    by_sentence = np.stack([SENTENCES["a", seed] - SENTENCES["b", seed] for seed in (1, 2, 3)])
    expected = over_seeds_and_sentences(list(by_sentence.mean(axis=1)), by_sentence)
    assert found.interval == pytest.approx(expected) and found.missing == []
    assert found.values[2] == pytest.approx((SENTENCES["a", 2].mean() + 0.5, SENTENCES["b", 2].mean() + 0.5))


def test_other_quantities_are_compared_over_seeds():
    rows = records()
    for seed in (1, 2, 3):
        for measurement in rows["multi30k/a", seed]["rows"]["multi30k/a"]:
            measurement["chrf"] += 0.1 * seed
    found = find(claim(quantity="chrf"), rows)
    assert found.interval == pytest.approx(over_seeds([0.1, 0.2, 0.3]))


@pytest.mark.parametrize(("expected", "sign"), [("above", 1), ("below", -1)])
def test_a_margin_moves_the_hypothesis_but_not_the_interval(expected, sign):
    plain = find(claim(expected=expected), records())
    found = find(claim(expected=expected, margin=0.5), records())
    assert found.interval[:3] == pytest.approx(plain.interval[:3])
    by_sentence = np.stack([SENTENCES["a", seed] - SENTENCES["b", seed] - 0.5 * sign for seed in (1, 2, 3)])
    moved = over_seeds_and_sentences(list(by_sentence.mean(axis=1)), by_sentence)
    assert found.interval.p_value == pytest.approx(moved.p_value)
    assert found.interval.p_value != pytest.approx(plain.interval.p_value)
    assert found.excess == pytest.approx(sign * plain.interval.difference - 0.5)
    half = moved.p_value / 2
    assert found.p_values == pytest.approx((half, 1 - half) if found.excess > 0 else (1 - half, half))


def test_a_quantity_with_parts_is_compared_over_seeds_and_parts():
    rows = records()
    for (row, seed), each in rows.items():
        for measurement in each["rows"][row]:
            values = SENTENCES[row[-1], seed]
            measurement |= {"class_accuracy": float(values.mean()), "by_unit": {"class_accuracy": values}}
    parts = np.stack([SENTENCES["a", seed] - SENTENCES["b", seed] for seed in (1, 2, 3)])
    accuracy = claim(quantity="class_accuracy")
    expected = over_seeds_and_sentences(list(parts.mean(axis=1)), parts)
    assert find(accuracy, rows).interval == pytest.approx(expected)
    rows["multi30k/b", 2]["rows"]["multi30k/b"][0]["by_unit"] = {}  # an older record
    expected = over_seeds(parts.mean(axis=1))
    assert find(accuracy, rows).interval == pytest.approx(expected)


def test_counts_are_packed_without_loss_and_in_little_space():
    lengths = RANDOM.integers(3, 30, 1000)
    matches = [np.maximum(lengths - n - RANDOM.poisson(3 * n + 3, 1000), 0) for n in range(4)]
    counts = np.stack([lengths, np.maximum(lengths + RANDOM.integers(-3, 4, 1000), 0), *matches], axis=1)
    counts[:3] = [[30000, 0, 0, 0, 0, 0], [0, 30000, 0, 0, 0, 0], [1, 1, 1, 0, 30000, 2]]
    text = packed(counts)
    np.testing.assert_array_equal(unpacked(text), counts)
    assert json.dumps(text) == f'"{text}"' and unpacked(packed(counts[:1])).tolist() == counts[:1].tolist()
    zipped = zlib.compress(counts.T.astype("<u2").tobytes(), level=9)
    assert len(text) < 0.7 * len(base64.b64encode(zipped))
    for spoilt in (text[:-30], text[:50] + text[60:], '"', "é"):
        with pytest.raises(ValueError):
            unpacked(spoilt)


def test_a_record_with_parts_has_their_pseudo_values(tmp_path):
    parts = np.stack([RANDOM.normal(900, 20, 50), np.full(50, 393.0)], axis=1)
    nats = parts[:, 0].sum() / parts[:, 1].sum()
    scores = {"nats_per_token": nats, "lm_perplexity": round(math.exp(nats), 2)}
    record = {
        **dict.fromkeys(("corpus", "claims", "curves", "training", "settings", "start"), {}),
        "made": {"date": "2026-11-22", "device": "cpu"},
        **{"commit": COMMIT, "weights": "0", "diverged": False, "core_minutes": 1},
        "rows": {"a/b": [{"how": {}, **scores, "parts": packed_parts(parts)}]},
    }
    write_record(tmp_path, "a/b/seed-1", record)
    (found,) = read_record(tmp_path, "a/b/seed-1")["rows"]["a/b"]
    np.testing.assert_allclose(found["by_unit"]["nats_per_token"], parts[:, 0] / 393, rtol=1e-5)
    assert list(found["by_unit"]) == ["nats_per_token"]  # the interval of a perplexity is over seeds
    for spoilt, sentence in (
        ({"parts": "2:" + found["parts"][2:-8]}, "the counts or parts of a/b cannot be read"),
        ({"parts": 5}, "the counts or parts of a/b cannot be read"),
        ({"parts": "1:" + found["parts"][2:]}, r"cannot be read \(a part has 1 numbers"),
        ({"nats_per_token": nats + 0.001}, "but its sentences or parts give"),
    ):
        record["rows"]["a/b"][0] |= spoilt
        write_record(tmp_path, "a/b/seed-1", record)
        with pytest.raises(UsageError, match=sentence):
            read_record(tmp_path, "a/b/seed-1")
        record["rows"]["a/b"][0] |= {"parts": packed_parts(parts), **scores}
    record["rows"]["a/b"][0]["nats_per_token"] = math.nan  # of a model without finite numbers
    write_record(tmp_path, "a/b/seed-1", record)
    assert read_record(tmp_path, "a/b/seed-1")["rows"]["a/b"][0]["by_unit"] == {}


def test_each_baseline_of_a_table_has_a_figure_with_its_rows():
    """Those of the ablation are the iterations of figures 1 to 3 of the paper."""
    groups = figures.grouped(read_table(find_table("ensemble-1-masked")))
    assert {baseline: [row.name for row in rows] for baseline, rows in groups.items()} == {
        "baseline": ["baseline", "residual", "attention", "hidden", "multihead"],
        "residual": ["residual", "residual-attention", "residual-hidden", "residual-multihead"],
        "residual-multihead": [
            *("residual-multihead", "residual-multihead-attention", "residual-multihead-hidden", "full")
        ],
    }
    one = figures.grouped(read_table(find_table("mae-4")))
    assert list(one) == [""] and len(one[""]) > 3


def test_a_figure_of_pictures_has_the_competition_and_the_heads_of_the_control(tmp_path):
    spec = yaml.safe_load((ROOT / "results/claims.yaml").read_text())
    spec["claims"] = [each for each in spec["claims"] if each["table"] == "tim-pixels"]
    plan = Plan(read_claims(written(tmp_path, spec | {"changes": []})), str(tmp_path), str(tmp_path))
    table, made = plan.tables["tim-pixels"], {}
    for job in plan.jobs:
        (name,) = job.measurements
        row, of_seed = name.partition("/")[2], [[100, 0.1 * job.seed], [200, 0.2 * job.seed]]
        measured = {"eta_squared_heads_by_update": [[100, 0.3], [200, 0.4]]} if "pairs" in row else {}
        measured |= {"eta_squared_by_update": of_seed} if row == "pairs-tim" else {}
        curves = {"valid": {"ppl": [[384, 9.0], [768, 8.0]]}, "train_inner": {"ppl": [[100, 9.5], [200, 9]]}}
        made[job.run.name] = {"diverged": False, "curves": curves, "rows": {name: [measured]}}
    drawings = figures.figures(plan, made)
    assert {name: each.alternative for name, each in drawings.items()} == {
        "tim-pixels.pairs-plain.ppl.svg": "Perplexity (training, table tim-pixels: pairs-plain)",
        "tim-pixels.pairs-plain.eta_squared.svg": "Eta squared between regions of pictures (test, table "
        "tim-pixels: pairs-plain)",
        "tim-pixels.photos-plain.ppl.svg": "Perplexity (training, table tim-pixels: photos-plain)",
    }
    pairs = figures.grouped(table)["pairs-plain"]
    _, drawn = figures._curves(plan, table, pairs, made, "eta_squared")
    assert {name: [point.mean for point in points] for name, points in drawn.items()} == {
        "digit and photograph: TIM": pytest.approx([0.2, 0.4]),
        "digit and photograph: Transformer: heads": pytest.approx([0.3, 0.4]),
    }
    assert {point.seeds for points in drawn.values() for point in points} == {3}


def test_losses_of_rows_are_compared():
    found = find(claim(row_minus="c", baseline_minus="d"), records())
    by_sentence = np.stack(
        [
            SENTENCES["a", seed] - SENTENCES["c", seed] - (SENTENCES["b", seed] - SENTENCES["d", seed])
            for seed in (1, 2, 3)
        ]
    )
    expected = over_seeds_and_sentences(list(by_sentence.mean(axis=1)), by_sentence)
    assert found.interval == pytest.approx(expected)


def test_a_claim_about_one_row_is_about_its_quantity_itself():
    rows = records()
    for seed in (1, 2, 3):
        rows["multi30k/a", seed]["curves"]["valid"]["gate_entropy"][1][1] = 1.5 - 0.1 * seed
    single = claim(quantity="gate_entropy_change", expected="below", baseline="", differ=[])
    assert single.rows == ["a"]
    found = find(single, rows)
    assert found.interval == pytest.approx(over_seeds([-0.6, -0.7, -0.8]))
    assert found.excess == pytest.approx(0.7)
    cells = cells_of(found, (None, None))
    assert cells[0].endswith("(multi30k: a below 0)") and cells[2] == "-0.700 ± 0.100" and cells[3] == ""
    assert numbers_of(found, (None, None))[4:7] == pytest.approx([-0.7, None, -0.7])


def test_a_claim_about_one_row_below_a_margin():
    rows = records()
    for seed in (1, 2, 3):
        rows["multi30k/a", seed]["curves"]["valid"]["gate_entropy"][1][1] = 2.29 + 0.01 * seed
    single = claim(
        quantity="gate_entropy_change", expected="below", margin=0.8, baseline="", differ=[], kind="secondary"
    )
    found = find(single, rows)
    assert single.bound == 0.8 and found.excess == pytest.approx(0.8 - 0.31)
    assert said(found, Findings([found], {})) == "as claimed"
    assert "(multi30k: a below 0.8)" in cells_of(found, (None, None))[0]


@pytest.mark.parametrize("expected", ["above", "below"])
@pytest.mark.parametrize("margin", [0.0, 0.5, -0.5])
@pytest.mark.parametrize("place", [-1, 0, 1])
def test_a_secondary_claim_is_read_from_its_whole_interval(expected, margin, place):
    """The interval lies on one side of the bound, around it, or on the other side."""
    of = claim(expected=expected, margin=margin, kind="secondary")
    bound = margin if expected == "above" else -margin
    middle = bound + 2.0 * place
    interval = Interval(middle, middle - 1.0, middle + 1.0, 0.5, 3, 20)
    finding = Finding(of, {1: (0, 0), 2: (0, 0), 3: (0, 0)}, interval, [])
    right = {"above": 1, "below": -1}[expected]
    words = {right: "as claimed", 0: "undecided", -right: "the opposite"}
    assert said(finding, Findings([finding], {})) == words[place]
    assert said(finding._replace(missing=[3]), Findings([finding], {})) == "3 of 3 seeds"


def test_seeds_that_do_not_differ_tell_nothing():
    """The claim is on its bound, from which rounding leads away: .4 - .3 is not .1."""
    rows = records()
    for seed in (1, 2, 3):
        for row, value in (("a", 0.4), ("b", 0.3)):
            rows[f"multi30k/{row}", seed]["rows"][f"multi30k/{row}"] = [{"chrf": value}]
    for kind, word in (("primary", "open"), ("secondary", "undecided")):
        found = find(claim(quantity="chrf", margin=0.1, kind=kind), rows)
        assert found.interval is None and not found.missing and found.p_values == (None, None)
        assert said(found, Findings([found], {})) == word


@pytest.mark.parametrize("row", ["multi30k/a", "multi30k/b"])
@pytest.mark.parametrize("kind", ["primary", "secondary"])
def test_a_claim_that_has_lost_a_seed_has_neither_verdict_nor_interval(row, kind):
    rows = records()
    rows[row, 2] |= {"diverged": True, "rows": {}}
    found = find(claim(kind=kind), rows)
    assert found.missing == [2] and found.interval is None and not found.waits
    assert verdict(found, (0.001, 1.0)) == "seed 2 diverged"
    assert by_paper(Findings([found], {})).splitlines()[-1].endswith(" | 1 has lost a seed |")
    del rows["multi30k/b", 3]
    found = find(claim(kind=kind), rows)
    assert found.waits
    assert by_paper(Findings([found], {})).splitlines()[-1].endswith(" | 0 of 1 done |")


def test_seeds_without_both_rows_are_missing():
    rows = records()
    del rows["multi30k/b", 2]
    found = find(claim(), rows)
    assert found.missing == [2] and list(found.values) == [1, 3] and found.interval.seeds == 2
    assert verdict(found, (0.001, 1.0)) == "2 of 3 seeds"
    assert found.p_values == (None, None)  # so that Holm's method does not count it
    assert find(claim(), {}).interval is None and find(claim(), {}).p_values == (None, None)


def test_a_pair_on_different_devices_does_not_count():
    rows = records()
    rows["multi30k/b", 3]["made"]["device"] = "cuda"
    found = find(claim(), rows)
    assert found.missing == [3] and verdict(found, (0.001, 1.0)) == "seed 3 is of two devices"
    rows["multi30k/a", 3]["made"]["device"] = "cuda"
    assert find(claim(), rows).missing == []


@pytest.mark.parametrize("row", ["multi30k/a", "multi30k/b"])
@pytest.mark.parametrize(
    "value, reason",
    [(math.nan, "has no finite value"), (math.inf, "has no finite value"), (None, "was not measured")],
)
def test_a_value_that_is_no_number_does_not_count(row, value, reason):
    rows = records()
    rows[row, 2]["rows"][row][0]["chrf"] = value
    found = find(claim(quantity="chrf"), rows)
    assert found.missing == [2] and found.p_values == (None, None) and found.interval is None
    assert verdict(found, (0.001, 1.0)) == f"seed 2 {reason}"


def test_records_with_scores_of_other_sentences_are_refused():
    rows = records()
    rows["multi30k/c", 2]["rows"]["multi30k/c"][0]["by_unit"]["bleu"].pop()
    assert find(claim(), rows).interval  # which is about other rows
    rows["multi30k/a", 2]["rows"]["multi30k/a"][0]["by_unit"]["bleu"].pop()
    with pytest.raises(
        UsageError, match=r"claim first: the records have scores of .* of 19 sentences or parts"
    ):
        find(claim(), rows)


def test_the_p_against_a_claim_is_shown_beside_the_p_for_it():
    found = find(claim(), records())
    assert cells_of(found, (1.0, 0.004))[6] == "1.000; 0.004" and cells_of(found, (None, None))[6] == ""


def of_records(ending):
    """Return the files of all claims' records, `results/**/evidence/TABLE/ROW/seed-N` and an ending."""
    return sorted(ROOT.glob(f"results/**/evidence/*/*/seed-*{ending}"))


@pytest.mark.parametrize("path", of_records(".json"), ids=lambda path: path.parent.name)
def test_scores_in_records_are_of_their_counts(path):
    """A record of a translation has sacrebleu's counts for each sentence, from which its BLEU follows. A
    record of a classification has what each input adds to its accuracy, and one of pictures what each picture
    adds to its nats per token. A record of a language model has a perplexity.
    """
    folder = path.parents[2]
    record = read_record(folder, str(path.relative_to(folder))[:-5])
    every = [each for found in record["rows"].values() for each in found]
    is_translation = "--task translation" in " ".join(record["commands"])
    measurements = [each for each in every if "bleu" in each]
    assert every and len(measurements) == (len(every) if is_translation else 0)
    for each in every:
        if "parts" in each:
            total, number = unpacked_parts(each["parts"]).sum(axis=0)
            name, factor = ("class_accuracy", 100) if "class_accuracy" in each else ("nats_per_token", 1)
            assert each[name] == pytest.approx(factor * total / number, rel=1e-6)
        elif not is_translation:
            assert each.get("lm_perplexity", each.get("masked_perplexity", 0)) > 1
    for each in measurements:
        counts = unpacked(each["counts"])
        counts = np.hstack([counts, np.maximum(counts[:, :1] - np.arange(4), 0)])  # the numbers of n-grams
        whole, m = counts.sum(axis=0), len(counts)
        without = np.array([sacrebleus(whole - sentence) for sentence in counts])
        assert each["bleu"] == pytest.approx(sacrebleus(whole), abs=1e-9)
        expected = m * sacrebleus(whole) - (m - 1) * without
        np.testing.assert_allclose(each["by_unit"]["bleu"], expected, atol=1e-9)


@pytest.mark.parametrize("path", of_records(".json"), ids=lambda path: path.parent.name)
def test_no_record_names_a_folder_of_a_machine(path):
    commands = json.loads(path.read_text())["commands"]
    assert commands and not [word for each in commands for word in each.split() if word.startswith("/")]


@pytest.mark.parametrize("path", of_records(".log.*"), ids=lambda path: path.parent.name)
def test_a_log_that_was_kept_has_the_curves_of_its_record(tmp_path, path):
    text = {".xz": lzma, ".gz": gzip}[path.suffix].decompress(path.read_bytes()).decode()
    assert not re.search(r"(?<![\w.])/(work|home|root|mnt|srv)/", text)
    (tmp_path / "train.log").write_text(text)
    found, name = read_log(tmp_path / "train.log"), path.name.partition(".")[0]
    curves = json.loads((path.parent / f"{name}.json").read_text())["curves"]
    assert curves.keys() == {"train", "valid", "train_inner"}
    for split, by_name in curves.items():
        for key, points in by_name.items():
            assert [[at, value] for at, value in found[split][key]] == points


def test_a_log_with_half_of_a_character_is_kept(tmp_path):
    """A training that was killed may have written it."""
    (tmp_path / "train.log").write_bytes(b"Gr\xc3\n{}\n")
    run = SimpleNamespace(name="a/b/seed-1", path=lambda name: str(tmp_path / name))
    write_log(tmp_path, run, "0123", Folders("/d", "/e", "/c"))
    [log] = logs_of(tmp_path, run.name)
    assert log.name == "seed-1.log.xz" and lzma.decompress(log.read_bytes()).decode() == "Gr\ufffd\n{}\n"


@pytest.mark.parametrize("ending", [".log.xz", ".log.gz"])
def test_a_log_is_found_in_each_form_that_was_ever_written(tmp_path, ending):
    (tmp_path / "a/b").mkdir(parents=True)
    for name in ("seed-1.json", f"seed-1{ending}", f"seed-1{ending}.7.tmp", "seed-11.log.xz"):
        (tmp_path / "a/b" / name).touch()
    assert logs_of(tmp_path, "a/b/seed-1") == [tmp_path / f"a/b/seed-1{ending}"]
    assert logs_of(tmp_path, "a/b/seed-2") == []


def test_the_page_names_the_logs_that_were_kept(tmp_path):
    plan = SimpleNamespace(register=SimpleNamespace(path=str(tmp_path / "claims.yaml")))
    logs = [tmp_path / "evidence/a/b" / name for name in ("seed-1.log.xz", "seed-1.log.gz", "seed-2.log.xz")]
    logs[0].parent.mkdir(parents=True)
    shown = [claim_section._logs(plan, ["a/b/seed-1", "a/b/seed-2"])]
    for log in logs:
        log.touch()
        shown.append(claim_section._logs(plan, ["a/b/seed-1", "a/b/seed-2"]))
    first, both, all_of_them = (", ".join(f"`{log}`" for log in logs[:n]) for n in (1, 2, 3))
    others = "; of the other runs none were kept"
    assert shown == [
        "- Logs: none were kept",
        f"- Logs: {first}{others}",
        f"- Logs: {both}{others}",
        f"- Logs: {all_of_them}",
    ]


def test_folders_of_a_machine_have_neutral_names():
    folders = Folders("/a/evidence/data", "/a/evidence", "/a/evidence/0123")
    for text, expected in {
        "x /a/evidence/data/c/bin": "x evidence/data/c/bin",
        "--user-dir=/a/evidence/0123/modular_fairseq": "--user-dir=evidence/0123/modular_fairseq",
        "'/a/evidence/x', /a/evidence": "'evidence/runs/x', evidence/runs",
        "/a/evidences /b/a/evidence": "/a/evidences /b/a/evidence",
    }.items():
        assert folders.neutral(text, "0123") == expected


def test_the_page_tells_when_a_claim_or_its_rows_were_changed():
    changes = [
        Change("2026-11-23", "a", rows=("multi30k/b",), before=COMMIT),
        Change("2026-11-24", "b", rows=("multi30k/c", "other/a"), before=COMMIT),
        Change("2026-11-25", "c", claims={"first": "0"}),
        Change("2026-11-25", "d", claims={"second": "0", "first": "1"}),
    ]

    def job(row, of, start=None):
        return SimpleNamespace(run=Run(f"{row}/seed-1", "", Corpus(""), (), 1, start=start), claims={of: ""})

    jobs = [job("multi30k/a", "first"), job("other/d", "first", job("multi30k/b", "").run), job("d", "third")]
    plan = SimpleNamespace(register=SimpleNamespace(changes=changes), jobs=jobs)
    assert claim_section._changed(plan, claim()).endswith(
        " on 2026-11-23 (entry 1) and 2026-11-25 (entries 3, 4)"
    )
    assert claim_section._changed(plan, claim(name="third", row="d", baseline="e")) == ""


def test_the_page_names_the_device_that_made_the_runs():
    runs = {f"t/{row}/seed-{seed}": (row, seed) for row in "ab" for seed in (1, 2)}
    jobs = [SimpleNamespace(run=SimpleNamespace(name=name), seed=seed) for name, (_, seed) in runs.items()]

    def told(*devices):
        made = {name: {"made": {"device": devices[seed - 1]}} for name, (_, seed) in runs.items()}
        return claim_section._devices(jobs, made)

    assert told("cpu", "cpu") == ""
    assert told("cpu", "cuda").startswith(" Seed 2 was made on a GPU, by `scripts/evidence.sh` with")
    assert told("cuda", "cuda").startswith(" They were made on a GPU, by `scripts/evidence.sh` with")


def sacrebleus(counts):
    return BLEU.compute_bleu([*counts[2:6]], [*counts[6:]], counts[0], counts[1], smooth_method="exp").score


def test_holms_correction_of_known_p_values():
    assert holm([0.01, 0.04, 0.03, 0.005], 4) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.01, None], 2) == [0.02, None]
    assert holm([0.6, 0.5], 2) == [1.0, 1.0]


def test_a_corrected_p_below_5_percent_decides_a_primary_claim():
    found = find(claim(), records())
    pairs = [(0.04, 1.0), (0.05, 1.0), (None, None), (1.0, 0.04), (0.2, 0.9)]
    assert [verdict(found, p) for p in pairs] == ["holds", "open", "open", "fails", "open"]
    assert verdict(found._replace(claim=claim(kind="secondary")), (0.001, 1.0)) == ""


def test_a_difference_below_the_margin_is_against_the_claim():
    rows = records()
    for seed in (1, 2, 3):
        for row, value in (("a", 0.60 + 0.001 * seed), ("b", 0.65)):
            for each in rows[f"multi30k/{row}", seed]["rows"][f"multi30k/{row}"]:
                each["chrf"] = value
    for expected, sign in (("below", -1), ("above", 1)):
        far, near = (find(claim(quantity="chrf", expected=expected, margin=m), rows) for m in (0.08, 0.02))
        assert (far.p_values[1] < 0.01) and (far.excess < 0)
        assert (near.p_values[0] < 0.01) == (sign < 0)


def test_quantities_of_curves():
    (record,) = records("a", (2,)).values()
    values = {
        name: QUANTITIES[name].of(record, "multi30k/a") for name in ("final_train_nll", "early_perplexity")
    }
    assert values == {"final_train_nll": 5.0, "early_perplexity": None}
    assert QUANTITIES["gate_entropy_change"].of(record, "multi30k/a") == -0.5
    record["curves"]["valid"]["ppl"] = [[epoch, 10.0 - epoch] for epoch in range(1, 8)]
    assert QUANTITIES["early_perplexity"].of(record, "multi30k/a") == 5.0
    assert QUANTITIES["parameters"].of(record, "multi30k/a") == 7
    assert QUANTITIES["valid_nll"].of(record, "multi30k/a") is None
    record["curves"]["valid"]["nll_loss"] = [[10, 4.0], [20, 3.0], [30, 3.5]]
    assert QUANTITIES["valid_nll"].of(record, "multi30k/a") == 3.0


def test_settings_of_records_are_strict_json():
    assert plain({"a": (1, 2), "floor": -math.inf}) == {"a": [1, 2], "floor": "-Infinity"}


@pytest.mark.parametrize("corpus", ["multi30k.de-en", "iwslt14-seventh.de-en"])
def test_the_learning_rate_of_the_small_size_decays_to_0_over_all_epochs(corpus):
    """The corpora are not here, so this test knows the number of their updates in an epoch."""
    updates = {"multi30k.de-en": 497, "iwslt14-seventh.de-en": 672}
    values = CPU["set"] | CPU["corpora"].get(corpus, {})
    epochs = values["optimization.max_epoch"]
    assert values["lr_scheduler.total_num_update"] == updates[corpus] * epochs and epochs >= 10
    text = CPU["corpora"]["wikitext-103"]
    warm_up, period = (text[f"lr_scheduler.{name}_updates"] for name in ("warmup", "lr_period"))
    assert warm_up + period == text["optimization.max_update"] == 6 * 1020
    finetuning = CPU["finetuning"]
    assert finetuning["lr_scheduler.total_num_update"] == 623 * finetuning["optimization.max_epoch"]


def test_a_run_is_expected_to_take_as_long_as_its_row_or_its_table_or_all():
    names = ("a/x/seed-1", "a/x/seed-2", "a/y/seed-1", "a/z/seed-1", "b/x/seed-1", "c/x/seed-1")
    jobs = [SimpleNamespace(run=SimpleNamespace(name=name)) for name in names]
    minutes = {"a/x/seed-1": 60, "a/y/seed-1": 120, "b/x/seed-1": 240}
    records = {name: {"core_minutes": value, "made": {"device": "cpu"}} for name, value in minutes.items()}
    # a/x/seed-2 has a row, a/z/seed-1 has the table a, and c/x/seed-1 has neither
    assert hours_left(jobs, records) == pytest.approx(1 + 1.5 + (1 + 2 + 4) / 3)
    assert hours_left(jobs, {}) is None and hours_left(jobs[:1], records) == 0


def test_time_on_a_cpu_and_time_with_a_gpu_are_told_apart():
    names = ("a/x/seed-1", "a/x/seed-2", "a/x/seed-3")
    jobs = [SimpleNamespace(run=SimpleNamespace(name=name)) for name in names]
    cpu, gpu = ({"core_minutes": value, "made": {"device": of}} for value, of in ((90, "cpu"), (6, "cuda")))
    assert time_spent([cpu, cpu]) == "3.0 core-hours" and time_spent([]) == "0.0 core-hours"
    assert time_spent([gpu, cpu, gpu]) == "1.5 core-hours of runs on CPUs and 0.2 of runs on a GPU"
    assert time_spent([gpu]) == "0.1 core-hours of runs on a GPU"
    # the rest is expected to take as long as the runs on a CPU
    assert hours_left(jobs, {names[0]: cpu, names[1]: gpu}) == 1.5
    assert hours_left(jobs, {names[1]: gpu}) is None


def test_core_hours_of_a_row_are_the_mean_of_its_runs_on_a_cpu():
    rows = [SimpleNamespace(name=name, label=name.upper(), percent=100) for name in "xy"]
    table = SimpleNamespace(name="a", columns=[], rows=rows)
    plan, records = SimpleNamespace(jobs=[]), {}
    for row, seed, minutes, device in (
        ("x", 1, 60, "cpu"),
        ("x", 2, 120, "cpu"),
        ("x", 3, 6, "cuda"),
        ("y", 1, 6, "cuda"),
    ):
        name = f"a/{row}/seed-{seed}"
        plan.jobs.append(SimpleNamespace(run=SimpleNamespace(name=name), seed=seed))
        records[name] = {"core_minutes": minutes, "made": {"device": device}, "rows": {f"a/{row}": []}}
    assert lines_of(plan, table, records)[2:] == ["| X | 3 | 1.5 |", "| Y | 1 |  |"]


PERPLEXITIES = {1: (110.0, 100.0), 2: (121.0, 100.0)}  # 10 and 21 % more; with one degree of freedom


@pytest.mark.parametrize(
    ("changes", "values", "excluded"),
    [
        ({"printed": 0.9}, None, False),
        ({"printed": 1.1}, None, True),
        ({"printed": -0.1}, None, True),
        ({"printed": None}, None, False),
        # 2 of 10 is 20 % more, which the interval includes, though 2 is far below it
        ({"printed": 2.0, "paper": "Li 2021: 12.0, baseline 10.0"}, PERPLEXITIES, False),
        ({"printed": -8.0, "paper": "Li 2021: 2.0, baseline 10.0"}, PERPLEXITIES, True),
        ({"printed": -8.0, "paper": "Li 2021: lower by 8"}, PERPLEXITIES, False),
    ],
)
def test_an_interval_says_whether_it_excludes_the_papers_difference(changes, values, excluded):
    of = claim(kind="secondary", quantity="lm_perplexity" if values else "bleu", margin=0.5, **changes)
    finding = Finding(of, values or {1: (0, 0)}, Interval(0.5, 0.0, 1.0, 0.5, 2), [])
    expected = "undecided; the paper's difference is excluded" if excluded else "undecided"
    assert said(finding, Findings([finding], {})) == expected
    decided = finding._replace(interval=Interval(2.5, 2.0, 3.0, 0.01, 2))
    assert said(decided, Findings([decided], {})) == "as claimed"


def test_perplexities_are_compared_in_percent_of_the_baseline():
    of = claim(quantity="lm_perplexity", printed=-1.5, paper="Li 2021, table 4.2: 8.5 perplexity, BASE 10.0")
    finding = Finding(of, PERPLEXITIES, Interval(15.5, -54.4, 85.4, 0.2, 2), [])
    error = math.log(1.1) / 2  # of the mean of ln 1.1 and 2 ln 1.1
    middle, half = 1.5 * math.log(1.1), 12.7062047 * error
    expected = [100 * math.expm1(each) for each in (middle, middle - half, middle + half)]
    assert percent(finding) == pytest.approx(expected)
    assert of.printed_values == (8.5, 10.0)
    assert printed_percent(of) == pytest.approx(-15)
    assert percent(finding._replace(claim=of._replace(quantity="bleu"))) is None
    assert printed_percent(of._replace(quantity="bleu")) is None
    assert percent(finding._replace(values={1: (110.0, 100.0), 2: (110.0, 100.0)})) is None
    alone = finding._replace(claim=of._replace(baseline=""), values={1: (110.0, 0.0), 2: (121.0, 0.0)})
    losses = finding._replace(claim=of._replace(row_minus="c"), values={1: (-1.0, 2.0), 2: (1.0, 3.0)})
    assert percent(alone) is None and percent(losses) is None


@pytest.mark.parametrize(
    ("printed", "said"),
    [
        ([0.2], "1 is undecided"),
        ([0.9], "1 is undecided (the paper's difference is excluded)"),
        ([0.2, 0.9, 0.1], "3 are undecided (for 1 of them the paper's difference is excluded)"),
        ([0.9, 0.2, 0.8], "3 are undecided (for 2 of them the paper's difference is excluded)"),
        ([0.9, 0.8], "2 are undecided (for each of them the paper's difference is excluded)"),
    ],
)
def test_undecided_claims_are_counted_with_the_papers_differences_that_are_excluded(printed, said):
    interval = Interval(0.0, -0.5, 0.5, 0.5, 3, 20)
    found = [
        Finding(
            claim(name=f"c{number}", paper="Wu 2020", kind="secondary", printed=each),
            dict.fromkeys((1, 2, 3), (0, 0)),
            interval,
            [],
        )
        for number, each in enumerate(printed)
    ]
    assert by_paper(Findings(found, {})).splitlines()[-1] == f"| Wu 2020 | {said} |"


def test_claims_are_counted_by_paper_and_by_what_was_found():
    def found(name, paper, kind="primary", low=0.5, **changes):
        of = claim(name=name, paper=paper, kind=kind)
        interval = Interval(low + 0.5, low, low + 1, 0.5, 3, 20)
        return Finding(of, {1: (0, 0), 2: (0, 0), 3: (0, 0)}, interval, [])._replace(**changes)

    all_of_them = [
        found("a", "Wu 2020, table 1"),
        found("f", "No place: it is ours", kind="secondary"),
        found("b", "Li 2021, figure 2"),
        found("h", "Li 2021, figure 3"),
        found("j", "Li 2021, figure 3"),
        found("k", "Li 2021, figure 4", low=0.1),
        found("c", "Wu 2020"),
        found("d", "Wu 2020, table 2", missing=[3]),
        found("e", "Wu 2020, table 3", kind="secondary", low=-0.5),
        found("i", "Wu 2020, table 3", kind="secondary", low=-2.0),
        found("g", "no paper has it", kind="secondary", missing=[1, 2]),
    ]
    all_of_them = [
        each._replace(claim=each.claim._replace(margin=5.0)) if each.claim.name in "hjk" else each
        for each in all_of_them
    ]
    all_of_them = [
        each._replace(interval=each.interval._replace(low=-0.1)) if each.claim.name == "h" else each
        for each in all_of_them
    ]
    p = {"a": (0.01, 0.99), "b": (0.4, 0.6), "c": (0.01, 0.99), "d": (None, None)}
    p |= dict.fromkeys("hjk", (0.99, 0.01))
    lines = by_paper(Findings(all_of_them, p)).splitlines()
    assert lines[0] == "| paper | primary claims | secondary claims |"
    assert lines[2:] == [
        "| Wu 2020 | 2 of 3 done: 2 hold | 1 is the opposite, 1 is undecided |",
        "| Li 2021 | 1 fails, 2 fail, but have the claimed direction, 1 is open |  |",
        "| questions of our own |  | 1 of 2 done: 1 is as claimed |",
    ]


@pytest.mark.parametrize(
    ("value", "names"),
    [(None, []), ("", []), ("/a/b.so", ["b.so"]), ("b.so:/a/c.so /d/e.so", ["b.so", "c.so", "e.so"])],
)
def test_a_record_names_preloaded_libraries_without_their_folders(monkeypatch, value, names):
    monkeypatch.delenv("LD_PRELOAD", raising=False)
    if value is not None:
        monkeypatch.setenv("LD_PRELOAD", value)
    assert preloaded_libraries() == names


@pytest.mark.parametrize(
    ("low", "said"),
    [(-3.0, "1 fails, but has the claimed direction"), (-1.0, "1 fails"), (1.0, "1 fails")],
)
def test_a_claim_below_fails_in_its_direction_if_the_interval_is_below_0(low, said):
    of = claim(name="a", paper="Li 2021", expected="below", margin=5.0)
    interval = Interval(low + 1, low, low + 2, 0.5, 3, 20)
    finding = Finding(of, {seed: (0, 0) for seed in (1, 2, 3)}, interval, [])
    assert f"| Li 2021 | {said} |" in by_paper(Findings([finding], {"a": (0.99, 0.01)}))
    # a claim about a single row, and one without a margin, have no direction beside what they claim
    for changes in ({"baseline": ""}, {"margin": 0.0}):
        other = finding._replace(claim=of._replace(**changes))
        assert "| Li 2021 | 1 fails |" in by_paper(Findings([other], {"a": (0.99, 0.01)}))


def test_points_within_epochs_are_no_ends_of_epochs():
    (record,) = records("a", (2,)).values()
    record["curves"]["valid"]["ppl"] = [[10 * epoch, 10.0 - epoch] for epoch in range(1, 8)]
    record["curves"]["train_inner"] = {"ppl": [[5 * point, 99.0] for point in range(1, 14)]}
    assert QUANTITIES["early_perplexity"].of(record, "multi30k/a") == 5.0


def test_a_higher_perplexity_of_the_paper_is_a_positive_percentage():
    higher = claim(quantity="lm_perplexity", printed=2.0, paper="Li 2021: 12.0, baseline 10.0")
    assert printed_percent(higher) == pytest.approx(20.0)


def test_the_example_of_a_claim_in_the_documents_is_accepted(tmp_path):
    example = re.search(r"```yaml\n(commit: .*?)```", (ROOT / "docs/evidence.md").read_text(), re.S)
    path = tmp_path / "claims.yaml"
    path.write_text(example[1])
    plan = Plan(read_claims(path), str(tmp_path), str(tmp_path))
    assert [job.run.name.rpartition("/")[0] for job in plan.jobs] == [
        *["multi30k/base", "multi30k/mae-7-source"] * 3
    ]


def test_the_page_explains_the_intervals_of_its_own_quantities(tmp_path):
    assert page.PARTS.keys() == set(OF_PARTS)
    texts = {}
    for folder in ("results", "results/narrow"):
        plan = Plan(read_claims(ROOT / folder / "claims.yaml"), str(tmp_path), str(tmp_path))
        found = [Finding(each, {}, None, []) for each in plan.register.claims if each.kind == "secondary"]
        texts[folder] = page._about(plan, found)
    for told in (*page.PARTS.values(), page.PERCENT, "Table `tim-2` and Table `tim-2-glue` are measured"):
        assert told in texts["results"] and told not in texts["results/narrow"]


def test_a_text_about_the_runs_that_is_not_utf_8_is_refused(tmp_path):
    (tmp_path / "about.md").write_bytes(b"\xe4")
    plan = Plan(read_claims(written(tmp_path, SPEC | {"claims": []})), str(tmp_path), str(tmp_path))
    with pytest.raises(UsageError, match=r"about\.md: cannot be read .*; write it in UTF-8, or remove it"):
        page.page(plan, {}, "page")


def test_the_documents_name_the_primary_claims_with_rows_that_were_trained_anew(tmp_path):
    register = read_claims(ROOT / "results/claims.yaml")
    plan = Plan(register, str(tmp_path), str(tmp_path))
    anew = {row for change in register.changes for row in change.rows}
    primary = {claim.name for claim in register.claims if claim.kind == "primary"}
    found = {name for job in plan.jobs for name in job.claims if row_of(job.run) in anew and name in primary}
    text = (ROOT / "docs/evidence.md").read_text()
    said = re.search(r"This does not hold for (\w+) of the (\w+): (.*?) have\s+rows", text, re.S)
    assert set(re.findall("`(.*?)`", said[3])) == found
    assert (said[1], said[2]) == ("five", "nine") and (len(found), len(primary)) == (5, 9)
