"""Make the HTML file of the report: the files of assets/ and the data in one.

The summaries are JSON. The arrays of each sentence (attention and mask weights, gates, cluster posteriors,
competition) are one block: quantised, deflated and in base64. The page unpacks a block when its sentence is
chosen. The blocks stand last, so a browser draws the summaries before it has read them.
"""

import base64
import hashlib
import html
import json
import math
import re
import sys
import zlib
from importlib.resources import files
from pathlib import PurePath
from string import Template
from typing import Any

import numpy as np

from modular_fairseq_cli.report.checkpoint import Checkpoint
from modular_fairseq_cli.training_log import CURVES

# The page joins these files of assets/ into one script, in this order.
SCRIPTS = (
    "dom.js",
    "state.js",
    "charts.js",
    "maps.js",
    "summaries.js",
    "mechanisms.js",
    "pictures.js",
    "others.js",
    "heads.js",
    "sentences.js",
    "sentence.js",
    "main.js",
)
LEVELS = (255, 127, 63, 31)  # numbers of quantisation levels; the first that fits into `SIZE` is used
PATHS = {"checkpoint", "data"}  # the facts that are paths
SIZE = 15_000_000  # bytes; such a page opens at once and can be sent by mail


def build_page(checkpoints: list[Checkpoint]) -> str:
    """Return the page, with weights as exact as `SIZE` allows.

    If the page would be larger, the weights get fewer quantisation levels, which a line on standard error
    reports. With the fewest levels the page may be larger than `SIZE`.
    """
    for levels in LEVELS:
        packed = [[pack(arrays, levels) for arrays in checkpoint.arrays] for checkpoint in checkpoints]
        page = _assemble(checkpoints, packed, levels)
        size = len(page.encode())
        if size <= SIZE:
            break
    if levels != LEVELS[0]:
        kept = (
            f"weights are exact to ± {largest_error(levels):.3f} instead of ± {largest_error(LEVELS[0]):.3f}"
        )
        fits = (
            "to keep the page under"
            if size <= SIZE
            else f"and the page still has {size / 1e6:.1f} MB, over the"
        )
        less = "`modular-fairseq analyze` with fewer --samples makes it smaller"
        print(f"modular-fairseq report: {kept}, {fits} {SIZE / 1e6:.0f} MB; {less}", file=sys.stderr)
    return page


def quantize(values: np.ndarray, levels: int) -> np.ndarray:
    """Return weights in [0, 1] as whole numbers q from 0 to `levels`, which stand for (q / levels)^2.

    The error is at most `largest_error`, and smaller for small weights.
    """
    return np.rint(levels * np.sqrt(np.clip(values, 0, 1))).astype(np.uint8)


def largest_error(levels: int) -> float:
    """Return a bound of the error of `quantize`.

    The steps are widest between the last two levels, where half a step is 1 / levels - 1 / (4 levels^2). The
    bound leaves out the second term, which is larger than the error of rounding the square root.
    """
    return 1 / levels


def pack(arrays: dict[str, np.ndarray], levels: int) -> tuple[dict[str, list[int]], str]:
    """Return the shape of each array of a sentence by name, and the content of all arrays in base64.

    The content is quantised and deflated; the arrays follow each other in the order of their names in the
    first result.
    """
    shapes = {name: list(values.shape) for name, values in arrays.items()}
    content = b"".join(quantize(values, levels).tobytes() for values in arrays.values())
    return shapes, base64.b64encode(zlib.compress(content, 9)).decode()


def _assemble(checkpoints: list[Checkpoint], packed: list[list[tuple[dict, str]]], levels: int) -> str:
    """Return the page from the results of `pack` for each checkpoint and sentence.

    The page has only the names of files and folders, without their paths, as it may be sent to anyone.
    """
    folders = [PurePath(str(checkpoint.facts.get("checkpoint", ""))).parent for checkpoint in checkpoints]
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
                "training": folders.index(folder),  # checkpoints in one folder are of one training
            }
            for checkpoint, blocks, folder in zip(checkpoints, packed, folders, strict=True)
        ],
    }
    blocks = {
        f"block-{run}-{sentence}": block
        for run, sentences in enumerate(packed)
        for sentence, (_, block) in enumerate(sentences)
    }
    title = " · ".join(checkpoint.label for checkpoint in checkpoints)
    return page_of({"title": title, "data": data, "blocks": blocks})


def content_of(page: str) -> dict[str, Any]:
    """Return the content of a page that `build_page` made, without its code; `page_of` is the reverse.

    Returns:
        `title`; `data`, the object that the page holds; `blocks`, the weights of sentences as `pack` writes
        them, keyed by the names of their elements.

    Raises:
        ValueError: it is no such page.
    """
    title = re.search("<title>(.*?)</title>", page)
    data = re.search('<script type="application/json" id="data">(.*?)</script>', page)
    if title is None or data is None:
        raise ValueError("this is no page of modular-fairseq report")
    blocks = dict(re.findall('<script type="text/plain" id="(block-[^"]*)">([^<]*)</script>', page))
    return {"title": html.unescape(title[1]), "data": json.loads(data[1]), "blocks": blocks}


def page_of(content: dict[str, Any]) -> str:
    """Return a page with the present files of assets/ and the content that `content_of` describes."""
    style, script = _asset("page.css"), "".join(_asset(name) for name in SCRIPTS)
    blocks = [
        f'<script type="text/plain" id="{name}">{block}</script>' for name, block in content["blocks"].items()
    ]
    return Template(_asset("page.html")).substitute(
        title=html.escape(content["title"]).encode("utf-8", "replace").decode(),
        policy=f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; base-uri "
        "'none'; form-action 'none'",
        style=style,
        script=script,
        data=_embeddable(content["data"]),
        blocks="\n".join(blocks),
    )


def _asset(name: str) -> str:
    """Return the text of a file of assets/."""
    return (files("modular_fairseq_cli.report") / "assets" / name).read_text(encoding="utf-8")


def _digest(text: str) -> str:
    """Return the digest by which a Content-Security-Policy permits this style or script."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embeddable(data: Any) -> str:
    """Return data as JSON without "<", so that no token can end the <script> element that holds it."""
    return json.dumps(_rounded(data), separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")


def _rounded(data: Any) -> Any:
    """Return the data with every float rounded to six digits, or None in its place if it is not finite."""
    if isinstance(data, float):
        return float(f"{data:.6g}") if math.isfinite(data) else None
    if isinstance(data, dict):
        return {key: _rounded(value) for key, value in data.items()}
    if isinstance(data, list | tuple):
        return [_rounded(value) for value in data]
    return data
