"""Test the intervals over seeds and sentences, by simulation with a known truth."""

import math
from argparse import Namespace

import numpy as np
import pytest
from sacrebleu.metrics import BLEU, CHRF, TER
from scipy.special import stdtr
from scipy.stats import norm, t, ttest_1samp

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import (
    _behrens_fisher,
    jackknife,
    of_scores,
    over_pairs,
    over_seeds,
    over_seeds_and_sentences,
    pseudo_values,
)
from modular_fairseq_cli.scoring.significance import bootstrap_p
from tests.places import ROOT
from tests.scripts import script

SENTENCES = 60
REPEATED = {2: 2000, 3: 6000, 5: 1000, 10: 600}  # seeds, and simulations; few seeds are the hard case


def simulated(seeds: int, seed_noise: float, rest: float) -> np.ndarray:
    """Return differences [REPEATED[seeds], seeds, SENTENCES] of two systems whose true difference is 0.

    The mean over sentences has the standard error 1 by the choice of sentences, and the mean over seeds
    `seed_noise`; `rest` is that of both together.
    """
    count = REPEATED[seeds]
    random = np.random.default_rng([seeds, int(10 * seed_noise), int(10 * rest)])
    of_seeds = random.normal(0, 1, (count, seeds, 1)) * seed_noise * math.sqrt(seeds)
    of_sentences = random.normal(0, 1, (count, 1, SENTENCES)) * math.sqrt(SENTENCES)
    both = random.normal(0, 1, (count, seeds, SENTENCES)) * rest * math.sqrt(SENTENCES)
    return of_seeds + of_sentences + both


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
@pytest.mark.parametrize("seed_noise", [0.4, 1, 3])
@pytest.mark.parametrize("rest", [0.3, 2])
def test_intervals_over_seeds_and_sentences_cover_the_truth(seeds, seed_noise, rest):
    found = [over_seeds_and_sentences(each.mean(axis=1), each) for each in simulated(seeds, seed_noise, rest)]
    covered = np.mean([each.low <= 0 <= each.high for each in found])
    least, most = (0.92, 0.99) if seeds == 2 else (0.93, 0.97)
    assert least <= covered <= most
    false_positives = np.mean([each.p_value < 0.05 for each in found])
    assert false_positives == pytest.approx(1 - covered) and false_positives <= (0.08 if seeds == 2 else 0.06)


def test_the_power_is_that_of_the_page_about_evidence(monkeypatch, capsys):
    power = script("power")
    monkeypatch.setattr(power, "REPEATED", 1000)
    values = {"seeds": 5, "seed_noise": 0.5, "sentence_error": 0.41, "common": 0.2}
    page = " ".join((ROOT / "docs/evidence.md").read_text().split())
    assert "half of the cases at a true difference of 0.62 BLEU, and in 80 % at 0.96." in page
    assert "Holm's order needs 1.15 and 1.61 (`python scripts/power.py --alpha .00556`)" in page
    for alpha, means in ((0.05, (0, 0.62, 0.96)), (0.05 / 9, (0, 1.15, 1.61))):
        none, half, most = (power.power_of(mean, Namespace(alpha=alpha, **values)) for mean in means)
        assert abs(none - alpha) < 0.02 and abs(half - 0.5) < 0.05 and abs(most - 0.8) < 0.05
    monkeypatch.setattr(power, "REPEATED", 20)
    monkeypatch.setattr("sys.argv", ["power.py", "--seed-noise", "0.01", "--common", "0"])
    power.main()
    first, second = capsys.readouterr().out.splitlines()
    assert float(first.split()[3]) < float(second.split()[3]) < 1  # sentences alone: .41 / sqrt(5) = .18
    monkeypatch.setattr("sys.argv", ["power.py", "--seed-noise", "300", "--common", "0"])
    power.main()
    assert float(capsys.readouterr().out.split()[3]) > 100
    monkeypatch.setattr("sys.argv", ["power.py", "--errors"])
    power.main()
    told = capsys.readouterr().out.partition("sentences ")[2].split()
    number, low, high, middle = told[1], told[5], told[7].rstrip(","), told[9]
    assert f"in the {number} pairs of runs that had records" in page
    monkeypatch.setattr("sys.argv", ["power.py", "--errors", "--alpha", "0.01"])
    with pytest.raises(SystemExit):
        power.main()
    assert "--alpha has no effect with --errors; leave one of them out" in capsys.readouterr().err
    read = power.read_record

    def elsewhere(results, name):
        record = read(results, name)
        return record and record | {"made": {"device": "cuda" if "/base/" in name else "cpu"}}

    monkeypatch.setattr(power, "read_record", elsewhere)
    assert 0 < len(power.errors()) < int(number)  # pairs on two devices do not count
    assert f"of {low} to {high} BLEU, with a median of {middle}," in page
    monkeypatch.setattr("sys.argv", ["power.py", "--seeds", "1"])
    with pytest.raises(SystemExit) as error:
        power.main()
    assert (
        error.value.code == 2
        and "--seeds 1: give a number of pairs of trainings, at least 2" in capsys.readouterr().err
    )


