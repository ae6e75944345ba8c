"""Is one system better than another? Two questions, and a p for each; a difference that will hold needs an
answer to both.

Paired bootstrap (sacrebleu's, Koehn 2004) asks about the sentences: with these two sets of weights, would
another test set of the kind show the difference? p is about how often a difference as large comes up by the
choice of sentences alone. It knows nothing of training noise: two seeds of one system may well differ
"significantly". Welch's t-test over seeds asks about training: would other seeds show the difference of the
means on this test set? It knows nothing of the choice of sentences, and with two or three seeds it sees only
large differences.
"""

import math
import os
from collections.abc import Iterable, Sequence
from statistics import fmean, stdev, variance

from sacrebleu.significance import PairedTest
from scipy.special import stdtr

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.metrics import METRICS, References, make_metrics


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
    """Return what `sacrebleu REFERENCE -i BASELINE SYSTEM ... -m NAME ... --paired-bs --paired-bs-n SAMPLES`
    says.

    The seed is SACREBLEU_SEED of the environment, as there; default: 12345.

    Args:
        baseline: its translations, of the same length as the reference; each of `systems` likewise.
        samples: resamples of the test set.
        names, lowercase, tokenize, language: as for `make_metrics`.

    Returns:
        For each system and name: score, baseline, difference (score - baseline), mean and ci (of the
            resamples; half of the 95 %
        interval), p_value, samples, signature. Where a system's translations are the baseline's, p_value is
        1: the formula of sacrebleu, which never compares a system with itself, would give its smallest, 1 /
        (samples + 1).

    Raises:
        UsageError: texts of different lengths; `samples` or SACREBLEU_SEED is no number that sacrebleu takes;
            a tokenizer that is not installed.
    """
    if samples < 1:
        raise UsageError(f"--samples {samples}: is no number of resamples; give at least 1")
    seed = os.environ.get("SACREBLEU_SEED", "12345")
    if seed.lower() != "none" and not (seed.isdecimal() and int(seed)):  # 0 would be none
        raise UsageError(f"SACREBLEU_SEED={seed}: is neither a number above 0 nor none; unset it or give one")
    references = [references] if isinstance(references[0], str) else references
    lengths = {len(lines) for lines in (*references, baseline, *systems)}
    if len(lengths) > 1:
        raise UsageError(
            f"paired_bootstrap: needs texts of one length, not of {sorted(lengths)} sentences; give "
            "translations of one set"
        )
    metrics = make_metrics(names, references, lowercase, tokenize, language)
    named = [
        ("baseline", baseline),
        *((f"system {number}", system) for number, system in enumerate(systems, 1)),
    ]
    signatures, results = PairedTest(named, metrics, None, test_type="bs", n_samples=samples)()
    compared = []
    for number, system in enumerate(systems, 1):
        entry = {}
        for name in metrics:
            found, base = results[METRICS[name]][number], results[METRICS[name]][0].score
            entry[name] = {
                "score": float(found.score),
                "baseline": float(base),
                "difference": float(found.score - base),
                "mean": float(found.mean),
                "ci": float(found.ci),
                "p_value": 1.0 if list(system) == list(baseline) else float(found.p_value),
                "samples": samples,
                "signature": signatures[METRICS[name]].format(),
            }
        compared.append(entry)
    return compared


def compare_seeds(baseline: Sequence[float], system: Sequence[float]) -> dict[str, float | None]:
    """Compare the scores of the seeds of two systems, in pairs if they are of equal number.

    Returns:
        difference: of the means, system - baseline.
        std: standard deviation (of a sample) of the differences of the pairs; None where there are not two
            pairs.
        welch_p: two-sided p of Welch's t-test; None where one has fewer than two seeds, or neither has any
            spread.
    """
    pairs = [b - a for a, b in zip(baseline, system, strict=False)]
    paired = len(baseline) == len(system) > 1
    return {
        "difference": fmean(system) - fmean(baseline),
        "std": stdev(pairs) if paired else None,
        "welch_p": welch_p(baseline, system),
    }


def welch_p(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Return the two-sided p of Welch's t-test; None where a sample has fewer than two values, or neither has
    any spread.

    It is the p of `scipy.stats.ttest_ind(first, second, equal_var=False)`; but to import scipy.stats takes
    longer than to score.
    """
    if min(len(first), len(second)) < 2:
        return None
    # Variance of each mean, and its degrees of freedom.
    of_means = [(variance(sample) / len(sample), len(sample) - 1) for sample in (first, second)]
    total = sum(square for square, _ in of_means)
    if total == 0:
        return None
    freedom = total**2 / sum(square**2 / n for square, n in of_means)
    return float(2 * stdtr(freedom, -abs(fmean(first) - fmean(second)) / math.sqrt(total)))
