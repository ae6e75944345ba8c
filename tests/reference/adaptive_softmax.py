"""Compute the probabilities of all words by an adaptive softmax (Grave et al. 2017), also of rare ones."""

import torch
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor


def log_probabilities(softmax: AdaptiveSoftmax, features: Tensor) -> Tensor:
    """Return the log-probability of every word [..., V] after features [..., C]."""
    head = softmax.head(features).log_softmax(-1)
    frequent = softmax.cutoff[0]
    tails = [
        head[..., frequent + number, None] + tail(features).log_softmax(-1)
        for number, tail in enumerate(softmax.tail)
    ]
    return torch.cat([head[..., :frequent], *tails], -1)