@pytest.mark.parametrize("seeds", [2, 3, 5, 10])
def test_the_interval_over_seeds_is_students(seeds):
    values = np.random.default_rng(seeds).normal(0.3, 1, seeds)
    expected = ttest_1samp(values, 0)
    found = over_seeds(values)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert (found.low, found.high) == pytest.approx(expected.confidence_interval(0.95), rel=1e-9)
    assert (found.difference, found.seeds, found.sentences) == (pytest.approx(values.mean()), seeds, 0)


def test_a_single_seed_or_sentence_has_no_interval():
    assert over_seeds([1.0]) is None and over_seeds([]) is None
    assert over_seeds_and_sentences([1.0], np.ones((1, 9))) is None
    with pytest.raises(ValueError, match="3 differences of scores, and 2 rows"):
        over_seeds_and_sentences([1.0, 2.0, 3.0], np.ones((2, 9)))
    assert over_seeds_and_sentences([1.0, 2.0], np.ones((2, 1))) is None


@pytest.mark.parametrize("seeds", [2, 3, 6])
def test_if_only_seeds_differ_the_interval_is_students(seeds):
    of_seeds = np.random.default_rng(seeds).normal(0.5, 1, seeds)
    found = over_seeds_and_sentences(of_seeds, np.repeat(of_seeds[:, None], 40, axis=1))
    assert found[:4] == pytest.approx(over_seeds(of_seeds)[:4], rel=1e-6)


def test_if_only_sentences_differ_the_interval_is_that_of_their_mean():
    of_sentences = np.random.default_rng(1).normal(0.1, 1, 400)
    found = over_seeds_and_sentences([of_sentences.mean()] * 3, np.repeat(of_sentences[None], 3, axis=0))
    assert found.p_value == pytest.approx(ttest_1samp(of_sentences, 0).pvalue, rel=0.02)
    half = norm.ppf(0.975) * of_sentences.std(ddof=1) / 20
    assert found.high - found.difference == pytest.approx(half, rel=0.01) and not found.mark


def test_an_interval_that_is_narrower_than_by_sentences_alone_is_marked():
    random = np.random.default_rng(1)
    rest = random.normal(0, 3, (3, SENTENCES))
    rest -= rest.mean(axis=1, keepdims=True)  # so that all seeds have the same mean
    agreeing = over_seeds_and_sentences([0.1, 0.1, 0.1001], 0.1 + rest)
    alone = ttest_1samp(rest.mean(axis=0), 0).confidence_interval(0.95)
    assert agreeing.half_by_sentences == pytest.approx((alone.high - alone.low) / 2, rel=0.02)
    assert (agreeing.high - agreeing.low) / 2 < agreeing.half_by_sentences and agreeing.mark == "†"
    differing = over_seeds_and_sentences([0, 1, 2], rest + [[0], [1], [2]])
    assert differing.half_by_sentences == pytest.approx(agreeing.half_by_sentences)
    assert (differing.high - differing.low) / 2 > differing.half_by_sentences and not differing.mark
    of_seeds = over_seeds([0, 0.001, 0.002])
    assert of_seeds.half_by_sentences == 0 and not of_seeds.mark


def test_marked_intervals_cover_the_truth_less_often():
    found = [
        over_seeds_and_sentences(each.mean(axis=1), each)
        for seed_noise in (0.4, 1)
        for each in simulated(3, seed_noise, 2)[:1500]
    ]
    marked, others = (
        np.mean([each.low <= 0 <= each.high for each in found if bool(each.mark) == is_marked])
        for is_marked in (True, False)
    )
    assert 0.78 <= marked <= 0.9 < others


def test_systems_that_are_equal_have_p_1():
    found = over_seeds_and_sentences([0.0, 0.0], np.zeros((2, 9)))
    assert (found.low, found.high, found.p_value) == (0, 0, 1)
    assert over_seeds([2.0, 2.0]) is None and over_seeds([0.4 - 0.3 - 0.1, 0.0]) is None  # but for rounding


