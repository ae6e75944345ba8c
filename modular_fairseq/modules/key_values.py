"""The keys and values of a step-by-step search, kept in place."""

import torch
from torch import Tensor

from modular_fairseq.modules.beams import sentence_order

FIRST_CAPACITY = 32  # positions


class KeyValues:
    """Keys and values of an attention module, and their padding mask, for one batch of a search.

    New positions are written behind the earlier ones. The memory is twice as large whenever it is full.

    Args:
        new: keys and values of the first positions, [2, B, H, S, head_dim].
        padding_mask: bool [B, S], True = pad, or None.
        grows: whether further positions will follow.
    """

    def __init__(self, new: Tensor, padding_mask: Tensor | None, grows: bool):
        new = new.detach()  # it is written in place
        self.length = new.size(3)
        self.padding_mask = padding_mask
        self._memory = new
        if grows:
            self._reserve(FIRST_CAPACITY)
            self._memory[:, :, :, : self.length] = new

    @property
    def keys(self) -> Tensor:
        """All keys so far, [B, H, S, head_dim]."""
        return self._memory[0, :, :, : self.length]

    @property
    def values(self) -> Tensor:
        """All values so far, [B, H, S, head_dim]."""
        return self._memory[1, :, :, : self.length]

    def append(self, new: Tensor, padding_mask: Tensor | None) -> None:
        """Append keys and values of further positions [2, B, H, T, head_dim].

        Args:
            padding_mask: bool [B, T], True = pad, or None.
        """
        end = self.length + new.size(3)
        if self.padding_mask is not None or padding_mask is not None:
            masks = [
                new.new_zeros(new.size(1), number, dtype=torch.bool) if mask is None else mask.to(torch.bool)
                for mask, number in ((self.padding_mask, self.length), (padding_mask, new.size(3)))
            ]
            self.padding_mask = torch.cat(masks, dim=1)
        if end > self._memory.size(3):
            old = self._memory[:, :, :, : self.length]
            self._reserve(max(2 * self._memory.size(3), end))
            self._memory[:, :, :, : self.length] = old
        self._memory[:, :, :, self.length : end] = new.detach()
        self.length = end

    def reorder(self, order: Tensor) -> None:
        """Let row i be the former row `order[i]`."""
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask.index_select(0, order)
        known = self._memory[:, :, :, : self.length]
        if known.size(3) == self._memory.size(3):
            self._memory = known.index_select(1, order)
            return
        shape = list(self._memory.shape)
        shape[1] = order.numel()
        self._memory = self._memory.new_empty(shape)
        torch.index_select(known, 1, order, out=self._memory[:, :, :, : self.length])

    def reorder_sentences(self, new_order: Tensor, beam: int) -> None:
        """Reorder what belongs to sentences as their hypotheses were reordered (`sentence_order`)."""
        order = sentence_order(new_order, beam, self._memory.size(1))
        if order is not None:
            self.reorder(order)

    def _reserve(self, capacity: int) -> None:
        shape = list(self._memory.shape)
        shape[3] = max(capacity, self.length)
        self._memory = self._memory.new_empty(shape)
