"""Compute the ratios of measured times to the times of stock fairseq, and print them as a table.

"Stock" is fairseq's own Transformer. Every measurement includes two identical copies of it. If the copies
differ too much, other programs have disturbed the times, and no ratio is reported.
"""

from dataclasses import dataclass
from statistics import median

STOCK = ("stock, copy A", "stock, copy B")
TRAINING, F_STEP, G_STEP, BCD, LAYERS, SEARCH = (
    "training step",
    "F step",
    "G step",
    "BCD average",
    "layers",
    "beam search",
)
LIMIT = 0.03  # largest accepted relative difference between the times of the two copies of stock

Times = dict[tuple[str, str], list[float]]  # seconds in each round, keyed by (model, work)


@dataclass(frozen=True)
class Row:
    """One line of the table: the times of one model for one kind of work.

    Attributes:
        model: an arch and its options, or one of `STOCK`.
        work: the kind of work, such as `TRAINING`.
        seconds: the time of each round.
        ratios: the ratio to stock in each round; None if the copies of stock differ too much.
        ratio: the median of `ratios`, or None.
    """

    model: str
    work: str
    seconds: list[float]
    ratios: list[float] | None
    ratio: float | None


@dataclass(frozen=True)
class Comparison:
    """The measurements of a model and its stock.

    Attributes:
        model: an arch and its options.
        stock: a description of stock with its size.
        equal_hypotheses: two numbers. The model gets stock's weights, and both search. The first number is
            how many hypotheses are the same, and the second one is how many there are. All are the same for
            plain attention and for gates that start uniform (--mae-gate-init zero). Fewer are for a model
            that computes something else with the same weights, as with --no-residual. The value is None if
            stock's weights do not fit the model, or if no search is timed.
        other_size: a description of the model's size if it differs from stock's, or None.
        differences: for each kind of work, the relative difference between the two copies of stock (the
            median over rounds).
        refusals: one sentence for each kind of work whose ratios are not reported.
        rows: the lines of the table.
    """

    model: str
    stock: str
    equal_hypotheses: tuple[int, int] | None
    other_size: str | None
    differences: dict[str, float]
    refusals: list[str]
    rows: list[Row]


def evaluate(
    model: str,
    stock: str,
    times: Times,
    equal: tuple[int, int] | None = None,
    interval: int | None = None,
    other_size: str | None = None,
) -> Comparison:
    """Compute the ratio of each time to the mean of the two copies of stock in the same round.

    Args:
        model, stock, equal, other_size: see `Comparison`.
        times: the times of the model and of both copies of stock.
        interval: the number of epochs of which one has G steps (--mae-gate-interval), or None if the model
            has no G steps.
    """
    peers: dict[str, list[float]] = {}
    differences: dict[str, float] = {}
    rows: list[Row] = []
    for work in [work for model, work in times if model == STOCK[0]]:
        first, second = (times[copy, work] for copy in STOCK)
        peers[work] = [(a + b) / 2 for a, b in zip(first, second, strict=True)]
        differences[work] = abs(
            median((a - b) / mean for a, b, mean in zip(first, second, peers[work], strict=True))
        )

    def add_row(model: str, work: str, seconds: list[float]) -> None:
        peer = work if work in peers else TRAINING
        ratios = (
            None
            if differences[peer] > LIMIT
            else [ours / theirs for ours, theirs in zip(seconds, peers[peer], strict=True)]
        )
        rows.append(Row(model, work, seconds, ratios, median(ratios) if ratios else None))

    by_model = sorted(times.items(), key=lambda item: (*STOCK, model).index(item[0][0]))
    for (timed, work), seconds in by_model:
        add_row(timed, work, seconds)
        if work == G_STEP:
            assert interval is not None  # the model has G steps
            average = [f + g / interval for f, g in zip(times[model, F_STEP], seconds, strict=True)]
            add_row(model, f"{BCD}, interval {interval}", average)
    refusals = [
        f"{work}: no ratio is reported, because the times of two identical copies of {stock} differ by "
        f"{difference:.1%}, which is more than {LIMIT:.0%}"
        for work, difference in differences.items()
        if difference > LIMIT
    ]
    return Comparison(model, stock, equal, other_size, differences, refusals, rows)


def format_comparison(comparison: Comparison) -> str:
    """Return the table as text: for each model and kind of work the median time and the ratio to stock."""
    lines, last = [f"stock: {comparison.stock}", *comparison.refusals], ""
    for row in comparison.rows:
        if row.model != last:
            last = row.model
            size = (
                f" (its size differs from stock's: {comparison.other_size})" if comparison.other_size else ""
            )
            lines.append(f"{last}{size if last == comparison.model else ''}")
        ratio = (
            f"{row.ratio:.3f} [{min(row.ratios):.3f}..{max(row.ratios):.3f}]" if row.ratios else "no ratio"
        )
        lines.append(f"    {row.work:<24}{median(row.seconds):>10.4f}  {ratio}")
    if comparison.equal_hypotheses:
        equal, all_of_them = comparison.equal_hypotheses
        lines.append(f"with stock's weights, {equal} of {all_of_them} hypotheses equal stock's")
    elif any(row.work == SEARCH for row in comparison.rows):
        lines.append("stock's weights do not fit this model")
    return "\n".join(lines)
