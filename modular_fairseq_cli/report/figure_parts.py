"""What the figures of the report share: colours, grids of axes, maps with numbers, and names of places."""

from collections.abc import Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

COLOURS = ("#0b62b0", "#c2470a", "#00795a", "#a23b86", "#8a6d00", "#3f4650")  # of checkpoints, as on the page

Named = Iterator[tuple[str, Figure]]  # figures with their names


def grid(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
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


def place(module: dict) -> str:
    """Return how the page calls a module, "cross-attention, layer 1", or its name where no layer is given."""
    if not module.get("layer"):
        return module["module"]
    side = "cross-attention" if "encoder_attn" in module["module"] else module["module"].split(".")[0]
    return f"{side}, {layer_of(module)}"


def layer_of(module: dict) -> str:
    """Return the layer and stream of a module, or its name where no layer is given."""
    if not module.get("layer"):
        return module["module"]
    return f"layer {module['layer']}" + (f", stream {module['stream']}" if module.get("stream") else "")


def number(value: float | None) -> str:
    """Return the text of a value, or a dash where there is none, as of the pairs of a single head."""
    return "–" if value is None else f"{value:.3f}"


def literal(token: str) -> str:
    """Return a token as matplotlib shows it: a dollar sign begins no formula."""
    return token.replace("$", r"\$")
