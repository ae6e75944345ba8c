"""Measure how well a model with a classification head predicts the classes or values of inputs."""

import hashlib
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from fairseq.models import BaseFairseqModel


class Prediction(NamedTuple):
    """What a model predicts for an input: the number of its class, or a value in a regression.

    Attributes:
        predicted: the class or value that the model predicts.
        target: the right one.
    """

    predicted: float
    target: float


def predict(
    model: BaseFairseqModel, batches: Iterable[dict], head: str, regression: bool
) -> dict[int, Prediction]:
    """Return the predictions of a model, keyed by the number of the input, in the order of the data.

    Args:
        model: a model with classification heads, in evaluation mode.
        batches: fairseq's batches, with "target" [B].
        head: the name of the head.
        regression: whether the head predicts a value, not a class.
    """
    found: dict[int, Prediction] = {}
    with torch.no_grad():
        for batch in batches:
            logits = model(**batch["net_input"], features_only=True, classification_head_name=head)[0].float()
            predicted = logits.view(-1) if regression else logits.argmax(-1)
            pairs = zip(predicted.tolist(), batch["target"].view(-1).tolist(), strict=True)
            numbered = zip(batch["id"].tolist(), pairs, strict=True)
            found |= {number: Prediction(*pair) for number, pair in numbered}
    return {number: found[number] for number in sorted(found)}


def inputs_of(numbers: Iterable[int]) -> str:
    """Return a digest of the numbers of inputs, which tells whether two models predicted the same ones."""
    return hashlib.sha256(repr([*numbers]).encode()).hexdigest()[:16]


def accuracy(predictions: Iterable[Prediction]) -> float:
    """Return the share of right classes in percent."""
    right = [predicted == target for predicted, target in predictions]
    return 100 * sum(right) / len(right)


def correlations(predictions: Iterable[Prediction]) -> dict[str, float]:
    """Return the correlations of predicted and right values, in percent.

    "pearson" is computed from the values. "spearman" is computed from their ranks; equal values share the
    mean of their ranks. Both are NaN if all predictions or all targets are equal.
    """
    predicted, targets = (np.asarray(each, dtype=np.float64) for each in zip(*predictions, strict=True))
    return {
        "pearson": 100 * correlation(predicted, targets),
        "spearman": 100 * correlation(ranks(predicted), ranks(targets)),
    }


def correlation(x: np.ndarray, y: np.ndarray) -> float:
    """Return Pearson's correlation of x and y [N], or NaN if one of them is constant."""
    if len(set(x)) == 1 or len(set(y)) == 1:
        return math.nan
    return float(np.corrcoef(x, y)[0, 1])


def ranks(values: np.ndarray) -> np.ndarray:
    """Return the rank of each value [N], from 1; equal values have the mean of their ranks."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