@pytest.mark.parametrize("share", [0.0, 1e-9, 0.2, 0.5, 0.51, 0.9, 1.0])
@pytest.mark.parametrize("freedom", [1, 2, 9])
def test_the_distribution_of_behrens_and_fisher(share, freedom):
    random = np.random.default_rng(1)
    drawn = math.sqrt(share) * random.standard_t(freedom, 400_000)
    drawn += math.sqrt(1 - share) * random.normal(size=400_000)
    for x in (0.1, 1, 2, 5):
        expected = np.mean(abs(drawn) > x)
        assert _behrens_fisher(x, share, freedom) == pytest.approx(expected, abs=4e-3)
    if share in (0, 1):
        for x in (0.5, 6):
            exact = 2 * norm.sf(x) if share == 0 else 2 * t.sf(x, freedom)
            assert _behrens_fisher(x, share, freedom) == pytest.approx(exact, rel=1e-9)


@pytest.fixture
def text():
    random = np.random.default_rng(1)
    words = ["a", "b", "c", "d", "e", "f", "g"]
    lines = [" ".join(random.choice(words, random.integers(3, 12))) for _ in range(30)]

    def changed(share):
        return [" ".join(word if random.random() > share else "x" for word in line.split()) for line in lines]

    return lines, [changed(0.3) for _ in range(3)], [changed(0.2) for _ in range(3)]


@pytest.mark.parametrize("metric", [BLEU, CHRF, TER])
def test_pseudo_values_leave_out_one_sentence_after_the_other(text, metric):
    lines, (hypotheses, *_), _ = text
    score, values = pseudo_values(metric(references=[lines]), hypotheses)
    assert score == metric().corpus_score(hypotheses, [lines]).score
    for i, value in enumerate(values):
        rest = [each[:i] + each[i + 1 :] for each in (hypotheses, lines)]
        without = metric().corpus_score(rest[0], [rest[1]]).score
        assert value == pytest.approx(30 * score - 29 * without, abs=1e-9)
    assert values.mean() == pytest.approx(score, abs=0.5)


def test_the_interval_of_a_score(text):
    lines, baseline, system = text
    metric = BLEU(references=[lines])
    found = of_scores(metric, [[pair] for pair in zip(baseline, system, strict=True)])
    scores = [[metric.corpus_score(each, None).score for each in side] for side in (baseline, system)]
    assert found.difference == pytest.approx(np.mean(scores[1]) - np.mean(scores[0]))
    assert found.low < found.difference < found.high and (found.seeds, found.sentences) == (3, 30)
    # Several pairs of a seed are averaged, and do not count as seeds.
    twice = [[pair, pair] for pair in zip(baseline, system, strict=True)]
    assert of_scores(metric, twice) == pytest.approx(found)
    assert of_scores(metric, [list(zip(baseline, system, strict=True))]) is None


def test_the_noise_of_seeds_is_the_one_of_scores_where_pseudo_values_have_another_mean():
    """BLEU has a kink where translation and reference have one length; without a sentence it is crossed."""

    def score(sums):
        translated, reference = sums
        return 100 * min(1.0, translated / reference)

    lengths = np.full((40, 2), 10.0)
    lengths[0, 0] = 15.0  # a sentence that is too long; without it the translation is too short
    lengths[1, 0] = 6.0
    whole, pseudo = jackknife(lengths, score)
    assert whole == 100 and pseudo.mean() > 100.5
    rest = np.random.default_rng(1).normal(0, 1, (3, 40))
    rest -= rest.mean(axis=1, keepdims=True)
    differences = [100.0, 100.5, 101.5]
    sums = np.array(differences)[:, None] + rest
    expected = over_seeds_and_sentences(differences, sums)
    sums[0] += pseudo.mean() - whole
    assert over_seeds_and_sentences(differences, sums) == pytest.approx(expected)


def test_the_jackknife_of_a_mean_has_the_values_themselves():
    values = np.random.default_rng(1).normal(5, 1, size=(40, 1))
    score, pseudo = jackknife(values, lambda sums: float(sums[0]) / 40)
    without = [np.delete(values, k).sum() / 40 for k in range(40)]
    assert score == pytest.approx(values.mean())
    assert pseudo == pytest.approx([40 * score - 39 * each for each in without])


