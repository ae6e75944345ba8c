"""The figure of a table, which has the form of figure 2 of Peng et al. (2020).

Each panel shows a column over the share of the training data, with one line for each label. A pretrained row
is a horizontal line. Points are means and error bars are standard deviations over seeds. The legend states
the number of trained parameters if the table has a column for it.
"""

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from modular_fairseq.runs.evaluation import evaluations_of
from modular_fairseq.runs.papers.results import Results
from modular_fairseq.runs.papers.table import COLUMNS, Table
from modular_fairseq_cli.curves import save
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.spread import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that colour-blind people can tell apart (Okabe and Ito 2008), and a different marker for each.
STYLES = [
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
]


class Curve(NamedTuple):
    """A line of the figure, which connects the points of a label.

    Args:
        label: the label of its rows.
        percent: shares of the training data, in ascending order.
        mean: the mean at each share.
        deviation: the standard deviation at each share; 0 for a single seed.
        flat: whether the line is horizontal, because its single point does not depend on the share.
    """

    label: str
    percent: list[int]
    mean: list[float]
    deviation: list[float]
    flat: bool


def lines(table: Table, found: dict[str, Results], column: str) -> list[Curve]:
    """Return the lines of a column that have results, in the order of the table.

    Args:
        table: the table.
        found: the results of the rows, keyed by name.
        column: name of the column.
    """
    points: dict[str, list[tuple[int, list[float], bool]]] = {}
    for row in table.rows:
        values = found[row.name].numbers(column) if row.name in found else []
        if values:
            points.setdefault(row.label.strip(), []).append((row.percent, values, row.pretrained))
    drawn = []
    for label, unsorted in points.items():
        ordered = sorted(unsorted)
        spreads = [each for _, values, _ in ordered if (each := spread(values))]
        percent, means = [share for share, _, _ in ordered], [each.mean for each in spreads]
        deviations = [each.deviation or 0.0 for each in spreads]
        drawn.append(Curve(label, percent, means, deviations, all(flat for _, _, flat in ordered)))
    return drawn


def draw(table: Table, found: dict[str, Results], scale: str = "paper") -> "Figure":
    """Draw the figure of the results that exist.

    Args:
        table: the table.
        found: the results of the rows, keyed by name.
        scale: name of the scale; the title mentions one other than paper.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FixedLocator
    except ImportError:
        raise UsageError(
            "the figure needs matplotlib; install it with pip install matplotlib, or run scripts/setup.sh, "
            "and repeat the command"
        ) from None
    figure = Figure(figsize=(6.0 * len(table.figure), 4.4), layout="constrained")
    of_rows = {row.label.strip(): found[row.name] for row in table.rows if row.name in found}
    subsets = sorted({row.subset for row in table.rows if row.name})
    panels = figure.subplots(1, len(table.figure), squeeze=False)[0]
    for axes, column in zip(panels, table.figure, strict=True):
        drawn = lines(table, found, column)
        styles = iter(STYLES * len(drawn))
        for line in drawn:
            label = legend(line.label, of_rows[line.label], table)
            if line.flat:
                axes.axhline(line.mean[0], color="#555555", linestyle="--", label=label)
                continue
            color, marker = next(styles)
            bars = line.deviation if any(line.deviation) else None
            axes.errorbar(line.percent, line.mean, bars, color=color, marker=marker, capsize=3, label=label)
        axes.set(
            xlabel="training data (%)",
            ylabel=COLUMNS[column].heading + (f" ({', '.join(subsets)})" if evaluations_of([column]) else ""),
        )
        axes.xaxis.set_major_locator(
            FixedLocator(sorted({percent for line in drawn if not line.flat for percent in line.percent}))
        )
        axes.set_xlim(0, 104)
        axes.grid(alpha=0.3)
    figure.suptitle(
        table.title + ("" if scale == "paper" else f"\n(scale {scale}: other sizes than the paper's)"),
        fontsize="medium",
    )
    panels[0].legend(fontsize="small")
    return figure


def legend(label: str, results: Results, table: Table) -> str:
    """Return a label for the legend, with the number of trained parameters if the table has that column."""
    trained = results.numbers("trained_parameters") if "trained_parameters" in table.columns else []
    return f"{label}: {trained[0]:,} parameters" if trained else label


def write_figure(figure: "Figure", folder: str) -> None:
    """Write figure.svg and figure.png into a folder, each atomically.

    The same results give the same bytes.

    Raises:
        UsageError: the folder cannot be written.
    """
    try:
        for kind in ("svg", "png"):
            save(figure, Path(folder, f"figure.{kind}"))
    except OSError as error:
        raise UsageError(
            f"the figure cannot be written to {folder} ({error.strerror}); correct that, or give another "
            "--out"
        ) from None
