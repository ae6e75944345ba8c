"""Draws the figures of the report as files, by matplotlib: one a subject, named LABEL-SUBJECT, for papers and
slides.
"""

import io
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from modular_fairseq_cli.report.checkpoint import Checkpoint
from modular_fairseq_cli.report.training_log import CURVES, GATES, LEARNING, LOSSES, Curve

STYLE = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "savefig.dpi": 200,
    "svg.hashsalt": "modular_fairseq",  # the same numbers give the same file
    "svg.fonttype": "path",
}
COLOURS = (
    "#0b62b0",
    "#c2470a",
    "#00795a",
    "#a23b86",
    "#8a6d00",
    "#3f4650",
)  # of checkpoints, as on the page, and their marks
MARKS = "os^DPv"
CLASS_COLOURS = ("#d55e00", "#0072b2", "#56b4e9", "#009e73", "#e0a800", "#9aa3ad")
PERCENTILES = (
    ("5", ":", "5 and 95 %"),
    ("25", "--", "25 and 75 %"),
    ("50", "-", "median"),
    ("75", "--", None),
    ("95", ":", None),
)
FIGURES_OF_CURVES = {
    "learning-curves": LEARNING,
    "gates-over-training": GATES,
    "losses-over-training": LOSSES,
}

Named = Iterator[tuple[str, Figure]]


def draw(checkpoints: Sequence[Checkpoint], formats: Iterable[str]) -> dict[str, bytes]:
    """Return the content of NAME.svg, NAME.png, or both, of every figure that the checkpoints have data for,
    by the file's name.
    """
    files = {}
    with matplotlib.rc_context(STYLE):
        for name, figure in _figures(checkpoints):
            for kind in formats:
                content = io.BytesIO()
                figure.savefig(
                    content, format=kind, metadata={"Date": None} if kind == "svg" else {"Software": None}
                )
                files[f"{name}.{kind}"] = content.getvalue()
    return files


def _figures(checkpoints: Sequence[Checkpoint]) -> Named:
    for name, group in FIGURES_OF_CURVES.items():
        logged = {key for checkpoint in checkpoints for by_key in checkpoint.log.values() for key in by_key}
        present = [curve for curve in CURVES if curve.group == group and curve.key in logged]
        if present:
            yield name, _curves(checkpoints, present)
    if any("redundancy" in checkpoint.analyses for checkpoint in checkpoints):
        yield "redundancy", _redundancy_bars(checkpoints)
    for checkpoint, prefix in zip(
        checkpoints, _file_names([checkpoint.label for checkpoint in checkpoints]), strict=True
    ):
        for subject in (_gates, _competition, _patterns, _redundancy_pairs, _maps):
            for name, figure in subject(checkpoint):
                yield f"{prefix}-{name}", figure


def _file_names(labels: Sequence[str]) -> list[str]:
    names = [re.sub(r"[^\w.+-]+", "-", label).strip("-.") for label in labels]
    return [
        name if name and names.count(name) == 1 else f"{name or 'checkpoint'}-{i + 1}"
        for i, name in enumerate(names)
    ]


