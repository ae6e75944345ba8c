"""A table's figure, as figure 2 of Peng et al. (2020): columns over the share of the training data, a line a
label.

A pretrained row is a horizontal line. Points are means, error bars standard deviations over seeds. The legend
tells how many parameters are trained if the table does.
"""

import io
import os
from typing import TYPE_CHECKING, NamedTuple

from modular_fairseq.runs.evaluation import evaluations_of
from modular_fairseq.runs.papers.results import Results
from modular_fairseq.runs.papers.table import COLUMNS, Table
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.scoring.spread import spread

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# Colours that people who see fewer of them can tell apart (Okabe and Ito 2008); markers differ, too.
STYLES = [
    ("#0072B2", "o"),
    ("#D55E00", "s"),
    ("#009E73", "^"),
    ("#CC79A7", "D"),
    ("#E69F00", "v"),
    ("#56B4E9", "P"),
]


class Curve(NamedTuple):
    """A label's points, ascending in the percent of training data; `flat`: its one point holds for any."""

    label: str
    percent: list[int]
    mean: list[float]
    deviation: list[float]
    flat: bool


def lines(table: Table, found: dict[str, Results], column: str) -> list[Curve]:
    """Return what there is to draw of a column, in the order of the table."""
    points: dict[str, list[tuple[int, list[float], bool]]] = {}
    for row in table.rows:
        values = found[row.name].numbers(column) if row.name in found else []
        if values:
            points.setdefault(row.label.strip(), []).append((row.percent, values, row.pretrained))
    drawn = []
    for label, those in points.items():
        percent, values, flat = zip(*sorted(those), strict=True)
        means, deviations = zip(*map(spread, values), strict=True)
        drawn.append(
            Curve(label, list(percent), list(means), [each or 0.0 for each in deviations], all(flat))
        )
    return drawn


def draw(table: Table, found: dict[str, Results], scale: str = "paper") -> "Figure":
    """Draw the figure of what there is.

    Raises:
        UsageError: matplotlib is not installed.
    """
    try:
        from matplotlib.figure import Figure
        from matplotlib.ticker import FixedLocator
    except ImportError:
        raise UsageError(
            "the figure needs matplotlib; install it with pip install matplotlib, or run scripts/setup.sh, "
            "and repeat"
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
            spread = line.deviation if any(line.deviation) else None
            axes.errorbar(line.percent, line.mean, spread, color=color, marker=marker, capsize=3, label=label)
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
    """Return the label, with the number of trained parameters if the table has it."""
    trained = results.numbers("trained_parameters") if "trained_parameters" in table.columns else []
    return f"{label}: {trained[0]:,} parameters" if trained else label


def write_figure(figure: "Figure", folder: str) -> None:
    """Write figure.svg and figure.png into the folder, each whole or not at all. The same results give the
    same bytes.

    Raises:
        UsageError: the folder cannot be written.
    """
    import matplotlib

    try:
        for kind, metadata in (("svg", {"Date": None}), ("png", {})):
            picture = io.BytesIO()
            with matplotlib.rc_context({"svg.hashsalt": "modular_fairseq"}):
                figure.savefig(picture, format=kind, dpi=160, metadata=metadata)
            write_file(os.path.join(folder, f"figure.{kind}"), picture.getvalue())
    except OSError as error:
        raise UsageError(f"{folder}: the figure cannot be written ({error.strerror}); mend that") from None
