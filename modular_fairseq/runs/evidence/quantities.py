"""The quantities that claims compare: numbers of one run, taken from its record (`records.py`)."""

from collections.abc import Callable
from typing import Any, NamedTuple

from modular_fairseq.runs.evaluation import with_sign
from modular_fairseq.runs.papers.table import COLUMNS


class Quantity(NamedTuple):
    """A number of a run.

    Args:
        heading: what it is, in a few words, with its unit.
        pattern: how it is formatted.
        of: `(record, row) -> number or None`, where a row is called TABLE/ROW.
        in_percent: whether a difference is also shown in percent (see `papers_difference`).
    """

    heading: str
    pattern: str
    of: Callable[[dict[str, Any], str], float | None]
    in_percent: bool = False

    @property
    def signed(self) -> str:
        """The format of a difference, with its sign."""
        return with_sign(self.pattern)


def _column(name: str) -> Callable[[dict[str, Any], str], float | None]:
    """Return a function that reads a column of a table: the mean over the measurements of the row."""

    def read(record: dict[str, Any], row: str) -> float | None:
        values = [each.get(name, record["training"].get(name)) for each in record["rows"].get(row, [])]
        if not values or any(value is None for value in values):
            return None
        return sum(values) / len(values)

    return read


Values = list[float | None]  # of a curve at the end of each epoch; None: it was not finite, or not logged


def _curve(
    split: str, name: str, of: Callable[[Values], float | None]
) -> Callable[[dict, str], float | None]:
    """Return a function that computes a number from the values of a curve."""

    def read(record: dict[str, Any], row: str) -> float | None:
        curves = record["curves"]
        epochs = [by_name for of, by_name in curves.items() if of != "train_inner"]
        ends = {at for by_name in epochs for curve in by_name.values() for at, _ in curve}
        values = dict(curves.get(split, {}).get(name, []))
        return of([values.get(at) for at in sorted(ends)]) if values else None

    return read


def _at_epoch(number: int) -> Callable[[Values], float | None]:
    return lambda values: values[number - 1] if len(values) >= number else None


def _least(values: Values) -> float | None:
    return min(value for value in values if value is not None)


def _rise(values: Values) -> float | None:
    first, last = values[0], values[-1]
    return None if first is None or last is None else last - first


QUANTITIES = {
    **{
        name: Quantity(column.heading, column.pattern, _column(name), "perplexity" in name)
        for name, column in COLUMNS.items()
    },
    "early_perplexity": Quantity(
        "valid. perplexity after 5 epochs", "{:.2f}", _curve("valid", "ppl", _at_epoch(5)), True
    ),
    "valid_nll": Quantity(
        "valid. negative log-likelihood (best epoch), bits", "{:.3f}", _curve("valid", "nll_loss", _least)
    ),
    "final_train_nll": Quantity(
        "training negative log-likelihood (last epoch), bits",
        "{:.3f}",
        _curve("train", "nll_loss", lambda values: values[-1]),
    ),
    "final_gate_entropy": Quantity(
        "entropy of gates (all modules, validation data, last epoch), nats",
        "{:.3f}",
        _curve("valid", "gate_entropy", lambda values: values[-1]),
    ),
    "gate_entropy_change": Quantity(
        "entropy of gates, last less first epoch, nats",
        "{:+.3f}",
        _curve("valid", "gate_entropy", _rise),
    ),
}
