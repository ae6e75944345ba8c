"""Test whether the difference between two systems is significant.

A difference that holds must pass both tests, because they answer different questions.

The paired bootstrap (sacrebleu's; Koehn 2004) concerns the sentences: would these two sets of weights show
the difference on another test set of the same kind? Its p is about how often the choice of sentences alone
produces a difference as large as this one. It knows nothing of training noise: two seeds of one system may
well differ "significantly".

Welch's t-test over seeds concerns training: would other seeds show the difference of the means on this test
set? It knows nothing of the choice of sentences. With two or three seeds it detects only large differences.
"""

import math
import os
from collections.abc import Callable, Iterable, Sequence
from statistics import fmean, stdev, variance
from typing import cast

import numpy as np
from sacrebleu.significance import PairedTest, Result
from scipy.special import stdtr

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import Floats
from modular_fairseq_cli.scoring.metrics import METRICS, References, each_reference, make_metrics


def paired_bootstrap(
    references: References,
    baseline: Sequence[str],
    systems: Sequence[Sequence[str]],
    samples: int = 1000,
    *,
    names: Iterable[str] = ("bleu",),
    lowercase: bool = False,
    tokenize: str | None = None,
    language: str | None = None,
) -> list[dict[str, dict]]:
    """Compare systems with a baseline by sacrebleu's paired bootstrap.

    The results equal those of `sacrebleu REFERENCE -i BASELINE SYSTEM ... -m NAME ... --paired-bs
    --paired-bs-n SAMPLES`. As there, the environment variable SACREBLEU_SEED is the seed (default: 12345).

    Args:
        references: the lines of one reference, or of several.
        baseline: translations of the baseline, one for each line of the reference.
        systems: translations of each system, one for each line of the reference.
        samples: number of resamples of the test set.
        names, lowercase, tokenize, language: as for `make_metrics`.

    Returns:
        For each system a dictionary, keyed by the name of the metric, of dictionaries with these keys:
        score, baseline, difference (score - baseline), mean and ci (over the resamples; ci is half of the
        95 % interval), p_value, samples, signature. If the translations of a system equal the baseline's,
        p_value is 1. sacrebleu, which never compares a system with itself, has a formula that would give the
        smallest possible p, 1 / (samples + 1).

    Raises:
        UsageError: the texts have different lengths, sacrebleu does not accept `samples` or SACREBLEU_SEED,
            or the tokeniser is not installed.
    """
    if samples < 1:
        raise UsageError(f"--samples {samples}: the number of resamples must be at least 1")
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.lower() != "none" and not (seed.isdecimal() and int(seed)):  # sacrebleu takes 0 for none
        raise UsageError(
            f"SACREBLEU_SEED={seed}: the seed must be a number above 0, or none; correct or unset it"
        )
    references = each_reference(references)
    lengths = {len(lines) for lines in (*references, baseline, *systems)}
    if len(lengths) > 1:
        raise UsageError(
            f"the paired bootstrap needs texts of one length, not of {sorted(lengths)} sentences; give "
            "translations of one test set"
        )
    metrics = make_metrics(names, references, lowercase, tokenize, language)
    named = [
        ("baseline", baseline),
        *((f"system {number}", system) for number, system in enumerate(systems, 1)),
    ]
    signatures, results = PairedTest(named, metrics, None, test_type="bs", n_samples=samples)()
    compared = []
    for number in range(1, len(systems) + 1):
        entry = {}
        for name in metrics:
            base, found = (cast(Result, results[METRICS[name]][index]) for index in (0, number))
            assert found.mean is not None and found.ci is not None and found.p_value is not None
            entry[name] = {
                "score": float(found.score),
                "baseline": float(base.score),
                "difference": float(found.score - base.score),
                "mean": float(found.mean),
                "ci": float(found.ci),
                "p_value": 1.0 if found.score == base.score else float(found.p_value),
                "samples": samples,
                "signature": signatures[METRICS[name]].format(),
            }
        compared.append(entry)
    return compared


def bootstrap_p(
    baseline: Floats, system: Floats, score: Callable[[Floats], Floats], samples: int = 1000
) -> float | None:
    """Return the p of the paired bootstrap for the difference of two scores of corpora.

    The formula is that of sacrebleu: the share of resamples in which the difference is further from its mean
    over resamples than the real difference is from 0. It is 1 if the two have the same score. It is None if
    there is only one part, or if a resample has no score, as the correlation of equal values.

    Args:
        baseline, system: numbers [parts, n] of each part of the data, such as a document, whose sums decide
            the score.
        score: returns the scores [...] of sums [..., n].
        samples: number of resamples of the parts.

    Raises:
        UsageError: `samples` is not positive.
    """
    if samples < 1:
        raise UsageError(f"--samples {samples}: the number of resamples must be at least 1")
    parts = len(baseline)
    real = float(score(system.sum(axis=0)) - score(baseline.sum(axis=0)))
    if parts < 2 or real == 0:
        return None if parts < 2 else 1.0
    drawn = np.random.default_rng(12345).integers(parts, size=(samples, parts))
    counts = np.stack([np.bincount(each, minlength=parts) for each in drawn]).astype(np.float64)
    differences = score(counts @ system) - score(counts @ baseline)
    if not np.isfinite([real, *differences]).all():
        return None
    further = int((np.abs(differences - differences.mean()) > abs(real)).sum())
    return (further + 1) / (samples + 1)


def compare_seeds(baseline: Sequence[float], system: Sequence[float]) -> dict[str, float | None]:
    """Compare the scores of the seeds of two systems.

    Returns:
        A dictionary with three keys. "difference": the difference of the means, system - baseline. "std":
        the sample standard deviation of the differences of the pairs, or None if the systems have different
        numbers of seeds or only one. "welch_p": the p of `welch_p`, or None.
    """
    pairs = [b - a for a, b in zip(baseline, system, strict=False)]
    paired = len(baseline) == len(system) > 1
    return {
        "difference": fmean(system) - fmean(baseline),
        "std": stdev(pairs) if paired else None,
        "welch_p": welch_p(baseline, system),
    }


def welch_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the two-sided p of Welch's t-test.

    It is None if a sample has fewer than two values, or if no sample has any variance. The result equals that
    of `scipy.stats.ttest_ind(first, second, equal_var=False)`, but importing scipy.stats would take longer
    than scoring.
    """
    if min(len(first), len(second)) < 2:
        return None
    # The variance of each mean, and its degrees of freedom.
    of_means = [(variance(sample) / len(sample), len(sample) - 1) for sample in (first, second)]
    total = sum(square for square, _ in of_means)
    if total == 0:
        return None
    freedom = total**2 / sum(square**2 / n for square, n in of_means)
    return float(2 * stdtr(freedom, -abs(fmean(first) - fmean(second)) / math.sqrt(total)))
