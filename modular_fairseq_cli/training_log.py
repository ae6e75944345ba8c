"""Read the curves that the report draws from the log of fairseq-train."""

import math
import re
from pathlib import Path
from typing import NamedTuple

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import parse
from modular_fairseq_cli.processes import say


class Curve(NamedTuple):
    """A number of the log that is drawn over the updates."""

    key: str  # its name in the log
    title: str
    unit: str  # its unit or symbol, or ""
    group: str  # the group of charts on the page to which it belongs: LEARNING, GATES or LOSSES

    @property
    def label(self) -> str:
        """Its title, with its unit."""
        return f"{self.title} ({self.unit})" if self.unit else self.title


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
# The beginning of every line that fairseq logs.
FAIRSEQ = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| [A-Z]+ \| [\w.]+ \| ", re.MULTILINE)

Log = dict[str, dict[str, list[tuple[int, float]]]]  # see `read_log`


def read_log(file: Path) -> Log:
    """Return the curves of a log, by split and by key; a curve is a list of (update, value).

    The splits are "train_inner" (values of every --log-interval updates), "train" (means of epochs), and
    "valid" and other validation subsets. A resumed run repeats updates: its values replace all earlier values
    from its first update on. Values that are not finite are left out, and a line on standard error says so.

    Raises:
        UsageError: the file cannot be read, was not printed by fairseq-train, or has no numbers.
    """
    try:
        text = file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(
            f"{file}: cannot be read ({error.strerror}); give what fairseq-train printed"
        ) from None
    points: dict[str, dict[int, dict[str, float]]] = {}
    for line in text.splitlines():
        split, numbers = parse(line)
        if _has(numbers, "num_updates"):
            update, earlier = int(numbers["num_updates"]), points.setdefault(split, {})
            while earlier and next(reversed(earlier)) >= update:
                earlier.popitem()
            earlier[update] = numbers
    for split, by_update in points.items():
        _tell_of_divergence(file, split, by_update)
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
                f"{file}: has no numbers of a training; train with --log-format json or simple, and "
                "for at least one update"
            )
        raise UsageError(
            f"{file}: is in an unknown format; give what fairseq-train printed with --log-format json "
            "or simple"
        )
    return curves


def _tell_of_divergence(file: Path, split: str, by_update: dict[int, dict[str, float]]) -> None:
    """Say at which update a curve of a split first has a value that is not finite, and how many have one."""
    found = [
        (at, f"{key} {numbers[key]}")
        for at, numbers in by_update.items()
        for key, *_ in CURVES
        if not math.isfinite(numbers.get(key, 0.0))
    ]
    if found:
        at, value = found[0]
        count = len({each for each, _ in found})
        say(
            f"{file}: {split} has {value} at update {at}; its values that are not finite, at {count} "
            "updates, are left out"
        )


def _has(numbers: dict[str, float], key: str) -> bool:
    """Return whether the numbers of a line have a finite value of this key."""
    return math.isfinite(numbers.get(key, math.nan))
