"""Draw the maps of the first sentence of a checkpoint: attention, masks, competition."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from modular_fairseq_cli.report.checkpoint import Checkpoint
from modular_fairseq_cli.report.figure_parts import NamedFigures, grid, layer_of, literal, place


def map_figures(checkpoint: Checkpoint) -> NamedFigures:
    """Yield the maps of the first sentence, each with its name.

    Each kind of attention has a figure of the attention weights and one of the semantic masks, with a row for
    each module and a column for each head. Each side has a figure of the competition. Figures without data
    are left out.
    """
    if not checkpoint.sentences:
        return
    sentence, arrays = checkpoint.sentences[0], checkpoint.arrays[0]
    places = {
        layer["module"]: place(layer)
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
                weights = {module["module"]: arrays[f"{what}/{module['module']}"] for module in of_kind}
                yield f"{what}-{kind.replace(' ', '-')}", _heads(of_kind, weights)
    for side, tokens in (("encoder", sentence["source"]), ("decoder", sentence["target_in"])):
        layers = [
            layer
            for layer in checkpoint.competition_layers
            if layer.startswith(side) and f"competition/{layer}" in arrays
        ]
        if layers:
            strip = np.stack([arrays[f"competition/{layer}"][:, 0] for layer in layers])
            figure, [ax] = grid(1, 1, 1.6 + 0.3 * len(tokens), 1 + 0.25 * len(layers))
            image = ax.imshow(strip, cmap="viridis", vmin=0, vmax=1, aspect="auto")
            ax.set_xticks(range(len(tokens)), [literal(token) for token in tokens], rotation=90, fontsize=7)
            ax.set_yticks(range(len(layers)), [places.get(layer, layer) for layer in layers], fontsize=7)
            figure.colorbar(image, label="mechanism 1")
            yield f"competition-{side}", figure


def _heads(modules: Sequence[dict[str, Any]], weights: Mapping[str, np.ndarray]) -> Figure:
    """Draw the maps of all heads in one image: a row for each module, and a column for each head.

    The gap between two maps is a tenth of a map. `weights` has the weights [H, T, S] of each module by its
    name; they are drawn by their square roots, so that small weights can be seen.
    """
    queries, keys = weights[modules[0]["module"]].shape[1:]
    height, width = queries + max(1, queries // 10), keys + max(1, keys // 10)
    columns = max(module["heads"] for module in modules)
    mosaic = np.full((height * len(modules), width * columns), np.nan)
    for row, module in enumerate(modules):
        for head, values in enumerate(weights[module["module"]]):
            mosaic[row * height :, head * width :][:queries, :keys] = np.sqrt(values)
    figure, [ax] = grid(1, 1, 0.9 * columns + 1.4, 0.9 * len(modules) + 0.5)
    image = ax.imshow(mosaic, cmap="viridis", vmin=0, vmax=1, aspect="auto", interpolation="nearest")
    ax.set_xticks(
        np.arange(columns) * width + keys / 2, [f"head {i + 1}" for i in range(columns)], fontsize=7
    )
    names = [layer_of(module) for module in modules]
    ax.set_yticks(np.arange(len(modules)) * height + queries / 2, names, fontsize=7)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)
    colours = figure.colorbar(image, label="weight", shrink=0.6)
    colours.set_ticks([0, 0.25, 0.5, 0.75, 1], labels=["0", "0.06", "0.25", "0.56", "1"])
    return figure
