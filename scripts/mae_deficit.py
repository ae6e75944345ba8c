#!/usr/bin/env python
"""Compare MAE-7 with other rows of table multi30k by the records: the tables in docs/mechanisms/mae.md.

    python scripts/mae_deficit.py

The script prints five tables of results/evidence, and two of results/narrow/evidence. It starts no training.
Each number is a mean over the seeds that all of its rows have, where all runs of a seed were made on one
device. Tables of pairs and of settings have the lines of which there are two such seeds. Intervals are 95 %
intervals. Those of BLEU account for seeds and test sentences, and all others for seeds. A number is a link to
a claim of results/claims.yaml or results/narrow/claims.yaml if this registers the same quantity of the same
rows, or its opposite, and has all of these seeds. No other number was registered in this form. Nothing is
corrected for their number.

Each row of the table of effects is a sum over rows with these weights, where F steps leave a head out:

    F steps        (MAE-7 + UNI-MAE-7 - NOBCD - Transformer) / 2
    gates          (MAE-7 - UNI-MAE-7 + NOBCD - Transformer) / 2; G steps in MAE-7, all steps in NOBCD
    both together  MAE-7 - UNI-MAE-7 - NOBCD + Transformer

The last table of each folder has the settings that rows change, such as the dropout: what a setting changes
in each model, and how the two models then differ.
"""

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from tabulate import tabulate

from modular_fairseq.runs.evidence.claims import Claim
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.reading import read_claims
from modular_fairseq.runs.evidence.records import of_one_device, read_record
from modular_fairseq.runs.evidence.verdicts import interval_of, weighted
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import Interval

RESULTS = Path(__file__).resolve().parents[1] / "results"
WIDE, NARROW = RESULTS / "evidence", RESULTS / "narrow" / "evidence"
TABLE = "multi30k"
SEEDS = (1, 2, 3, 4, 5)
SETTING_SEEDS = (1, 2, 3, 4, 5, 6)
NAMES = {"base": "Transformer", "mae-7": "MAE-7", "uni-mae-7": "UNI-MAE-7", "nobcd": "NOBCD"}
Record = dict[str, Any]
Records = dict[tuple[str, int], Record]  # keyed by TABLE/ROW and the seed
Weights = Mapping[str, float]  # of rows
Value = Callable[[Record, str], float]

PAIRS = [
    ("mae-7", "base"),
    ("uni-mae-7", "base"),
    ("nobcd", "base"),
    ("mae-7", "uni-mae-7"),
    ("mae-7", "nobcd"),
    ("uni-mae-7", "nobcd"),
]
VARIANTS = {  # of narrow models, by the ends of their rows' names
    "": ", 6 epochs, dropout .3",
    "-long": ", 12 epochs, dropout .3",
    "-dropout-1": ", 12 epochs, dropout .1",
    "-dropout-0": ", 12 epochs, no dropout",
}
EFFECTS: dict[str, Weights] = {
    "F steps": {"mae-7": 0.5, "uni-mae-7": 0.5, "nobcd": -0.5, "base": -0.5},
    "gates": {"mae-7": 0.5, "uni-mae-7": -0.5, "nobcd": 0.5, "base": -0.5},
    "interaction": {"mae-7": 1, "uni-mae-7": -1, "nobcd": -1, "base": 1},
}


class Setting(NamedTuple):
    """What a setting changes.

    Attributes:
        mae, base: the rows of MAE and of the Transformer with it; no `base` if it does not change the latter.
        mae_before, base_before: the rows without it.
    """

    mae: str
    base: str | None
    mae_before: str = "mae-7"
    base_before: str = "base"


SETTINGS = {
    "dropout .2 instead of .3": Setting("mae-7-dropout-2", "base-dropout-2"),
    "twice as many epochs": Setting("mae-7-long", "base-long"),
    "dropout .1 instead of .3, 12 epochs": Setting(
        "mae-7-dropout-1", "base-dropout-1", "mae-7-long", "base-long"
    ),
    "no dropout instead of .3, 12 epochs": Setting(
        "mae-7-dropout-0", "base-dropout-0", "mae-7-long", "base-long"
    ),
    "twice as many updates of warm-up": Setting("mae-7-slow-warmup", "base-slow-warmup"),
    "16 heads instead of 8": Setting("mae-15", "base-16-heads"),
    "4 heads instead of 8": Setting("mae-3", "base-4-heads"),
    "two heads left out instead of one (MAE-6)": Setting("mae-6", None),
    "G steps in every epoch": Setting("mae-7-every-epoch", None),
    "a learning rate of 1 for the gates": Setting("mae-7-rate-1", None),
    "gates of the decoder that see the source": Setting("mae-7-source", None),
    "gates normalised by the batch": Setting("mae-7-batch", None),
}
EPOCHS = (1, 2, 4, 6, 8, 10, 12)
G_EPOCHS = (5, 10)  # the epochs of 12 that have G steps, with --mae-gate-interval 5


