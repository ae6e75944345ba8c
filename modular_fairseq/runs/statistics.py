"""Differences between runs over seeds, with their tests."""

from collections.abc import Sequence
from typing import NamedTuple

from modular_fairseq.runs.evaluation import Evaluation, Measurement
from modular_fairseq_cli.scoring import compare_seeds
from modular_fairseq_cli.scoring.spread import shown


class Difference(NamedTuple):
    """A row's difference from its baseline: one number a measurement, the largest p of the evaluation's own
    test if it has one, and the p of Welch's t-test over seeds if there are several.
    """

    values: list[float]
    p: float | None
    welch_p: float | None

    def shown(self, pattern: str) -> str:
        tests = "; ".join(f"{p:.3f}" for p in (self.p, self.welch_p) if p is not None)
        return shown(self.values, pattern) + (f" ({tests})" if tests else "")


def difference(
    evaluation: Evaluation, ours: Sequence[Measurement], baseline: Sequence[Measurement], samples: int
) -> Difference | None:
    """Compare each measurement with the baseline's of the same seed, or with its only one.

    Args:
        ours, baseline: finished or not.
        samples: of a bootstrap.

    Returns:
        None if there is nothing to compare.

    Raises:
        UsageError: see `Evaluation.compare`.
    """
    finished = [[each for each in row if each.result is not None] for row in (ours, baseline)]
    compared = []
    for each in finished[0]:
        same_seed = [it for it in finished[1] if len(baseline) == 1 or it.run.seed == each.run.seed]
        compared += [evaluation.compare(each, it, samples) for it in same_seed[:1]]
    compared = [pair for pair in compared if pair is not None]
    if not compared:
        return None
    single = [p for _, p in compared if p is not None]
    theirs, numbers = ([each.result[evaluation.key] for each in row] for row in reversed(finished))
    welch = compare_seeds(theirs, numbers)["welch_p"]
    return Difference([value for value, _ in compared], max(single, default=None), welch)
