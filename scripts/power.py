#!/usr/bin/env python
"""Estimate how often a claim about BLEU holds, for a known difference: the power of the test.

    python scripts/power.py                          # 5 seeds, as primary claims have; it takes a minute
    python scripts/power.py --alpha .00556           # the first of nine claims in Holm's order: .05 / 9
    python scripts/power.py --errors                 # the standard errors by sentences in the records

The differences of two systems are drawn from the model of modular_fairseq_cli/scoring/intervals.py. The
choice of the test sentences gives the difference of a pair of trainings a standard error of --sentence-error.
The share --common of its square is the same in all pairs: an assumption, as most of it is particular to the
two trainings. Seeds add a standard deviation of --seed-noise to the difference of a pair. A claim holds if
its one-sided p-value is below --alpha.

--errors shows the standard error by sentences for all pairs of trainings of table multi30k that a claim about
BLEU compares, as far as both have records, made on one device.
"""

import argparse
import math
import sys
from pathlib import Path
from statistics import median

import numpy as np
from scipy.optimize import brentq

from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.reading import read_claims
from modular_fairseq.runs.evidence.records import of_one_device, read_record
from modular_fairseq.runs.evidence.verdicts import weighted
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import over_seeds_and_sentences

RESULTS = Path(__file__).resolve().parents[1] / "results"
TABLE = "multi30k"
SENTENCES = 100  # a test set has more; with the same standard error the power is about the same
REPEATED = 2000


def power_of(mean: float, args: argparse.Namespace) -> float:
    """Return the power for a true mean difference, with the same noise for all of them."""
    random = np.random.default_rng(1)
    of_seeds = args.seed_noise * random.normal(size=(REPEATED, args.seeds, 1))
    scale = args.sentence_error * math.sqrt(SENTENCES)
    of_sentences = math.sqrt(args.common) * scale * random.normal(size=(REPEATED, 1, SENTENCES))
    both = math.sqrt(1 - args.common) * scale * random.normal(size=(REPEATED, args.seeds, SENTENCES))
    return float(np.mean([_holds(each, args.alpha) for each in mean + of_seeds + of_sentences + both]))


def _holds(differences: np.ndarray, alpha: float) -> bool:
    found = over_seeds_and_sentences(differences.mean(axis=1).tolist(), differences)
    assert found is not None  # as there are several seeds and sentences
    return found.difference > 0 and found.p_value / 2 < alpha


def errors() -> list[float]:
    """Return the standard error by sentences of the difference of each pair of trainings."""
    claims = read_claims(RESULTS / "claims.yaml").claims
    pairs = {
        (claim.row, claim.baseline, seed)
        for claim in claims
        if claim.table_name == TABLE and claim.quantity == "bleu" and claim.baseline
        for seed in claim.seeds
    }
    found = []
    for row, baseline, seed in sorted(pairs):
        weights = {f"{TABLE}/{row}": 1, f"{TABLE}/{baseline}": -1}
        records = {(name, seed): read_record(RESULTS / "evidence", f"{name}/seed-{seed}") for name in weights}
        present = {key: record for key, record in records.items() if record and not record["diverged"]}
        if len(present) == 2 and of_one_device(present.values()):
            _, difference = weighted(present, seed, weights, QUANTITIES["bleu"].of, "bleu")
            found.append(float(difference.std(ddof=1)) / math.sqrt(len(difference)))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options = (
        ("seeds", 5, "number of pairs of trainings, at least 2", lambda x: x >= 2),
        (
            "seed-noise",
            0.5,
            "standard deviation by seeds of a pair's difference in BLEU, at least 0",
            lambda x: 0 <= x < math.inf,
        ),
        (
            "sentence-error",
            0.41,
            "standard error by sentences of a pair's difference in BLEU, above 0",
            lambda x: 0 < x < math.inf,
        ),
        ("common", 0.2, "share of its square that all pairs have in common, 0 to 1", lambda x: 0 <= x <= 1),
        ("alpha", 0.05, "one-sided level of the test, above 0 and below .5", lambda x: 0 < x < 0.5),
    )
    for name, default, text, _ in options:
        text = f"{text} (default: {default})"
        parser.add_argument(f"--{name}", type=type(default), default=default, help=text)
    parser.add_argument("--errors", action="store_true", help="show the standard errors of recorded pairs")
    args = parser.parse_args()
    if args.errors:
        given = [name for name, default, *_ in options if getattr(args, name.replace("-", "_")) != default]
        if given:
            parser.error(f"--{given[0]} has no effect with --errors; leave one of them out")
        try:
            found = errors()
        except UsageError as error:
            sys.exit(f"power.py: error: {error}")
        told = f"{min(found):.2f} to {max(found):.2f}, median {median(found):.2f}"
        print(f"standard errors by sentences of {len(found)} pairs, in BLEU: {told}")
        return
    for name, _, text, fits in options:
        if not fits(value := getattr(args, name.replace("-", "_"))):
            parser.error(f"--{name} {value}: give a {text}")
    for power in (0.5, 0.8):
        high = 1.0
        while power_of(high, args) < power:
            high *= 2
        mean = brentq(lambda x, power=power: power_of(x, args) - power, 0, high, xtol=0.005)
        print(f"a difference of {mean:.2f} BLEU holds with a probability of {power:.0%}")


if __name__ == "__main__":
    main()