def loss(split: str, name: str, epoch: int) -> Value:
    """Return a function that reads a loss at the end of an epoch; epoch 0 is the last one."""

    def read(record: Record, row: str) -> float:
        ends = [at for at, _ in record["curves"]["valid"]["nll_loss"]]
        return float(dict(record["curves"][split][name])[ends[epoch - 1]])

    return read


def lr_of(module: str) -> Value:
    """Return a function that reads LR (divergence) of the heads of one type of modules."""

    def read(record: Record, row: str) -> float:
        types = record["rows"][row][0]["redundancy"]["types"]
        return float(next(each["LR_divergence"] for each in types if each["type"] == module))

    return read


def less(one: Value, other: Value) -> Value:
    """Return a function that reads a difference of two quantities."""
    return lambda record, row: one(record, row) - other(record, row)


def training_loss_with_all_heads(epoch: int) -> Value:
    """Return a function that reads the training loss: of G steps, where a row has them."""

    def read(record: Record, row: str) -> float:
        name = "g_loss" if "g_loss" in record["curves"]["train"] else "loss"
        return loss("train", name, epoch)(record, row)

    return read


def seeds_of(records: Records, weights: Weights) -> list[int]:
    """Return the seeds that all rows have, if all of their runs were made on one device."""
    seeds = sorted({seed for _, seed in records})
    found = {seed: [records.get((f"{TABLE}/{row}", seed)) for row in weights] for seed in seeds}
    return [seed for seed, each in found.items() if all(each) and of_one_device(filter(None, each))]


def contrast(records: Records, weights: Weights, value: Value | None) -> Interval:
    """Return a weighted sum over rows with its interval: of a quantity, or of BLEU if it is None.

    Raises:
        SystemExit: fewer than two seeds have all rows.
    """
    named = {f"{TABLE}/{row}": weight for row, weight in weights.items()}
    of, units = (value, "") if value else (QUANTITIES["bleu"].of, "bleu")
    found = [weighted(records, seed, named, of, units) for seed in seeds_of(records, weights)]
    interval = interval_of([total for total, _ in found if total is not None], [each for _, each in found])
    if interval is None:
        raise SystemExit(f"mae_deficit.py: {', '.join(weights)} have too few seeds in common; make more runs")
    return interval


def shown(found: Interval, digits: int = 3) -> str:
    """Return a difference with its interval and mark, such as "-0.89 [-1.34, -0.45]"."""
    return found.shown(f"{{:+.{digits}f}}")


class End(NamedTuple):
    """A quantity that a training ends with.

    Attributes:
        value: reads it from a record; None for BLEU.
        digits: how many are shown.
        quantity: what claims call it; None if no claim can be about it.
    """

    value: Value | None
    digits: int
    quantity: str | None


Ends = Mapping[str, End]
ENDS: Ends = {
    "BLEU": End(None, 2, "bleu"),
    "validation loss, bits": End(loss("valid", "nll_loss", 0), 3, None),
    "training loss, bits": End(loss("train", "nll_loss", 0), 3, "final_train_nll"),
}
NARROW_ENDS: Ends = {
    "BLEU": ENDS["BLEU"],
    "validation loss of the best epoch, bits": End(QUANTITIES["valid_nll"].of, 3, "valid_nll"),
    **ENDS,
}
NARROW_SETTING_ENDS = {name: end for name, end in NARROW_ENDS.items() if name != "validation loss, bits"}


class Claims(NamedTuple):
    """Registered claims.

    Attributes:
        all: the claims.
        page: the page of their results, as docs/mechanisms/mae.md links it.
    """

    all: Sequence[Claim]
    page: str

    def linked(self, text: str, weights: Weights, end: End, seeds: Sequence[int]) -> str:
        """Return a number as a link to the claim about this sum of rows, or about its opposite.

        Without such a claim, return the number as it is.
        """
        for claim in self.all:
            if claim.is_about(TABLE, end.quantity, weights, seeds):
                return f"[{text}]({self.page}#{claim.name})"
        return text


def table(heads: list[str], lines: list[list[str]]) -> str:
    """Return a table in Markdown, or nothing if it has no lines."""
    return tabulate(lines, heads, tablefmt="github", disable_numparse=True) if lines else ""


def comparisons(records: Records, ends: Ends, variants: Mapping[str, str], claims: Claims) -> str:
    """Return the table that compares pairs of rows at the end of the training.

    Args:
        records: the records of runs.
        ends: the quantities.
        variants: what to say of the rows whose names end with each key.
        claims: the claims about these runs.
    """
    lines = []
    for suffix, variant in variants.items():
        for row, other in PAIRS:
            weights = {f"{row}{suffix}": 1.0, f"{other}{suffix}": -1.0}
            seeds = seeds_of(records, weights)
            if len(seeds) < 2:
                continue
            cells = [shown_end(records, weights, end, claims) for end in ends.values()]
            lines.append([f"{NAMES[row]} less {NAMES[other]}{variant}", *cells, ", ".join(map(str, seeds))])
    return table(["comparison", *ends, "seeds"], lines)


