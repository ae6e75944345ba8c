"""Makes the HTML file: assets/ put together with the numbers, all in one.

Summaries stand in it as JSON. The arrays of a sentence (attention and mask weights, gates, cluster
posteriors, competition) are one block, quantised, deflated and in base64, which the page unpacks when the
sentence is chosen. A browser draws before it has read the blocks.
"""

import base64
import hashlib
import html
import json
import math
import sys
import zlib
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import Any

import numpy as np

from modular_fairseq_cli.report.checkpoint import Checkpoint
from modular_fairseq_cli.report.training_log import CURVES

SCRIPTS = (
    "dom.js",
    "state.js",
    "charts.js",
    "maps.js",
    "summaries.js",
    "mechanisms.js",
    "heads.js",
    "sentences.js",
    "sentence.js",
    "main.js",
)
LEVELS = (255, 127, 63, 31)  # of quantisation: the first with which the page keeps to its size
PATHS = {"checkpoint", "data"}  # of the facts
SIZE = 15_000_000  # bytes: it still opens at once, and goes by mail


def build_page(checkpoints: list[Checkpoint]) -> str:
    """Return the page, with weights as near as its size allows: with fewer levels if more than `SIZE` bytes
    would be needed, and with the fewest whatever they take. Standard error says so in either case.
    """
    for levels in LEVELS:
        packed = [[pack(arrays, levels) for arrays in checkpoint.arrays] for checkpoint in checkpoints]
        page = _assemble(checkpoints, packed, levels)
        size = len(page.encode())
        if size <= SIZE:
            break
    if levels != LEVELS[0]:
        kept = (
            f"weights are kept to ± {largest_error(levels):.3f} instead of ± {largest_error(LEVELS[0]):.3f}"
        )
        fits = (
            "to keep the page under"
            if size <= SIZE
            else f"and the page has {size / 1e6:.1f} MB all the same, over the"
        )
        less = "`modular-fairseq analyze` with fewer --samples makes it smaller"
        print(f"modular-fairseq report: {kept}, {fits} {SIZE / 1e6:.0f} MB; {less}", file=sys.stderr)
    return page


def quantize(values: np.ndarray, levels: int) -> np.ndarray:
    """Return weights in [0, 1] as whole numbers q, 0 to `levels`, that stand for (q / levels)^2: at most
    `largest_error` away, small ones less.
    """
    return np.rint(levels * np.sqrt(np.clip(values, 0, 1))).astype(np.uint8)


def largest_error(levels: int) -> float:
    """Return a bound of the error of `quantize`. Half a step where steps are widest, between the last two
    levels, is 1 / levels - 1 / (4 levels^2); the rounding of the root is smaller than the rest.
    """
    return 1 / levels


def pack(arrays: dict[str, np.ndarray], levels: int) -> tuple[dict[str, list[int]], str]:
    """Return the shapes of the arrays of a sentence by name, and their content in a row, in base64: where one
    ends the next begins.
    """
    shapes = {name: list(values.shape) for name, values in arrays.items()}
    content = b"".join(quantize(values, levels).tobytes() for values in arrays.values())
    return shapes, base64.b64encode(zlib.compress(content, 9)).decode()


def _assemble(checkpoints: list[Checkpoint], packed: list[list[tuple[dict, str]]], levels: int) -> str:
    """Return the page. `packed` holds what `pack` returned, by checkpoint and sentence. The page has only the
    names of files and folders, not their paths, as it may go anywhere.
    """
    data = {
        "levels": levels,
        "error": largest_error(levels),
        "curves": CURVES,
        "checkpoints": [
            {
                "label": checkpoint.label,
                "facts": checkpoint.facts
                | {key: PurePath(str(checkpoint.facts[key])).name for key in PATHS & checkpoint.facts.keys()},
                "analyses": checkpoint.analyses,
                "modules": checkpoint.modules,
                "competition_layers": checkpoint.competition_layers,
                "sentences": checkpoint.sentences,
                "shapes": [shapes for shapes, _ in blocks],
                "log": checkpoint.log,
            }
            for checkpoint, blocks in zip(checkpoints, packed, strict=True)
        ],
    }
    blocks = [
        f'<script type="text/plain" id="block-{run}-{sentence}">{block}</script>'
        for run, sentences in enumerate(packed)
        for sentence, (_, block) in enumerate(sentences)
    ]
    style, script = _asset("page.css"), "".join(_asset(name) for name in SCRIPTS)
    return Template(_asset("page.html")).substitute(
        title=html.escape(" · ".join(checkpoint.label for checkpoint in checkpoints))
        .encode("utf-8", "replace")
        .decode(),
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri "
        "'none'; form-action 'none'",
        style=style,
        script=script,
        data=_embeddable(data),
        blocks="\n".join(blocks),
    )


def _asset(name: str) -> str:
    """Return the text of a file of assets/."""
    return (files("modular_fairseq_cli.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return what a Content-Security-Policy calls a style or script that may run."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embeddable(data: Any) -> str:
    """Return JSON that stays inside its <script>, whatever the tokens are."""
    return json.dumps(_rounded(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _rounded(data: Any) -> Any:
    """Return the same data with six digits of every number, and None for what is not finite."""
    if isinstance(data, float):
        return float(f"{data:.6g}") if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_rounded(value) for value in data]
    return data
