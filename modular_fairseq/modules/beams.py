"""Hypotheses of a beam search that share the source of their sentence.

What depends on the source only is kept once per sentence. The hypotheses of a sentence are neighbouring rows.
"""

from torch import Tensor


def sentence_order(new_order: Tensor, beam: int, sentences: int) -> Tensor | None:
    """Return the order of sentences that an order of hypotheses implies, int64.

    It is None if no sentence has left the batch. With a beam of 1 it is always the order of hypotheses.

    Args:
        new_order: for every hypothesis of the new beam, its row in the old one.
        beam: hypotheses per sentence.
        sentences: number of sentences before the reordering.
    """
    if beam == 1:
        return new_order
    return None if new_order.numel() == sentences * beam else new_order[::beam] // beam


def fold_beam(x: Tensor, beam: int) -> Tensor:
    """Make hypotheses further queries of their sentence: [B x beam, H, T, D] -> [B, H, beam x T, D]."""
    if beam == 1:
        return x
    rows, heads, length, dim = x.shape
    return (
        x.view(rows // beam, beam, heads, length, dim)
        .transpose(1, 2)
        .reshape(rows // beam, heads, beam * length, dim)
    )


def unfold_beam(x: Tensor, beam: int) -> Tensor:
    """Invert `fold_beam`: [B, H, beam x T, D] -> [B x beam, H, T, D]."""
    if beam == 1:
        return x
    sentences, heads, length, dim = x.shape
    return (
        x.view(sentences, heads, beam, length // beam, dim)
        .transpose(1, 2)
        .reshape(sentences * beam, heads, length // beam, dim)
    )