def shown_end(records: Records, weights: Weights, end: End, claims: Claims) -> str:
    """Return a sum over rows as text, which is a link if a claim registers it."""
    text = shown(contrast(records, weights, end.value), end.digits)
    return claims.linked(text, weights, end, seeds_of(records, weights))


def effects(records: Records) -> str:
    """Return the table of what F steps and gates do by themselves."""
    quantities: dict[str, tuple[Value | None, int]] = {
        **{name: (end.value, end.digits) for name, end in ENDS.items()},
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
    """Return the table of the Transformer's validation losses, and of how far other rows are above them."""
    rows = ("mae-7", "uni-mae-7", "nobcd")
    lines = []
    for epoch in EPOCHS:
        value = loss("valid", "nll_loss", epoch)
        base = fmean(value(records[f"{TABLE}/base", seed], "") for seed in seeds_of(records, {"base": 1}))
        differences = [shown(contrast(records, {row: 1, "base": -1}, value)) for row in rows]
        lines.append([str(epoch), f"{base:.3f}", *differences])
    heads = [f"{NAMES[row]} less Transformer" for row in rows]
    return table(["epoch", "Transformer", *heads], lines)


def with_all_heads(records: Records) -> str:
    """Return the table of the training losses of MAE-7 in G steps, which leave no head out."""
    lines = []
    for epoch in G_EPOCHS:
        all_heads = training_loss_with_all_heads(epoch)
        missing_head = less(loss("train", "loss", epoch), all_heads)
        gap = less(loss("valid", "loss", epoch), all_heads)
        found = [
            contrast(records, {"mae-7": 1}, missing_head),
            contrast(records, {"mae-7": 1, "base": -1}, all_heads),
            contrast(records, {"mae-7": 1, "nobcd": -1}, all_heads),
            contrast(records, {"mae-7": 1, "base": -1}, gap),
        ]
        lines.append([str(epoch), *map(shown, found)])
    heads = [
        "what a missing head adds to the training loss of MAE-7",
        "training loss, MAE-7 less Transformer",
        "training loss, MAE-7 less NOBCD",
        "validation less training loss, MAE-7 less Transformer",
    ]
    return table(["epoch", *heads], lines)


def settings(records: Records, ends: Ends, claims: Claims) -> str:
    """Return the table of what settings change in MAE and in the Transformer, and how these then differ."""
    lines = []
    for name, (mae, base, mae_before, base_before) in SETTINGS.items():
        gains: list[Weights] = [{mae: 1, mae_before: -1}]
        if base is not None:
            gains += [{base: 1, base_before: -1}, {mae: 1, mae_before: -1, base: -1, base_before: 1}]
        then: Weights = {mae: 1, base or base_before: -1}
        seeds = seeds_of(records, {**gains[-1], **then})
        if len(seeds) < 2:
            continue
        common = {(row, seed): record for (row, seed), record in records.items() if seed in seeds}
        for quantity, end in ends.items():
            cells = [shown_end(common, weights, end, claims) for weights in gains]
            differ = shown_end(common, then, end, claims)
            lines.append(
                [name, quantity, *cells, *[""] * (3 - len(cells)), differ, ", ".join(map(str, seeds))]
            )
    heads = [
        "setting",
        "quantity",
        "change of MAE",
        "change of the Transformer",
        "difference of the changes",
        "with the setting, MAE less Transformer",
        "seeds",
    ]
    return table(heads, lines)


def records_of(folder: Path, rows: Iterable[str], seeds: Iterable[int]) -> Records:
    """Return the records in a folder of runs that did not diverge."""
    names = {(f"{TABLE}/{row}", seed): f"{TABLE}/{row}/seed-{seed}" for row in rows for seed in seeds}
    found = {key: read_record(folder, name) for key, name in names.items()}
    return {key: record for key, record in found.items() if record and not record["diverged"]}


def tables() -> list[str]:
    """Return all tables that have a line.

    Raises:
        UsageError: a record or a file of claims cannot be read.
    """
    wide_claims = Claims(read_claims(WIDE.parent / "claims.yaml").claims, "../results.md")
    narrow_claims = Claims(read_claims(NARROW.parent / "claims.yaml").claims, "../results-narrow.md")
    records = records_of(WIDE, NAMES, SEEDS)
    changed = {row for rows in SETTINGS.values() for row in rows if row}
    paired = {f"{row}{end}" for pair in PAIRS for row in pair for end in VARIANTS}
    narrow = records_of(NARROW, changed | paired, SEEDS)
    found = [
        comparisons(records, ENDS, {"": ""}, wide_claims),
        *(make(records) for make in (effects, over_epochs, with_all_heads)),
        settings(records_of(WIDE, changed, SETTING_SEEDS), ENDS, wide_claims),
        comparisons(narrow, NARROW_ENDS, VARIANTS, narrow_claims),
        settings(narrow, NARROW_SETTING_ENDS, narrow_claims),
    ]
    return [each for each in found if each]


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    try:
        print("\n\n".join(tables()))
    except UsageError as error:
        sys.exit(f"mae_deficit.py: error: {error}")


if __name__ == "__main__":
    main()
