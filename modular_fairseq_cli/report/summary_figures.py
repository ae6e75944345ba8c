"""Draw the figures of one checkpoint: gates, competition, attention patterns, redundancy of heads.

Each function yields figures with their names, and none if the checkpoint lacks the analysis.
"""

import numpy as np
from matplotlib.figure import Figure

from modular_fairseq_cli.report.checkpoint import Checkpoint
from modular_fairseq_cli.report.figure_parts import (
    COLOURS,
    NamedFigures,
    grid,
    layer_of,
    number,
    numbered_map,
    place,
)

CLASS_COLOURS = ("#d55e00", "#0072b2", "#56b4e9", "#009e73", "#e0a800", "#9aa3ad")  # of attention patterns
# The percentiles of the competition's entropy, each with its line style and its text in the legend.
PERCENTILES = (
    ("5", ":", "5 and 95 %"),
    ("25", "--", "25 and 75 %"),
    ("50", "-", "median"),
    ("75", "--", None),
    ("95", ":", None),
)


def gate_figures(checkpoint: Checkpoint) -> NamedFigures:
    """Yield the share of the instances at each expert, and the entropy of the gates."""
    modules = checkpoint.analyses.get("gates", {}).get("modules", [])
    if not modules:
        return
    names = [place(module) for module in modules]
    shares = np.full((len(modules), max(len(module["shares"]) for module in modules)), np.nan)
    for row, module in enumerate(modules):
        shares[row, : len(module["shares"])] = np.multiply(100, module["shares"])
    figure, [ax] = grid(1, 1, 1.8 + 0.45 * shares.shape[1], 1 + 0.24 * len(modules))
    numbered_map(
        ax,
        shares,
        names,
        [f"E{i + 1}" for i in range(shares.shape[1])],
        "Blues",
        "{:.1f}",
        0,
        2 * np.nanmax(shares),
    )
    ax.set_title("% of instances at each expert")
    yield "assignment", figure

    figure, [ax] = grid(1, 1, 4.5, 1 + 0.24 * len(modules))
    ax.barh(names, [module["entropy"] for module in modules], color=COLOURS[0])
    for row, module in enumerate(modules):
        ax.plot(
            [module["uniform"]] * 2,
            [row - 0.45, row + 0.45],
            color="black",
            linewidth=1,
            label="uniform" if row == 0 else None,
        )
    ax.invert_yaxis()
    ax.set_xlabel("entropy of the gate, nats")
    figure.legend(fontsize=7, loc="outside upper right")
    yield "gate-entropy", figure


def competition_figures(checkpoint: Checkpoint) -> NamedFigures:
    """Yield the entropy of the competition in each layer, and its correlation between layers."""
    competition = checkpoint.analyses.get("competition")
    if not competition:
        return
    sides = list(dict.fromkeys(layer["side"] for layer in competition["layers"]))
    figure, axes = grid(len(sides), 2, 4, 2.8)
    for ax, side in zip(axes, sides, strict=True):
        layers = [layer for layer in competition["layers"] if layer["side"] == side]
        for percentile, style, legend in PERCENTILES:
            values = [layer["percentiles"][percentile] for layer in layers]
            ax.plot(values, style, color=COLOURS[0], marker=".", label=legend)
        ax.plot([layer["uniform"] for layer in layers], color="black", linewidth=0.8, label="uniform")
        ax.set_xticks(
            range(len(layers)), [place(layer) for layer in layers], rotation=30, ha="right", fontsize=7
        )
        ax.set(ylabel="entropy of the competition, nats", title=side, ylim=(0, None))
    axes[0].legend(fontsize=7, ncols=2, handlelength=3)
    yield "competition-entropy", figure

    places = {layer["module"]: place(layer) for layer in competition["layers"]}
    correlations = [
        (one["side"], one["layers"], one["matrix"])
        for one in competition.get("correlation", [])
        if len(one["layers"]) > 1
    ]
    if correlations:
        size = 1.2 + 0.45 * max(len(layers) for _, layers, _ in correlations)
        figure, axes = grid(len(correlations), 2, size + 0.6, size)
        for ax, (title, layers, matrix) in zip(axes, correlations, strict=True):
            names = [places.get(layer, layer) for layer in layers]
            numbered_map(ax, np.array(matrix, dtype=float), names, names, "RdBu_r", "{:.2f}", -1, 1)
            ax.set_title(title)
        yield "competition-correlation", figure


