"""Parts that the figures of the report share: colours, grids of axes, maps with numbers, names of modules."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

# The colours of the checkpoints, in their order; the page has the same.
COLOURS = ("#0b62b0", "#c2470a", "#00795a", "#a23b86", "#8a6d00", "#3f4650")

NamedFigures = Iterator[tuple[str, Figure]]


def grid(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    """Return a figure with `count` axes in rows of at most `columns`, each of a size in inches."""
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for left_over in axes[count:]:
        left_over.remove()
    return figure, axes[:count]


def numbered_map(
    ax: Axes,
    values: np.ndarray,
    rows: Sequence[str],
    columns: Sequence[str],
    colours: str,
    text: str,
    low: float,
    high: float,
) -> None:
    """Draw a matrix as a map of coloured cells with numbers in them.

    Args:
        ax: the axes.
        values: the matrix; a value that is not finite leaves its cell empty.
        rows: the names of the rows.
        columns: the names of the columns.
        colours: the colour map of matplotlib.
        text: the format of a number, such as "{:.1f}".
        low: the value of the first colour.
        high: the value of the last colour. If `low` is negative, the middle colour is light and both ends are
            dark.
    """
    ax.imshow(values, cmap=colours, vmin=low, vmax=high, aspect="auto")
    ax.set_xticks(
        range(len(columns)), columns, fontsize=7, rotation=0 if len(max(columns, key=len)) < 4 else 90
    )
    ax.set_yticks(range(len(rows)), rows, fontsize=7)
    middle, reach = (low + high) / 2, (high - low) / 2
    for (row, column), value in np.ndenumerate(values):
        if np.isfinite(value):
            strong = (value - middle) / reach > 0.55 or (low < 0 and abs(value) / reach > 0.7)
            ax.text(
                column,
                row,
                text.format(value),
                ha="center",
                va="center",
                fontsize=7,
                color="white" if strong else "black",
            )
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def place(module: dict[str, Any]) -> str:
    """Return the name of a module on the page, such as "cross-attention, layer 1".

    A module without a number of its layer keeps its dotted name.
    """
    if not module.get("layer"):
        return module["module"]
    side = "cross-attention" if "encoder_attn" in module["module"] else module["module"].split(".")[0]
    return f"{side}, {layer_of(module)}"


def layer_of(module: dict[str, Any]) -> str:
    """Return the layer and stream of a module, such as "layer 2, stream 1".

    A module without a number of its layer keeps its dotted name.
    """
    if not module.get("layer"):
        return module["module"]
    return f"layer {module['layer']}" + (f", stream {module['stream']}" if module.get("stream") else "")


def number(value: float | None) -> str:
    """Return a value with three decimals, or a dash for None (a single head has no redundancy)."""
    return "–" if value is None else f"{value:.3f}"


def literal(token: str) -> str:
    """Return a token as matplotlib shows it as it is.

    Dollar signs, which would begin a formula, are escaped. A label that begins with _ would not be in a
    legend, so it gets a space of no width before it.
    """
    return ("\u200b" if token.startswith("_") else "") + token.replace("$", r"\$")
