#!/usr/bin/env python
"""Compare MAE-7 with other rows of table multi30k by the records: the tables in docs/mechanisms/mae.md.

    python scripts/mae_deficit.py

The script prints four tables and starts no training. The numbers are means over the seeds that all rows of a
line have, where all runs of a seed were made on one device. Intervals have 95 %. Those of BLEU account for
seeds and test sentences, and all others for seeds. results/claims.yaml registers three of the differences in
BLEU. All other comparisons were chosen after the runs were known, and nothing is corrected for their number.

Each row of the table of effects is a sum over rows with these weights, where F steps leave a head out:

    F steps        (MAE-7 + UNI-MAE-7 - NOBCD - Transformer) / 2
    learnt gates   (MAE-7 - UNI-MAE-7 + NOBCD - Transformer) / 2; G steps in MAE-7, all steps in NOBCD
    both together  MAE-7 - UNI-MAE-7 - NOBCD + Transformer
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from modular_fairseq.runs.evidence.records import read_record
from modular_fairseq_cli.scoring.intervals import Interval, over_seeds, over_seeds_and_sentences

RESULTS = Path(__file__).resolve().parents[1] / "results" / "evidence"
TABLE = "multi30k"
SEEDS = (1, 2, 3, 4, 5)
NAMES = {"base": "Transformer", "mae-7": "MAE-7", "uni-mae-7": "UNI-MAE-7", "nobcd": "NOBCD"}
Weights = Mapping[str, float]
Records = dict[str, dict[int, dict[str, Any]]]
Value = Callable[[dict[str, Any], str], float]

PAIRS = [
    ("mae-7", "base"),
    ("uni-mae-7", "base"),
    ("nobcd", "base"),
    ("mae-7", "uni-mae-7"),
    ("mae-7", "nobcd"),
    ("uni-mae-7", "nobcd"),
]
EFFECTS: dict[str, Weights] = {
    "F steps": {"mae-7": 0.5, "uni-mae-7": 0.5, "nobcd": -0.5, "base": -0.5},
    "learnt gates": {"mae-7": 0.5, "uni-mae-7": -0.5, "nobcd": 0.5, "base": -0.5},
    "both together": {"mae-7": 1, "uni-mae-7": -1, "nobcd": -1, "base": 1},
}
EPOCHS = (1, 2, 4, 6, 8, 10, 12)
G_EPOCHS = (5, 10)  # the epochs of 12 that have G steps, with --mae-gate-interval 5


def at_epoch(split: str, name: str, epoch: int) -> Value:
    """Return a function that reads a curve at the end of an epoch; -1 is the last one."""

    def read(record: dict[str, Any], row: str) -> float:
        ends = [at for at, _ in record["curves"]["valid"]["nll_loss"]]
        return dict(record["curves"][split][name])[ends[epoch if epoch < 0 else epoch - 1]]

    return read


def lr_of(module: str) -> Value:
    """Return a function that reads LR (divergence) of the heads of one type of modules."""

    def read(record: dict[str, Any], row: str) -> float:
        types = record["rows"][f"{TABLE}/{row}"][0]["redundancy"]["types"]
        return next(each["LR_divergence"] for each in types if each["type"] == module)

    return read


def bleu(record: dict[str, Any], row: str) -> float:
    return record["rows"][f"{TABLE}/{row}"][0]["bleu"]


def seeds_of(records: Records, rows: Weights) -> list[int]:
    """Return the seeds that all rows have, if all of their runs were made on one device."""
    return [
        seed
        for seed in SEEDS
        if all(seed in records[row] for row in rows)
        and len({records[row][seed]["made"]["device"] for row in rows}) == 1
    ]


def contrast(records: Records, weights: Weights, value: Value, seeds: list[int] | None = None) -> Interval:
    """Return a weighted sum of a quantity over rows, with its interval."""
    seeds = seeds_of(records, weights) if seeds is None else seeds
    sums = [sum(w * value(records[row][seed], row) for row, w in weights.items()) for seed in seeds]
    if value is bleu:
        by_sentence = [
            sum(
                w * records[row][seed]["rows"][f"{TABLE}/{row}"][0]["by_unit"]["bleu"]
                for row, w in weights.items()
            )
            for seed in seeds
        ]
        found = over_seeds_and_sentences(sums, np.stack(by_sentence))
    else:
        found = over_seeds(sums)
    if found is None:
        raise SystemExit(f"mae_deficit.py: {', '.join(weights)} have too few seeds in common; make more runs")
    return found


def shown(found: Interval, digits: int) -> str:
    """Return such as "-0.89 [-1.34, -0.45]"."""
    return f"{found.difference:+.{digits}f} [{found.low:+.{digits}f}, {found.high:+.{digits}f}]"


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a table in Markdown, whose first column has names."""
    rule = ["---", *["---:"] * (len(heads) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heads, rule, *lines))