def test_the_bootstrap_finds_a_difference_that_all_documents_have():
    """Each part has a sum and a count; the score is the exponential of their ratio, as of perplexity."""

    def score(sums):
        return np.exp(sums[..., 0] / sums[..., 1])

    random = np.random.default_rng(2)
    counts = random.integers(50, 500, size=30)
    baseline = np.stack([counts * random.normal(4, 0.2, size=30), counts], axis=1).astype(float)
    better, noisy = baseline.copy(), baseline.copy()
    better[:, 0] -= 0.02 * counts * random.uniform(0.5, 1.5, size=30)
    noisy[:, 0] += counts * random.normal(0, 0.05, size=30)
    assert bootstrap_p(baseline, better, score, 400) == pytest.approx(1 / 401)
    assert bootstrap_p(baseline, noisy, score, 400) > 0.05
    assert bootstrap_p(baseline, baseline, score, 400) == 1.0
    assert bootstrap_p(baseline[:1], better[:1], score, 400) is None
    with pytest.raises(UsageError, match="--samples 0"):
        bootstrap_p(baseline, better, score, 0)


def test_there_is_no_p_if_a_resample_has_no_score():
    """A resample without any word has no mean."""
    rare = np.array([[3.0, 1.0], [0.0, 0.0], [0.0, 0.0]])
    with np.errstate(invalid="ignore"):
        assert bootstrap_p(rare, rare * [[2.0, 1.0]], lambda sums: sums[..., 0] / sums[..., 1], 200) is None


def test_the_bootstrap_rejects_a_true_null_hypothesis_as_often_as_its_level_says():
    random, rejected = np.random.default_rng(3), 0
    for _ in range(400):
        noise = random.normal(0, 1, size=(25, 2))
        parts = [np.stack([100 + noise[:, k], np.full(25, 20.0)], axis=1) for k in (0, 1)]
        p = bootstrap_p(*parts, lambda sums: sums[..., 0] / sums[..., 1], 300)
        rejected += p < 0.05
    assert 0.02 <= rejected / 400 <= 0.1


def test_a_difference_without_any_noise_has_p_0():
    found = over_seeds_and_sentences([0.5, 0.5], np.full((2, 9), 0.5))
    assert (found.low, found.high, found.p_value) == (0.5, 0.5, 0)


def test_rounding_is_relative_to_the_values():
    assert over_seeds([(0.1 + 0.2) * 1e5, 0.3 * 1e5]) is None


def test_the_p_is_that_of_the_mean_squares():
    """With an interaction of seeds and sentences, which belongs to neither."""
    n, m = 3, 8
    d = np.random.default_rng(7).normal(0, 1, (n, m)) + np.arange(n)[:, None] * 0.5 + np.arange(m) * 0.3
    rows, columns, mean = d.mean(1), d.mean(0), d.mean()
    of_seeds, of_sentences = m * rows.var(ddof=1), n * columns.var(ddof=1)
    both = ((d - rows[:, None] - columns + mean) ** 2).sum() / ((n - 1) * (m - 1))
    extra = max(of_sentences - both, 0)
    assert extra > 0 and both > 0
    share, x = of_seeds / (of_seeds + extra), abs(mean) / math.sqrt((of_seeds + extra) / (n * m))
    freedom = 1 / (share**2 / (n - 1) + (1 - share) ** 2 / (m - 1))
    expected = 0.4 * 2 * stdtr(freedom, -x) + 0.6 * _behrens_fisher(x, share, n - 1)
    assert over_seeds_and_sentences(list(rows), d).p_value == pytest.approx(expected)


def test_several_pairs_of_a_seed_count_by_their_mean():
    random = np.random.default_rng(1)
    pairs = [
        [((1.0, random.normal(1, 1, 9)), (2.0, random.normal(2, 1, 9))) for _ in range(2)] for _ in range(3)
    ]
    means = []
    for each in pairs:
        ours, theirs = zip(*each, strict=True)
        means.append([tuple((side[0][0], np.mean([a[1] for a in side], axis=0)) for side in (ours, theirs))])
    assert over_pairs(pairs) == pytest.approx(over_pairs(means))


def test_the_p_of_the_bootstrap_is_by_its_formula():
    random = np.random.default_rng(5)
    baseline = np.stack([random.normal(100, 10, 12), np.full(12, 20.0)], axis=1)
    system = baseline.copy()
    system[:, 0] += random.normal(4, 6, 12)

    def score(sums):
        return np.exp(sums[..., 0] / sums[..., 1])

    drawn = np.random.default_rng(12345).integers(12, size=(500, 12))
    differences = np.array([score(system[each].sum(0)) - score(baseline[each].sum(0)) for each in drawn])
    real = score(system.sum(0)) - score(baseline.sum(0))
    expected = (1 + sum(abs(differences - differences.mean()) > abs(real))) / 501
    assert 0.01 < expected < 0.5
    assert bootstrap_p(baseline, system, score, 500) == pytest.approx(expected)
