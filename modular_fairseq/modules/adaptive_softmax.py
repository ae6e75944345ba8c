"""The cross-entropy of fairseq's adaptive softmax (Grave et al. 2017; Baevski and Auli 2019)."""

from itertools import pairwise

import torch
import torch.nn.functional as F
from fairseq.modules import AdaptiveSoftmax
from torch import Tensor


def adaptive_cross_entropy(
    softmax: AdaptiveSoftmax, features: Tensor, target: Tensor, padding_idx: int, reduce: bool = True
) -> Tensor:
    """Compute the cross-entropy of words by an adaptive softmax, in nats and at least in float32.

    The head has the frequent words and a class for each tail, and a tail has the rarer words from its cut-off
    on. A rare word has two losses, which are added: the head predicts the class of its tail, and the tail
    predicts the word. All parameters get a gradient, because DistributedDataParallel waits for each of them.
    It is 0 for a tail without words.

    Args:
        softmax: the adaptive softmax.
        features: outputs of the decoder [..., C].
        target: numbers of words [...].
        padding_idx: the number of the padding, which counts as 0.
        reduce: sum over the words.

    Returns:
        the sum [], or without `reduce` the cross-entropy of each word [number of words].
    """
    precision = torch.promote_types(features.dtype, torch.float32)
    logits, targets = softmax(features, target)
    # The words of a tail are counted from its cut-off. A negative number to ignore stands for no word.
    losses = [
        None
        if words is None
        else F.cross_entropy(
            each.to(precision), words, ignore_index=padding_idx - start, reduction="sum" if reduce else "none"
        )
        for each, words, start in zip(logits, targets, [0, *softmax.cutoff], strict=False)
    ]
    total = losses[0]
    assert total is not None
    for tail, loss, (start, end) in zip(softmax.tail, losses[1:], pairwise(softmax.cutoff), strict=True):
        if loss is None:
            total = total + (0.0 * torch.cat([parameter.flatten() for parameter in tail.parameters()])).sum()
        elif reduce:
            total = total + loss
        else:
            numbers = target.reshape(-1)
            total = total.index_add(0, ((numbers >= start) & (numbers < end)).nonzero().squeeze(1), loss)
    return total