def activation_figures(checkpoint: Checkpoint) -> NamedFigures:
    """Yield where in pictures the first mechanism of each layer is active: a row for each picture."""
    found = checkpoint.analyses.get("pictures")
    if not found or not found["layers"]:
        return
    shape = (found["height"], found["width"])
    palette = np.array(found["palette"], np.uint8)
    layers = found["layers"]
    rows = [
        [
            np.broadcast_to(palette[numbers], (len(numbers), 3)),
            *(np.array(layer["single"][index][0]) for layer in layers),
        ]
        for index, numbers in enumerate(found["pictures"])
    ]
    blank = np.full((shape[0] * shape[1], 3), 255, np.uint8)
    rows.append([blank, *(np.array(layer["mean"][0]) for layer in layers)])
    titles = ["picture", *(f"c1, {place(layer)}" for layer in layers)]
    width, height = (1.6 * side / max(shape) + 0.1 for side in (shape[1], shape[0]))
    figure, axes = grid(len(rows) * len(titles), len(titles), width, height)
    for ax, cell in zip(axes, (cell for row in rows for cell in row), strict=True):
        ax.set_axis_off()
        ax.imshow(cell.reshape(*shape, *cell.shape[1:]), cmap="gray", vmin=0, vmax=1)
    for ax, title in zip(axes, titles, strict=False):
        ax.set_title(title, fontsize=7)
    axes[-len(titles)].text(0, shape[0] / 2, "mean of all", fontsize=7, va="center")
    yield "activations", figure


def timeline_figures(checkpoint: Checkpoint) -> NamedFigures:
    """Yield the timelines of each analysis that has any: images, and rows of values below them."""
    for name, found in checkpoint.analyses.items():
        for index, each in enumerate(found.get("timelines", []) if isinstance(found, dict) else [], start=1):
            images, rows = each["images"], each["rows"]
            heights = [1.2] * len(images) + [0.22] * len(rows)
            figure = Figure(figsize=(7, sum(heights) + 0.6), layout="constrained")
            axes = figure.subplots(len(heights), 1, height_ratios=heights, squeeze=False)[:, 0]
            for ax, image in zip(axes, images, strict=False):
                values = np.reshape(image["values"], (image["height"], image["width"]))
                ax.imshow(values, cmap="gray", aspect="auto")
                ax.set_ylabel(image["label"], rotation=0, ha="right", va="center", fontsize=7)
            for ax, (label, row) in zip(axes[len(images) :], rows.items(), strict=True):
                ax.imshow([row], cmap="gray", vmin=0, vmax=1, aspect="auto")
                ax.set_ylabel(label, rotation=0, ha="right", va="center", fontsize=7)
            for ax in axes:
                ax.set(xticks=[], yticks=[])
            axes[-1].set_xlabel(f"{each['title']}, {each['seconds']:.1f} s", fontsize=7)
            yield f"{name}-{index}", figure


def pattern_figures(checkpoint: Checkpoint) -> NamedFigures:
    """Yield the share of each attention pattern in each module."""
    patterns = checkpoint.analyses.get("patterns")
    if not patterns or not patterns["modules"]:
        return
    figure, [ax] = grid(1, 1, 6.5, 1 + 0.24 * len(patterns["modules"]))
    names = [place(module) for module in patterns["modules"]]
    shares = np.array([module["shares"] for module in patterns["modules"]], dtype=float)
    left = np.zeros(len(names))
    for name, colour, share in zip(patterns["classes"], CLASS_COLOURS, shares.T, strict=True):
        ax.barh(names, share, left=left, color=colour, label=name)
        left += share
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="share of heads and sentences")
    figure.legend(fontsize=7, loc="outside right upper")
    yield "patterns", figure


def redundancy_figures(checkpoint: Checkpoint) -> NamedFigures:
    """Yield the redundancy of every pair of heads by distance, for each kind of attention."""
    redundancy = checkpoint.analyses.get("redundancy", {})
    types = [one for one in redundancy.get("types", []) if one["pairs_distance"]]
    if not types:
        return
    figure, axes = grid(len(types), 3, 3.2, 3)
    for ax, one in zip(axes, types, strict=True):
        image = ax.imshow(np.array(one["pairs_distance"], dtype=float), cmap="viridis", vmin=0, vmax=1)
        starts = np.cumsum([0, *[module["heads"] for module in one["modules"]][:-1]])
        names = [layer_of(module) for module in one["modules"]]
        ax.set_xticks(starts, names, rotation=90, fontsize=5)
        ax.set_yticks(starts, names, fontsize=5)
        ax.set_title(
            f"{one['type']}: LR {number(one['LR_distance'])}, HR {number(one['HR_distance'])}", fontsize=8
        )
    figure.colorbar(image, ax=axes, label="redundancy by distance", shrink=0.8)
    yield "redundancy-pairs", figure
