"""Draw the figures of the report as files for papers and slides, with matplotlib.

Each subject has a figure of its own. A figure of one checkpoint is named LABEL-SUBJECT.
"""

import io
import itertools
import re
from collections.abc import Iterable, Sequence
from typing import Any

import matplotlib
import numpy as np
from matplotlib.figure import Figure

from modular_fairseq_cli.report.checkpoint import Checkpoint
from modular_fairseq_cli.report.figure_parts import COLOURS, NamedFigures, grid, literal, number
from modular_fairseq_cli.report.sentence_figures import map_figures
from modular_fairseq_cli.report.summary_figures import (
    activation_figures,
    competition_figures,
    gate_figures,
    pattern_figures,
    redundancy_figures,
    timeline_figures,
)
from modular_fairseq_cli.training_log import CURVES, GATES, LEARNING, LOSSES, Curve

STYLE: dict[Any, Any] = {
    "axes.spines.right": False,
    "axes.spines.top": False,
    "font.size": 9,
    "legend.frameon": False,
    "savefig.bbox": "tight",
    "savefig.dpi": 200,
    "svg.hashsalt": "modular_fairseq",  # the same numbers give the same file
    "svg.fonttype": "path",
}
MARKS = "os^DPv"  # the markers of the checkpoints, which tell them apart without colours
# The figures of training curves, and the group of curves that each shows.
FIGURES_OF_CURVES = {
    "learning-curves": LEARNING,
    "gates-over-training": GATES,
    "losses-over-training": LOSSES,
}


def draw(checkpoints: Sequence[Checkpoint], formats: Iterable[str]) -> dict[str, bytes]:
    """Draw every figure for which the checkpoints have data.

    Args:
        checkpoints: at most six of them.
        formats: "svg", "png" or both.

    Returns:
        The content of each file by its name, NAME.svg or NAME.png.
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


def _figures(checkpoints: Sequence[Checkpoint]) -> NamedFigures:
    """Yield every figure with its name: first the figures of all checkpoints together, then of each one."""
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
        for subject in (
            gate_figures,
            competition_figures,
            activation_figures,
            timeline_figures,
            pattern_figures,
            redundancy_figures,
            map_figures,
        ):
            for name, figure in subject(checkpoint):
                yield f"{prefix}-{name}", figure


def _file_names(labels: Sequence[str]) -> list[str]:
    """Return a file name of its own for each label: without special characters, with a number if need be."""
    names = [re.sub(r"[^\w.+-]+", "-", label).strip("-.") or "checkpoint" for label in labels]
    numbered = [f"{name}-{i + 1}" for i, name in enumerate(names)]
    chosen = [
        name if names.count(name) == 1 and name != "checkpoint" else other
        for name, other in zip(names, numbered, strict=True)
    ]
    return chosen if len(set(chosen)) == len(chosen) else numbered


def _curves(checkpoints: Sequence[Checkpoint], shown: Sequence[Curve]) -> Figure:
    """Draw curves of the training, each in its own axes, with all checkpoints that have logged it."""
    figure, axes = grid(len(shown), 2, 4, 2.8)
    logs = [checkpoint.log for checkpoint in checkpoints]
    for ax, (key, title, unit, _) in zip(axes, shown, strict=True):
        for i, (checkpoint, colour, mark) in enumerate(zip(checkpoints, COLOURS, MARKS, strict=False)):
            if logs.index(checkpoint.log) < i:  # checkpoints with the same log are drawn once, as the first
                continue
            label = " and ".join(other.label for other in checkpoints if other.log == checkpoint.log)
            inner = "train_inner" if key in checkpoint.log.get("train_inner", {}) else "train"
            validations = itertools.cycle(("-", "--", ":", "-."))
            for split, curves in checkpoint.log.items():
                if key in curves and (split == inner or not split.startswith("train")):
                    style: dict[str, Any] = (
                        {"linewidth": 0.8, "alpha": 0.8}
                        if split == inner
                        else {
                            "linewidth": 1.6,
                            "linestyle": next(validations),
                            "marker": mark,
                            "markersize": 3,
                        }
                    )
                    name = "training" if split == inner else "validation" if split == "valid" else split
                    ax.plot(
                        *zip(*curves[key], strict=True),
                        color=colour,
                        label=f"{literal(label)}, {name}",
                        **style,
                    )
        ax.set(
            xlabel="update",
            ylabel=f"{title}, {unit}" if unit else title,
            yscale="log" if key == "ppl" else "linear",
        )
    # Not every training has every curve, so the legend has the lines of all axes.
    lines = {str(line.get_label()): line for ax in axes for line in ax.get_lines()}
    axes[0].legend([*lines.values()], [*lines], fontsize=7)
    return figure


def _redundancy_bars(checkpoints: Sequence[Checkpoint]) -> Figure:
    """Draw the redundancy of heads within layers (LR) and between all heads (HR) of each checkpoint.

    It is drawn by the distance, of all maps, and by the divergence, of the encoder's maps.
    """
    figure, [ax] = grid(1, 1, 6.5, 2.8)
    names = [
        f"{measure}_{which}" for which in ("distance_all", "divergence_encoder") for measure in ("LR", "HR")
    ]
    coloured = [
        (one, colour)
        for one, colour in zip(checkpoints, COLOURS, strict=False)
        if "redundancy" in one.analyses
    ]
    width = 0.8 / len(coloured)
    for i, (checkpoint, colour) in enumerate(coloured):
        values = [checkpoint.analyses["redundancy"][name] for name in names]
        heights = np.array(values, dtype=float)
        bars = ax.bar(
            np.arange(len(names)) + width * (i - (len(coloured) - 1) / 2),
            heights,
            width,
            color=colour,
            label=literal(checkpoint.label),
        )
        ax.bar_label(bars, labels=[number(value) for value in values], fontsize=7)
    labels = [name.replace("_", "\n", 1).replace("_", ", ") for name in names]  # LR, below it: distance, all
    ax.set_xticks(range(len(names)), labels, fontsize=7)
    ax.set(ylim=(0, 1), ylabel="redundancy of heads")
    ax.legend(fontsize=7)
    return figure