def _grid(count: int, columns: int, width: float, height: float) -> tuple[Figure, list[Axes]]:
    columns = min(columns, count)
    rows = -(-count // columns)
    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    axes = list(figure.subplots(rows, columns, squeeze=False).flat)
    for left_over in axes[count:]:
        left_over.remove()
    return figure, axes[:count]


def _curves(checkpoints: Sequence[Checkpoint], shown: Sequence[Curve]) -> Figure:
    figure, axes = _grid(len(shown), 2, 4, 2.8)
    logs = [checkpoint.log for checkpoint in checkpoints]
    for ax, (key, title, unit, _) in zip(axes, shown, strict=True):
        for i, (checkpoint, colour, mark) in enumerate(zip(checkpoints, COLOURS, MARKS, strict=False)):
            if logs.index(checkpoint.log) < i:  # checkpoints of one training: drawn with the first of them
                continue
            label = " and ".join(other.label for other in checkpoints if other.log == checkpoint.log)
            inner = "train_inner" if key in checkpoint.log.get("train_inner", {}) else "train"
            for split, curves in checkpoint.log.items():
                if key in curves and (split == inner or not split.startswith("train")):
                    style = (
                        {"linewidth": 0.8, "alpha": 0.8}
                        if split == inner
                        else {"linewidth": 1.6, "marker": mark, "markersize": 3}
                    )
                    name = "training" if split == inner else "validation" if split == "valid" else split
                    ax.plot(*zip(*curves[key], strict=True), color=colour, label=f"{label}, {name}", **style)
        ax.set(
            xlabel="update",
            ylabel=f"{title}, {unit}" if unit else title,
            yscale="log" if key == "ppl" else "linear",
        )
    axes[0].legend(fontsize=7)
    return figure


def _redundancy_bars(checkpoints: Sequence[Checkpoint]) -> Figure:
    figure, [ax] = _grid(1, 1, 4, 2.8)
    coloured = [
        (one, colour)
        for one, colour in zip(checkpoints, COLOURS, strict=False)
        if "redundancy" in one.analyses
    ]
    width = 0.8 / len(coloured)
    for i, (checkpoint, colour) in enumerate(coloured):
        values = [checkpoint.analyses["redundancy"][name] for name in ("LR", "HR")]
        heights = np.array(values, dtype=float)
        bars = ax.bar(
            np.arange(2) + width * (i - (len(coloured) - 1) / 2),
            heights,
            width,
            color=colour,
            label=checkpoint.label,
        )
        ax.bar_label(bars, labels=[_number(value) for value in values], fontsize=7)
    ax.set_xticks(range(2), ["LR", "HR"])
    ax.set(ylim=(0, 1), ylabel="redundancy of heads")
    ax.legend(fontsize=7)
    return figure


def _gates(checkpoint: Checkpoint) -> Named:
    modules = checkpoint.analyses.get("gates", {}).get("modules", [])
    if not modules:
        return
    names = [_place(module) for module in modules]
    shares = np.full((len(modules), max(len(module["shares"]) for module in modules)), np.nan)
    for row, module in zip(shares, modules, strict=True):
        row[: len(module["shares"])] = np.multiply(100, module["shares"])
    figure, [ax] = _grid(1, 1, 1.8 + 0.45 * shares.shape[1], 1 + 0.24 * len(modules))
    _table(
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

    figure, [ax] = _grid(1, 1, 4.5, 1 + 0.24 * len(modules))
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


def _competition(checkpoint: Checkpoint) -> Named:
    competition = checkpoint.analyses.get("competition")
    if not competition:
        return
    sides = list(dict.fromkeys(layer["side"] for layer in competition["layers"]))
    figure, axes = _grid(len(sides), 2, 4, 2.8)
    for ax, side in zip(axes, sides, strict=True):
        layers = [layer for layer in competition["layers"] if layer["side"] == side]
        for percentile, style, legend in PERCENTILES:
            values = [layer["percentiles"][percentile] for layer in layers]
            ax.plot(values, style, color=COLOURS[0], marker=".", label=legend)
        ax.plot([layer["uniform"] for layer in layers], color="black", linewidth=0.8, label="uniform")
        ax.set_xticks(
            range(len(layers)), [_place(layer) for layer in layers], rotation=30, ha="right", fontsize=7
        )
        ax.set(ylabel="entropy of the competition, nats", title=side, ylim=(0, None))
    axes[0].legend(fontsize=7, ncols=2, handlelength=3)
    yield "competition-entropy", figure

    places = {layer["module"]: _place(layer) for layer in competition["layers"]}
    correlations = [
        (one["side"], one["layers"], one["matrix"])
        for one in competition.get("correlation", [])
        if len(one["layers"]) > 1
    ]
    if correlations:
        size = 1.2 + 0.45 * max(len(layers) for _, layers, _ in correlations)
        figure, axes = _grid(len(correlations), 2, size + 0.6, size)
        for ax, (title, layers, matrix) in zip(axes, correlations, strict=True):
            names = [places.get(layer, layer) for layer in layers]
            _table(ax, np.array(matrix, dtype=float), names, names, "RdBu_r", "{:.2f}", -1, 1)
            ax.set_title(title)
        yield "competition-correlation", figure


def _patterns(checkpoint: Checkpoint) -> Named:
    patterns = checkpoint.analyses.get("patterns")
    if not patterns or not patterns["modules"]:
        return
    figure, [ax] = _grid(1, 1, 6.5, 1 + 0.24 * len(patterns["modules"]))
    names = [_place(module) for module in patterns["modules"]]
    shares = np.array([module["shares"] for module in patterns["modules"]], dtype=float)
    left = np.zeros(len(names))
    for name, colour, share in zip(patterns["classes"], CLASS_COLOURS, shares.T, strict=True):
        ax.barh(names, share, left=left, color=colour, label=name)
        left += share
    ax.invert_yaxis()
    ax.set(xlim=(0, 1), xlabel="share of heads and sentences")
    figure.legend(fontsize=7, loc="outside right upper")
    yield "patterns", figure


def _redundancy_pairs(checkpoint: Checkpoint) -> Named:
    types = [one for one in checkpoint.analyses.get("redundancy", {}).get("types", []) if one["pairs"]]
    if not types:
        return
    figure, axes = _grid(len(types), 3, 3.2, 3)
    for ax, one in zip(axes, types, strict=True):
        image = ax.imshow(np.array(one["pairs"], dtype=float), cmap="viridis", vmin=0, vmax=1)
        starts = np.cumsum([0, *[module["heads"] for module in one["modules"]][:-1]])
        names = [_layer(module) for module in one["modules"]]
        ax.set_xticks(starts, names, rotation=90, fontsize=5)
        ax.set_yticks(starts, names, fontsize=5)
        ax.set_title(f"{one['type']}: LR {_number(one['LR'])}, HR {_number(one['HR'])}", fontsize=8)
    figure.colorbar(image, ax=axes, label="redundancy", shrink=0.8)
    yield "redundancy-pairs", figure


def _maps(checkpoint: Checkpoint) -> Named:
    """Draw the attention of the first sentence, its masks where there are, each kind as a grid of modules and
    heads, and the competition.
    """
    if not checkpoint.sentences:
        return
    sentence, arrays = checkpoint.sentences[0], checkpoint.arrays[0]
    places = {
        layer["module"]: _place(layer)
        for layer in checkpoint.analyses.get("competition", {}).get("layers", [])
    }
    for what in ("attention", "mask"):
        for kind in dict.fromkeys(module["kind"] for module in checkpoint.modules):
            of_kind = [
                module
                for module in checkpoint.modules
                if module["kind"] == kind and f"{what}/{module['module']}" in arrays
            ]
            if of_kind:
                yield (
                    f"{what}-{kind.replace(' ', '-')}",
                    _heads(of_kind, lambda name, what=what: arrays[f"{what}/{name}"]),
                )
    for side, tokens in (("encoder", sentence["source"]), ("decoder", sentence["target_in"])):
        layers = [
            layer
            for layer in checkpoint.competition_layers
            if layer.startswith(side) and f"competition/{layer}" in arrays
        ]
        if layers:
            strip = np.stack([arrays[f"competition/{layer}"][:, 0] for layer in layers])
            figure, [ax] = _grid(1, 1, 1.6 + 0.3 * len(tokens), 1 + 0.25 * len(layers))
            image = ax.imshow(strip, cmap="viridis", vmin=0, vmax=1, aspect="auto")
            ax.set_xticks(range(len(tokens)), [_literal(token) for token in tokens], rotation=90, fontsize=7)
            ax.set_yticks(range(len(layers)), [places.get(layer, layer) for layer in layers], fontsize=7)
            figure.colorbar(image, label="mechanism 1")
            yield f"competition-{side}", figure


def _heads(modules: Sequence[dict], weights: Callable[[str], np.ndarray]) -> Figure:
    """Return a mosaic: a row for each module, a column for each head, a gap of a tenth of a map between."""
    queries, keys = weights(modules[0]["module"]).shape[1:]
    height, width = queries + max(1, queries // 10), keys + max(1, keys // 10)
    columns = max(module["heads"] for module in modules)
    mosaic = np.full((height * len(modules), width * columns), np.nan)
    for row, module in enumerate(modules):
        for head, values in enumerate(weights(module["module"])):
            mosaic[row * height :, head * width :][:queries, :keys] = np.sqrt(values)
    figure, [ax] = _grid(1, 1, 0.9 * columns + 1.4, 0.9 * len(modules) + 0.5)
    image = ax.imshow(mosaic, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_xticks(
        np.arange(columns) * width + keys / 2, [f"head {i + 1}" for i in range(columns)], fontsize=7
    )
    names = [_layer(module) for module in modules]
    ax.set_yticks(np.arange(len(modules)) * height + queries / 2, names, fontsize=7)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    colours = figure.colorbar(image, label="weight", shrink=0.6)
    colours.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "0.06", "0.25", "0.56", "1"])
    return figure


def _table(
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


def _place(module: dict) -> str:
    """Return how the page calls a module, "cross-attention, layer 1", or its name where no layer is given."""
    if not module.get("layer"):
        return module["module"]
    side = "cross-attention" if "encoder_attn" in module["module"] else module["module"].split(".")[0]
    return f"{side}, {_layer(module)}"


def _layer(module: dict) -> str:
    """Return the layer and stream of a module, or its name where no layer is given."""
    if not module.get("layer"):
        return module["module"]
    return f"layer {module['layer']}" + (f", stream {module['stream']}" if module.get("stream") else "")


def _number(value: float | None) -> str:
    """Return the text of a value, or a dash where there is none, as of the pairs of a single head."""
    return "–" if value is None else f"{value:.3f}"


def _literal(token: str) -> str:
    """Return a token as matplotlib shows it: a dollar sign begins no formula."""
    return token.replace("$", r"\$")
