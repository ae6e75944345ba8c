"""What a benchmark's times say: ratios to stock, when they are not to be trusted, and the table (the package
takes the times).
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
LIMIT = 0.03  # between the medians of the two copies' ratios

Times = dict[tuple[str, str], list[float]]  # seconds in each round


@dataclass(frozen=True)
class Row:
    """A line of the table: seconds in each round, their ratios to stock and the median ratio; none where
    stock's copies differ too much.
    """

    model: str
    work: str
    seconds: list[float]
    ratios: list[float] | None
    ratio: float | None


@dataclass(frozen=True)
class Comparison:
    """The models that share their stock.

    Args:
        stock: its size in words.
        equal_hypotheses: by model, how many hypotheses are stock's when the weights are, and of how many:
            all, for plain attention and for gates that start uniform (--mae-gate-init zero); fewer for what
            computes something else with the same weights, such as --no-residual. None where stock's weights
            do not fit.
        other_sizes: by model, its size in words where it is not stock's.
        differences: by work, how far the medians of the two copies' ratios are apart.
        refusals: a sentence for each work whose ratios are not reported.
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
    """Ratios to the mean of stock's copies, per round. `intervals`: epochs of which one has G steps, for
    models that have them.
    """
    peers, differences, rows = {}, {}, []
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
        rows.append(Row(model, work, seconds, ratios, ratios and median(ratios)))

    for (model, work), seconds in times.items():
        add_row(model, work, seconds)
        if work == G_STEP:
            average = [f + g / intervals[model] for f, g in zip(times[model, F_STEP], seconds, strict=True)]
            add_row(model, f"{BCD}, interval {intervals[model]}", average)
    refusals = [
        f"{work}: two copies of {stock} differ by {difference:.1%}, more than {LIMIT:.0%}, so no ratio is "
        "reported"
        for work, difference in differences.items()
        if difference > LIMIT
    ]
    return Comparison(stock, equal, other_sizes or {}, differences, refusals, rows)


def format_comparison(comparison: Comparison) -> str:
    lines, model = (
        [f"stock: {comparison.stock}", *(f"NOT RELIABLE: {refusal}" for refusal in comparison.refusals)],
        None,
    )
    for row in comparison.rows:
        if row.model != model:
            model = row.model
            lines.append(
                f"{model} (not of stock's size: {comparison.other_sizes[model]})"
                if model in comparison.other_sizes
                else model
            )
        ratio = (
            f"{row.ratio:.3f} [{min(row.ratios):.3f}..{max(row.ratios):.3f}]"
            if row.ratios
            else "not reliable"
        )
        lines.append(f"    {row.work:<24}{median(row.seconds):>10.4f}  {ratio}")
    for model, equal in comparison.equal_hypotheses.items():
        found = f"{equal[0]} of {equal[1]} hypotheses are equal" if equal else "they do not fit"
        lines.append(f"{model}, given stock's weights: {found}")
    return "\n".join(lines)
