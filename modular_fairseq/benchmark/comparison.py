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
    """The measurements of all models that are compared with the same stock.

    Attributes:
        stock: a description of stock with its size.
        equal_hypotheses: for each model, how many hypotheses of a beam search equal those of stock when the
            model has stock's weights, and the number of hypotheses. All are equal for plain attention and for
            gates that start uniform (--mae-gate-init zero). Fewer are equal for a model that computes
            something else with the same weights, as with --no-residual. The value is None if stock's weights
            do not fit the model.
        other_sizes: a description of the size of each model whose size differs from stock's.
        differences: for each kind of work, the relative difference between the two copies of stock (the
            median over rounds).
        refusals: one sentence for each kind of work whose ratios are not reported.
        rows: the lines of the table.
    """

    stock: str
    equal_hypotheses: dict[str, tuple[int, int] | None]
    other_sizes: dict[str, str]
    differences: dict[str, float]
    refusals: list[str]
    rows: list[Row]


def evaluate(
    stock: str,
    equal: dict[str, tuple[int, int] | None],
    times: Times,
    intervals: dict[str, int | None],
    other_sizes: dict[str, str] | None = None,
) -> Comparison:
    """Compute the ratio of each time to the mean of the two copies of stock in the same round.

    Args:
        stock: a description of stock, for messages.
        equal: see `Comparison.equal_hypotheses`.
        times: the times of the models and of both copies of stock.
        intervals: for each model that has G steps, the number of epochs of which one has G steps
            (--mae-gate-interval).
        other_sizes: see `Comparison.other_sizes`.
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

    for (model, work), seconds in times.items():
        add_row(model, work, seconds)
        if work == G_STEP:
            interval = intervals[model]
            assert interval is not None  # the model has G steps
            average = [f + g / interval for f, g in zip(times[model, F_STEP], seconds, strict=True)]
            add_row(model, f"{BCD}, interval {interval}", average)
    refusals = [
        f"{work}: no ratio is reported, because the times of two identical copies of {stock} differ by "
        f"{difference:.1%}, which is more than {LIMIT:.0%}"
        for work, difference in differences.items()
        if difference > LIMIT
    ]
    return Comparison(stock, equal, other_sizes or {}, differences, refusals, rows)


def format_comparison(comparison: Comparison) -> str:
    """Return the table as text: for each model and kind of work the median time and the ratio to stock."""
    lines, model = [f"stock: {comparison.stock}", *comparison.refusals], None
    for row in comparison.rows:
        if row.model != model:
            model = row.model
            lines.append(
                f"{model} (its size differs from stock's: {comparison.other_sizes[model]})"
                if model in comparison.other_sizes
                else model
            )
        ratio = (
            f"{row.ratio:.3f} [{min(row.ratios):.3f}..{max(row.ratios):.3f}]" if row.ratios else "no ratio"
        )
        lines.append(f"    {row.work:<24}{median(row.seconds):>10.4f}  {ratio}")
    for model, equal in comparison.equal_hypotheses.items():
        if equal:
            lines.append(f"{model}: with stock's weights, {equal[0]} of {equal[1]} hypotheses equal stock's")
        else:
            lines.append(f"{model}: stock's weights do not fit this model")
    return "\n".join(lines)
