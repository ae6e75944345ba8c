"""Measure how well a masked language model predicts the words that are masked.

fairseq masks the symbols `<s>` and `</s>`, too (fairseq/data/mask_tokens_dataset.py:140-170). They count as
words in fairseq's losses, but not here. If each input is a sentence, it is known where they stand, and every
model predicts them almost surely. Beside 17 sub-words they are a tenth, and would show a perplexity of 10 as
one of 8. Inside blocks of text, a `</s>` must be guessed, but it is no word there either.
"""

import hashlib
import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import torch
from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor
from torch.nn import functional as F


class Block(NamedTuple):
    """What a model predicts in a block of text: the sum over its masked words.

    Attributes:
        nll: the negative log-likelihood in nats.
        masked: the number of masked words.
        correct: how many of them have the highest probability.
        words: the places and the numbers of the masked words.
    """

    nll: float
    masked: int
    correct: int
    words: tuple[tuple[int, int], ...] = ()


def predict(model: BaseFairseqModel, batches: Iterable[dict], dictionary: Dictionary) -> list[Block]:
    """Return what a model predicts in each block, in the order of the data.

    Args:
        model: a masked language model in evaluation mode.
        batches: fairseq's batches. The "target" [B, T] is padding where no word is masked.
        dictionary: its symbols `<s>` and `</s>` are no words, wherever they are masked.
    """
    found: dict[int, Block] = {}
    no_words = (dictionary.pad(), dictionary.bos(), dictionary.eos())
    with torch.no_grad():
        for batch in batches:
            target = batch["target"]
            masked = torch.isin(target, target.new_tensor(no_words), invert=True)
            nll, correct = target.new_zeros(target.shape, dtype=torch.float64), torch.zeros_like(masked)
            if masked.any():
                nll[masked], correct[masked] = _predict(model, batch["net_input"], masked, target[masked])
            words = [
                tuple((place, int(tokens[place])) for place in places.nonzero().view(-1).tolist())
                for tokens, places in zip(target.cpu(), masked.cpu(), strict=True)
            ]
            sums = (each.sum(1).tolist() for each in (nll, masked, correct))
            numbered = zip(batch["id"].tolist(), zip(*sums, words, strict=True), strict=True)
            found |= {number: Block(*block) for number, block in numbered}
    return [found[number] for number in sorted(found)]


def _predict(
    model: BaseFairseqModel, net_input: dict, masked: Tensor, target: Tensor
) -> tuple[Tensor, Tensor]:
    """Return the negative log-likelihood of each masked word, and whether it is the most likely one, [N]."""
    logits = model(**net_input, masked_tokens=masked)[0].float()
    return F.cross_entropy(logits, target, reduction="none").double(), logits.argmax(-1).eq(target)


def numbers(blocks: Iterable[Block]) -> dict[str, float]:
    """Return the mean NLL of masked words in bits, as fairseq logs it, their perplexity, and the accuracy.

    The accuracy is in percent. Without any masked word, all are NaN.
    """
    nll, masked, correct = np.sum([[*each[:3]] for each in blocks], axis=0).tolist()
    if not masked:
        return dict.fromkeys(("nll", "perplexity", "accuracy"), math.nan)
    mean = nll / masked
    with np.errstate(over="ignore"):
        perplexity = float(np.exp(mean))
    return {"nll": mean / math.log(2), "perplexity": perplexity, "accuracy": 100 * correct / masked}


def words_of(blocks: Iterable[Block]) -> str:
    """Return a digest of the masked words: models whose digests are equal have predicted the same words."""
    return hashlib.sha256(repr([each.words for each in blocks]).encode()).hexdigest()[:16]
