"""The curves in the log of a training, which the report draws."""

import math
import re
from pathlib import Path
from typing import NamedTuple

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import parse


class Curve(NamedTuple):
    """A number of the log that is drawn: its name in the log, its title, its unit or symbol, and its group on
    the page.
    """

    key: str
    title: str
    unit: str
    group: str


LEARNING, GATES, LOSSES = "learning", "gates", "losses"
CURVES = (
    Curve("ppl", "Perplexity", "", LEARNING),
    Curve("loss", "Loss", "smoothed, bits per token", LEARNING),
    Curve("nll_loss", "Negative log-likelihood", "bits per token", LEARNING),
    Curve("bleu", "BLEU", "", LEARNING),
    Curve("lr", "Learning rate", "", LEARNING),
    Curve("gate_entropy", "Gate entropy", "nats", GATES),
    Curve("gate_max_share", "Largest share of an expert", "", GATES),
    Curve("gate_min_share", "Smallest share of an expert", "", GATES),
    Curve("gate_rare_experts", "Experts with under 1 % of the instances", "", GATES),
    Curve("g_loss", "Loss of G steps", "bits per token", LOSSES),
    Curve("kl", "KL of the mixtures", "nats per dimension", LOSSES),
    Curve("qq", "Mutual information of heads", "L_qq", LOSSES),
    Curve("xq", "Mutual information of input and head", "L_xq", LOSSES),
)
FAIRSEQ = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| [A-Z]+ \| [\w.]+ \| ", re.MULTILINE)

Log = dict[str, dict[str, list[tuple[int, float]]]]


def read_log(file: Path) -> Log:
    """Return the curves by split ("train_inner": every --log-interval, "train": an epoch's mean, "valid" and
    other subsets) and by key, each a list of (update, value). A run that was resumed repeats updates: the
    later values replace all from there on.

    Raises:
        UsageError: not readable, not fairseq-train's, or without numbers.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"--log {file}: cannot be read ({error.strerror}); give what fairseq-train printed"
        ) from None
    points: dict[str, dict[int, dict[str, float]]] = {}
    for line in text.splitlines():
        split, numbers = parse(line)
        if _has(numbers, "num_updates"):
            update, earlier = int(numbers["num_updates"]), points.setdefault(split, {})
            while earlier and next(reversed(earlier)) >= update:
                earlier.popitem()
            earlier[update] = numbers
    curves = {
        split: {
            key: curve
            for key, *_ in CURVES
            if (curve := [(at, numbers[key]) for at, numbers in by_update.items() if _has(numbers, key)])
        }
        for split, by_update in points.items()
    }
    curves = {split: by_key for split, by_key in curves.items() if by_key}
    if not curves:
        if FAIRSEQ.search(text):
            raise UsageError(
                f"--log {file}: has no numbers of a training; train with --log-format json or simple, and "
                "for one update at least"
            )
        raise UsageError(
            f"--log {file}: is in a format unknown here; give what fairseq-train printed with --log-format "
            "json or simple"
        )
    return curves


def _has(numbers: dict[str, float], key: str) -> bool:
    return math.isfinite(numbers.get(key, math.nan))