def comparisons(records: Records) -> str:
    """Return the table that compares pairs of rows at the end of the training."""
    last = [at_epoch(split, "nll_loss", -1) for split in ("valid", "train")]
    lines = []
    for row, other in PAIRS:
        weights = {row: 1.0, other: -1.0}
        cells = [shown(contrast(records, weights, bleu), 2)]
        cells += [shown(contrast(records, weights, value), 3) for value in last]
        seeds = ", ".join(map(str, seeds_of(records, weights)))
        lines.append([f"{NAMES[row]} less {NAMES[other]}", *cells, seeds])
    return table(["comparison", "BLEU", "validation loss, bits", "training loss, bits", "seeds"], lines)


def effects(records: Records) -> str:
    """Return the table of what F steps and learnt gates do by themselves."""
    quantities: dict[str, tuple[Value, int]] = {
        "BLEU": (bleu, 2),
        "validation loss, bits": (at_epoch("valid", "nll_loss", -1), 3),
        "training loss, bits": (at_epoch("train", "nll_loss", -1), 3),
        "LR, encoder": (lr_of("encoder self-attention"), 3),
        "LR, decoder": (lr_of("decoder self-attention"), 3),
        "LR, cross-attention": (lr_of("cross-attention"), 3),
    }
    lines = [
        [name, *(shown(contrast(records, weights, value), digits) for weights in EFFECTS.values())]
        for name, (value, digits) in quantities.items()
    ]
    return table(["", *EFFECTS], lines)


def over_epochs(records: Records) -> str:
    """Return the table of validation losses less that of the Transformer, after some epochs."""
    rows = ("mae-7", "uni-mae-7", "nobcd")
    lines = []
    for epoch in EPOCHS:
        value = at_epoch("valid", "nll_loss", epoch)
        base = fmean(value(records["base"][seed], "base") for seed in seeds_of(records, {"base": 1}))
        differences = [shown(contrast(records, {row: 1, "base": -1}, value), 3) for row in rows]
        lines.append([str(epoch), f"{base:.3f}", *differences])
    heads = [f"{NAMES[row]} less Transformer" for row in rows]
    return table(["epoch", "Transformer", *heads], lines)


def with_all_heads(records: Records) -> str:
    """Return the table of training losses of MAE-7 in G steps, which leave no head out, and in F steps."""
    seeds = seeds_of(records, {"mae-7": 1, "base": -1, "nobcd": -1})
    lines = []
    for epoch in G_EPOCHS:
        f_steps, g_steps = (at_epoch("train", name, epoch) for name in ("loss", "g_loss"))
        valid = at_epoch("valid", "loss", epoch)

        def g_or_training(record: dict[str, Any], row: str, f: Value = f_steps, g: Value = g_steps) -> float:
            return (g if row == "mae-7" else f)(record, row)

        def gap(
            record: dict[str, Any], row: str, valid: Value = valid, train: Value = g_or_training
        ) -> float:
            return valid(record, row) - train(record, row)

        def head(record: dict[str, Any], row: str, f: Value = f_steps, g: Value = g_steps) -> float:
            return f(record, row) - g(record, row)

        found = [
            contrast(records, {"mae-7": 1}, head, seeds),
            contrast(records, {"mae-7": 1, "base": -1}, g_or_training, seeds),
            contrast(records, {"mae-7": 1, "nobcd": -1}, g_or_training, seeds),
            contrast(records, {"mae-7": 1, "base": -1}, gap, seeds),
        ]
        lines.append([str(epoch), *(shown(each, 3) for each in found)])
    heads = [
        "epoch",
        "MAE-7: F steps less G steps",
        "G steps less Transformer",
        "G steps less NOBCD",
        "gap to validation, less that of the Transformer",
    ]
    return table(heads, lines)


def tables() -> list[str]:
    """Return all tables.

    Raises:
        UsageError: a record cannot be read.
    """
    records: Records = {}
    for row in NAMES:
        found = {seed: read_record(RESULTS, f"{TABLE}/{row}/seed-{seed}") for seed in SEEDS}
        records[row] = {seed: record for seed, record in found.items() if record and not record["diverged"]}
    return [make(records) for make in (comparisons, effects, over_epochs, with_all_heads)]


if __name__ == "__main__":
    print("\n\n".join(tables()))
