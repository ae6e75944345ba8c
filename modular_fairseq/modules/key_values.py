"""The keys and values of a step-by-step search, kept in place."""

import torch
from torch import Tensor

from modular_fairseq.modules.beams import sentence_order

FIRST_CAPACITY = 32  # positions


class KeyValues:
    """Keys and values of an attention module, and their padding mask, for one batch of a search.

    New positions are written behind the earlier ones. When the memory is full, it is replaced by one of twice
    the size. A reordering copies what is known into a second memory of the same size, and the two change
    places. Memory that was used before needs no page faults, which would take most of the time of a search on
    a CPU.

    Args:
        new: keys and values of the first positions, [2, B, H, S, head_dim].
        padding_mask: bool [B, S], True = pad, or None.
        grows: whether further positions will follow.
    """

    def __init__(self, new: Tensor, padding_mask: Tensor | None, grows: bool):
        self.length = new.size(3)
        self.padding_mask = padding_mask
        self._memory = _by_position(new)  # capacity x B x 2 x H x head_dim
        self._spare: Tensor | None = None
        if grows:
            self._reserve(FIRST_CAPACITY)

    @property
    def keys(self) -> Tensor:
        """All keys so far, [B, H, S, head_dim]."""
        return self._memory[: self.length, :, 0].permute(1, 2, 0, 3)

    @property
    def values(self) -> Tensor:
        """All values so far, [B, H, S, head_dim]."""
        return self._memory[: self.length, :, 1].permute(1, 2, 0, 3)

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
        if end > self._memory.size(0):
            self._reserve(max(2 * self._memory.size(0), end))
        self._memory[self.length : end] = _by_position(new)
        self.length = end

    def reorder(self, order: Tensor) -> None:
        """Let row i be the former row `order[i]`."""
        if self.padding_mask is not None:
            self.padding_mask = self.padding_mask.index_select(0, order)
        target, rows = self._spare, order.numel()
        if target is None or target.size(0) != self._memory.size(0) or target.size(1) != rows:
            target = self._memory.new_empty(self._memory.size(0), rows, *self._memory.shape[2:])
        torch.index_select(self._memory[: self.length], 1, order, out=target[: self.length])
        self._memory, self._spare = target, self._memory

    def reorder_sentences(self, new_order: Tensor, beam: int) -> None:
        """Reorder what belongs to sentences as their hypotheses were reordered (`sentence_order`)."""
        order = sentence_order(new_order, beam, self._memory.size(1))
        if order is not None:
            self.reorder(order)

    def _reserve(self, capacity: int) -> None:
        """Make room for `capacity` positions, or for the known ones if these are more."""
        known = self._memory[: self.length]
        self._memory = known.new_empty(max(capacity, self.length), *known.shape[1:])
        self._memory[: self.length] = known


def _by_position(new: Tensor) -> Tensor:
    """Return keys and values [2, B, H, T, head_dim] as [T, B, 2, H, head_dim], without a gradient."""
    return new.detach().permute(3, 1, 0, 2, 4)
