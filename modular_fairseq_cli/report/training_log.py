"""The curves in what fairseq-train prints, with --log-format json or simple (which tqdm becomes where its
output is no terminal).

2026-01-01 10:00:00 | INFO | train_inner | {"epoch": 1, "update": 0.28, "loss": "7.59", "num_updates": "50",
...} 2026-01-01 10:00:00 | INFO | train_inner | epoch 001:     50 / 178 loss=7.59, ppl=164.32, num_updates=50,
... 2026-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset | loss 2.55 | ppl 2.64 |
num_updates 178
"""

import json
import math
import re
from pathlib import Path
from typing import NamedTuple

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import LOGGED


class Curve(NamedTuple):
    """A number of the log that is drawn: its name there, what it is called, its unit or symbol, and the group
    that it is shown in.
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
SIMPLE = re.compile(r"\| (\w+) \| epoch \d+(?::\s+\d+ / \d+ | \| )(.*)$")
FIELD = re.compile(r"(?:^|, |\| )(\w+)[= ]([^\s,|]+)(?=,| \||$)")
FAIRSEQ = re.compile(r"^\d{4}-\d\d-\d\d \d\d:\d\d:\d\d \| [A-Z]+ \| [\w.]+ \| ", re.MULTILINE)

Log = dict[str, dict[str, list[tuple[int, float]]]]


def read_log(file: Path) -> Log:
    """The curves by split ("train_inner": every --log-interval, "train": an epoch's mean, "valid" and other
    subsets) and by key, each a list of (update, value). A run that was resumed repeats updates: the later
    values replace all from there on.

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
        split, stats = parse(line)
        if "num_updates" in stats:
            update, earlier = int(stats["num_updates"]), points.setdefault(split, {})
            while earlier and next(reversed(earlier)) >= update:
                earlier.popitem()
            earlier[update] = stats
    curves = {
        split: {
            key: curve
            for key, *_ in CURVES
            if (curve := [(at, values[key]) for at, values in by_update.items() if key in values])
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


def parse(line: str) -> tuple[str, dict[str, float]]:
    """The split and the finite numbers of a line; no numbers: not a line of numbers."""
    if logged := LOGGED.search(line):
        split = logged[1]
        try:
            fields = json.loads(logged[2]).items()
        except ValueError:
            return "", {}
        fields = [(key.removeprefix(f"{split}_"), value) for key, value in fields]
    elif simple := SIMPLE.search(line):
        split, fields = simple[1], FIELD.findall(simple[2])
    else:
        return "", {}
    stats = {}
    for key, value in fields:
        try:
            stats[key] = float(value)
        except (TypeError, ValueError):
            continue
    return split, {key: value for key, value in stats.items() if math.isfinite(value)}
