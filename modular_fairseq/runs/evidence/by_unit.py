"""Scores by sentence or part: what records keep of them, and the pseudo-values of intervals.

A corpus score follows from sums over its units. The units of BLEU are sentences, with sacrebleu's counts.
The units of the quantities in `OF_PARTS` are pictures or inputs, with two numbers each. A record keeps these
numbers as a short text. The score and its pseudo-values (`scoring.intervals.jackknife`) are computed from it.
"""

import base64
import lzma
import math
import zlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sacrebleu.metrics import BLEU

from modular_fairseq.runs.evaluation import EVALUATIONS
from modular_fairseq.runs.evaluations.parts import OverParts
from modular_fairseq_cli.scoring.intervals import Scored, jackknife

# Quantities whose intervals account for the choice of pictures or inputs, too. Those of masked words account
# for seeds alone: of their noise, the choice of sentences is the smaller part by far.
OF_PARTS = ("nats_per_token", "class_accuracy")
COUNTS = 6  # numbers of a sentence: its length, the reference's length, and its matches of 1- to 4-grams
ORDER = [1, 0, 2, 3, 4, 5]  # of the counts, so that the differences from one to the next are small
LZMA = [{"id": lzma.FILTER_LZMA1, "preset": 9, "lc": 0, "lp": 0, "pb": 0}]  # numbers of a byte, no text


def packed(counts: NDArray[Any]) -> str:
    """Return counts [sentences, COUNTS] as a short text.

    Of each sentence the length of the reference is kept, and the differences from it to the length of the
    translation, from there to the matches of words, and so on. They are integers without sign (2 d, or
    -2 d - 1 if d is negative) of two bytes: all low bytes, column by column, and then all high bytes. LZMA
    and base85 make a text of them, 40 % shorter than one of the counts themselves by zlib and base64.
    """
    differences = np.diff(counts.T[ORDER].astype(np.int64), axis=0, prepend=0)
    unsigned = np.where(differences < 0, -2 * differences - 1, 2 * differences)
    low_and_high = np.stack([unsigned & 255, unsigned >> 8]).astype(np.uint8)
    compressed = lzma.compress(low_and_high.tobytes(), lzma.FORMAT_RAW, filters=LZMA)
    return base64.b85encode(compressed).decode("ascii")


def unpacked(text: str) -> NDArray[np.int64]:
    """Return the counts [sentences, COUNTS] that `packed` has made a text of.

    Raises:
        ValueError: the text is no such text.
    """
    try:
        found = lzma.decompress(base64.b85decode(text), lzma.FORMAT_RAW, filters=LZMA)
    except lzma.LZMAError as error:
        raise ValueError(str(error)) from None
    low, high = np.frombuffer(found, np.uint8).reshape(2, COUNTS, -1).astype(np.int64)
    unsigned = low + 256 * high
    differences = np.where(unsigned % 2, -(unsigned + 1) // 2, unsigned // 2)
    return np.cumsum(differences, axis=0)[np.argsort(ORDER)].T


def packed_parts(parts: NDArray[np.float64]) -> str:
    """Return numbers [parts, n] as a short text: n, and the numbers in float32, column by column, by zlib."""
    columns = parts.T.astype("<f4").tobytes()
    return f"{parts.shape[1]}:" + base64.b64encode(zlib.compress(columns, level=9)).decode("ascii")


def unpacked_parts(text: str) -> NDArray[np.float64]:
    """Return the numbers [parts, n] that `packed_parts` has made a text of.

    Raises:
        ValueError: this is no such text.
    """
    if not isinstance(text, str):
        raise ValueError(f"{text!r} is no text")
    n, _, packed = text.partition(":")
    try:
        columns = zlib.decompress(base64.b64decode(packed, validate=True))
    except zlib.error as error:
        raise ValueError(str(error)) from None
    return np.frombuffer(columns, "<f4").reshape(int(n), -1).T.astype(np.float64)


def bleu_of(counts: NDArray[np.int64]) -> tuple[float, NDArray[np.float64]]:
    """Return BLEU and its pseudo-values [sentences] for counts [sentences, COUNTS]."""
    ngrams = np.maximum(counts[:, :1] - np.arange(4), 0)  # of the hypothesis, of 1 to 4 words

    def score(sums: NDArray[Any]) -> float:
        lengths, matches, numbers = (each.tolist() for each in np.split(sums.astype(int), (2, COUNTS)))
        hypothesis, reference = lengths
        return float(BLEU.compute_bleu(matches, numbers, hypothesis, reference, "exp").score)

    return jackknife(np.hstack([counts, ngrams]).astype(float), score)


def scores_of(measurement: dict[str, Any]) -> dict[str, Scored]:
    """Return each quantity that follows from the counts or parts of a measurement, with its pseudo-values.

    Raises:
        ValueError: the counts or parts cannot be unpacked, or have another number of columns than they must.
    """
    found = {"bleu": bleu_of(unpacked(measurement["counts"]))} if "bleu" in measurement else {}
    return found | (_of_parts(measurement) if "parts" in measurement else {})


def _of_parts(measurement: dict[str, Any]) -> dict[str, Scored]:
    """Return each quantity that follows from the parts of a measurement, with its pseudo-values [parts].

    Raises:
        ValueError: the parts cannot be unpacked, or have not two numbers each.
    """
    parts = unpacked_parts(measurement["parts"])
    if parts.shape[1] != 2:
        raise ValueError(f"a part has {parts.shape[1]} numbers in place of a sum and a count")
    return {
        name: _scored(parts, score)
        for each in EVALUATIONS
        if isinstance(each, OverParts)
        for name, score in each.scores.items()
        if name in OF_PARTS and isinstance(measurement.get(name), float) and math.isfinite(measurement[name])
    }


def _scored(parts: NDArray[np.float64], score: Callable) -> Scored:
    return jackknife(parts, lambda sums: float(score(sums)))
