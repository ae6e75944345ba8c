"""Intervals for the difference between two systems, over seeds and over sentences together.

Other seeds would give other weights, and another test set would have other sentences. A difference between
systems that is to hold for both has an interval that accounts for both. The paired bootstrap and Welch's test
(`scoring/significance.py`) each account for one of them.

Let D_si be the difference of the two systems with seed s on sentence i. The model is

    D_si = mu + A_s + B_i + E_si

with independent effects of mean 0: of seeds, of sentences, and of both together. With n seeds and m
sentences, the mean of D has the variance V = var(A) / n + var(B) / m + var(E) / (n m). Its estimate is

    V = (MS_A + max(MS_B - MS_E, 0)) / (n m)

where MS_A, MS_B and MS_E are the mean squares of the two-way analysis of variance. MS_A has n - 1 degrees of
freedom, few, and MS_B has m - 1, many. No quantile is exact for such a sum. The t quantile with
Satterthwaite's degrees of freedom covers too little if there are 3 seeds (92 % in place of 95 % where seeds
dominate), and the quantile of Behrens and Fisher covers too much (98 % where sentences matter as much as
seeds). A mean of the two probabilities, with weights of .4 and .6, covers 94 to 97 % if there are three seeds
or more, and 93 to 98 % if there are two. A test simulates both.

MS_E is not above MS_A in expectation. With few seeds MS_A itself can be far below MS_E, and then the interval
can be narrower than the choice of sentences alone would make it for these models. The simulated coverage
includes such cases, but among them alone it is lower. Tables therefore mark them (`Interval.mark`).

A score of a corpus, such as BLEU, is no mean over sentences. The jackknife makes it about one: the
pseudo-value of sentence i is m f - (m - 1) f_i, where f is the score of all sentences and f_i the score
without i. Where a translation is hardly longer than its reference, a sentence more or less decides whether
BLEU's brevity penalty applies, and the mean of the pseudo-values can be far from the score. MS_A is therefore
computed from the scores, and MS_B and MS_E from the pseudo-values.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean
from typing import NamedTuple, cast

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics.base import Metric
from scipy.special import ndtr, ndtri, stdtr, stdtrit

LEVEL = 0.95
ROUNDING = 1e-12  # of differences of scores, relative to 1 or to larger differences
ROUNDING_OF_HALF = 1e-9  # of half of the width of an interval
Floats = NDArray[np.float64]
Scored = tuple[float, Floats]  # a score and its pseudo-values
UNIFORM, WEIGHTS = np.polynomial.legendre.leggauss(100)
UNIFORM, WEIGHTS = (UNIFORM + 1) / 2, WEIGHTS / 2  # to integrate over 0..1
NORMAL = ndtri(UNIFORM)
MARKED = (
    "An interval with † may be too narrow: the choice of test data alone, with these trained models, gives a "
    "wider one."
)


class Interval(NamedTuple):
    """A difference with its 95 % interval.

    Args:
        difference: the difference of the means.
        low, high: the limits of the interval.
        p_value: the two-sided p of the hypothesis that the difference is 0: the interval with the level
            1 - p ends at 0.
        seeds: the number of pairs of seeds.
        sentences: the number of sentences that the interval accounts for; 0: it accounts for seeds alone.
        half_by_sentences: half of the width of the interval that accounts for sentences alone, as if no other
            seeds could be drawn; 0 if `sentences` is 0.
    """

    difference: float
    low: float
    high: float
    p_value: float
    seeds: int
    sentences: int = 0
    half_by_sentences: float = 0.0

    @property
    def mark(self) -> str:
        """What follows the interval in a table: "†" if it is narrower than sentences alone would make it."""
        half = (self.high - self.low) / 2
        return "†" if half < self.half_by_sentences * (1 - ROUNDING_OF_HALF) else ""

    def limits(self, pattern: str) -> str:
        """Return the interval and its mark, such as "[+0.10, +1.30]†" with the pattern "{:+.2f}"."""
        return f"[{pattern.format(self.low)}, {pattern.format(self.high)}]{self.mark}"

    def shown(self, pattern: str) -> str:
        """Return the difference with its interval and mark, such as "+0.70 [+0.10, +1.30]†"."""
        return f"{pattern.format(self.difference)} {self.limits(pattern)}"


def notes_on(intervals: Iterable[Interval | None]) -> list[str]:
    """Return the sentence that explains the mark, if an interval has it."""
    return [MARKED] if any(each.mark for each in intervals if each) else []


def over_seeds(differences: Sequence[float]) -> Interval | None:
    """Return the interval of Student's t over pairs of seeds.

    It accounts for training noise. What was measured on is fixed, such as a test set. The result is None if
    there are fewer than two pairs. It is None, too, if all differences are equal within the rounding of
    floats, as such seeds say nothing about the noise of others.

    Args:
        differences: the difference of each pair of seeds.
    """
    n = len(differences)
    if n < 2:
        return None
    values = np.asarray(differences, dtype=np.float64)
    if np.ptp(values) <= ROUNDING * max(1.0, np.abs(values).max()):
        return None
    error = float(values.std(ddof=1)) / math.sqrt(n)
    return _interval(float(values.mean()), error, lambda x: float(2 * stdtr(n - 1, -x)), n)


def over_seeds_and_sentences(differences: Sequence[float], by_sentence: Floats) -> Interval | None:
    """Return the interval of the mixed model of seeds and sentences, or None for fewer than two of either.

    Args:
        differences: the difference in score of each pair of seeds.
        by_sentence: the differences of the pseudo-values [pairs of seeds, sentences]; see `pseudo_values`.

    Raises:
        ValueError: the number of pairs differs between the two.
    """
    n, m = by_sentence.shape
    if len(differences) != n:
        raise ValueError(f"{len(differences)} differences of scores, and {n} rows of pseudo-values")
    if n < 2 or m < 2:
        return None
    of_seeds, of_sentences = by_sentence.mean(axis=1), by_sentence.mean(axis=0)
    rest = by_sentence - of_seeds[:, None] - of_sentences[None] + by_sentence.mean()
    seeds = m * float(np.var(differences, ddof=1))
    both = float((rest**2).sum()) / ((n - 1) * (m - 1))
    sentences = max(n * float(of_sentences.var(ddof=1)) - both, 0.0)
    error = math.sqrt((seeds + sentences) / (n * m))
    share = seeds / (seeds + sentences) if seeds else 0.0

    def tail(x: float) -> float:
        return _tail(x, share, n, m)

    alone = _interval(0.0, math.sqrt(float(of_sentences.var(ddof=1)) / m), lambda x: _tail(x, 0.0, n, m), n)
    return _interval(fmean(differences), error, tail, n, m)._replace(half_by_sentences=alone.high)


def of_scores(
    metric: Metric, by_seed: Sequence[Sequence[tuple[Sequence[str], Sequence[str]]]]
) -> Interval | None:
    """Return the interval of the difference in a score, over seeds and sentences.

    Args:
        metric: sacrebleu's metric, which knows its references.
        by_seed: for each seed the translations of the baseline and of the system. If there are several such
            pairs, their mean counts.
    """
    return over_pairs(
        [
            [(pseudo_values(metric, theirs), pseudo_values(metric, ours)) for theirs, ours in pairs]
            for pairs in by_seed
        ]
    )


def over_pairs(by_seed: Sequence[Sequence[tuple[Scored, Scored]]]) -> Interval | None:
    """Return the interval of the difference in a score, over seeds and parts of the test data.

    Args:
        by_seed: for each seed the baseline and the system, each with its score and its pseudo-values
            [sentences] (see `jackknife`). If there are several such pairs, their mean counts.

    Returns:
        The interval. It is None if there are fewer than two seeds or parts, or if a score is NaN, with or
        without one of the parts.
    """
    differences, values = [], []
    for pairs in by_seed:
        differences.append(fmean(ours - theirs for (theirs, _), (ours, _) in pairs))
        values.append(np.mean([ours - theirs for (_, theirs), (_, ours) in pairs], axis=0))
    if not np.isfinite([*differences, *np.ravel(values)]).all():
        return None
    return over_seeds_and_sentences(differences, np.stack(values))


def sentence_counts(metric: Metric, hypotheses: Sequence[str]) -> Floats:
    """Return the counts [sentences, counts] whose sums over sentences are all that a metric depends on."""
    # sacrebleu offers them to its own bootstrap only, by this method and the one in `pseudo_values`.
    return np.asarray(metric._extract_corpus_statistics(list(hypotheses), None), dtype=np.float64)


def pseudo_values(metric: Metric, hypotheses: Sequence[str]) -> Scored:
    """Return the score of a translation, and the pseudo-value of each sentence [sentences].

    Args:
        metric: sacrebleu's metric, which knows its references.
        hypotheses: the translations.
    """

    def score(counts: Floats) -> float:
        return float(metric._compute_score_from_stats(cast(list, counts.tolist())).score)

    return jackknife(sentence_counts(metric, hypotheses), score)


def jackknife(statistics: Floats, score: Callable[[Floats], float]) -> Scored:
    """Return the score of a corpus, and the jackknife's pseudo-value of each of its parts.

    The mean of the pseudo-values is about the score, unless the score has a kink near these sums, as BLEU has
    where the lengths of translation and reference are equal.

    Args:
        statistics: numbers [parts, n], such as those of sentences, whose sums decide the score.
        score: returns the score for sums [n].
    """
    whole, m = statistics.sum(axis=0), len(statistics)
    without = np.array([score(whole - each) for each in statistics])
    return score(whole), m * score(whole) - (m - 1) * without


def _interval(
    difference: float, error: float, tail: Callable[[float], float], seeds: int, sentences: int = 0
) -> Interval:
    """Return the interval and the p of a difference.

    Args:
        difference: the difference.
        error: its standard error.
        tail: the probability that |difference| / error exceeds a number, if the expected difference is 0.
        seeds, sentences: as for `Interval`.
    """
    low, high = 0.0, 1.0
    while tail(high) > 1 - LEVEL:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tail(middle) > 1 - LEVEL else (low, middle)
    half = high * error
    of_no_error = 0.0 if difference else 1.0
    p_value = tail(abs(difference) / error) if error else of_no_error
    return Interval(difference, difference - half, difference + half, p_value, seeds, sentences)


def _tail(x: float, share: float, seeds: int, sentences: int) -> float:
    """Return the probability that |difference| / error exceeds x; see the module's docstring.

    Args:
        x: the ratio.
        share: the share of the seeds in the variance.
        seeds, sentences: their numbers.
    """
    freedom = 1 / (share**2 / (seeds - 1) + (1 - share) ** 2 / (sentences - 1))
    return 0.4 * float(2 * stdtr(freedom, -x)) + 0.6 * _behrens_fisher(x, share, seeds - 1)


def _behrens_fisher(x: float, share: float, freedom: int) -> float:
    """Return P(|a T + b Z| > x), where a² = share and b² = 1 - share.

    T has Student's distribution with `freedom` degrees of freedom, and Z is standard normal. If one of both
    is given, the probability of the other is known. The narrower one is integrated over.
    """
    a, b = math.sqrt(share), math.sqrt(1 - share)
    if share > 0.5:
        upper, lower = x - b * NORMAL, -x - b * NORMAL
        return float(WEIGHTS @ (stdtr(freedom, lower / a) + stdtr(freedom, -upper / a)))
    given = a * stdtrit(freedom, UNIFORM)
    return float(WEIGHTS @ (ndtr((-x - given) / b) + ndtr((given - x) / b)))
