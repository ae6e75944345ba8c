"""The masks that all attention modules of a stack share, joined once for all of them."""

import torch
from torch import Tensor

from modular_fairseq.modules.once import once_for


class AttentionMasks:
    """An attention mask and a padding mask.

    Args:
        attn_mask: float or bool [T, S]; added to the scores, or True = masked. None if nothing is masked.
        key_padding_mask: bool [B, S], True = pad, or None.
        is_causal: whether the masks only keep a position from seeing later ones. This is also true if
            sentences are padded on the right. The masks then also keep padded positions from seeing padding,
            but their output does not count.
    """

    def __init__(
        self, attn_mask: Tensor | None, key_padding_mask: Tensor | None = None, is_causal: bool = False
    ):
        self.attn_mask = attn_mask
        self.key_padding_mask = key_padding_mask
        self.is_causal = is_causal
        self._joined: dict[torch.dtype, Tensor | None] = {}

    def bias(self, dtype: torch.dtype) -> Tensor | None:
        """Return both masks as one additive mask [B or 1, 1, T or 1, S], or None if nothing is masked.

        Args:
            dtype: float type of the result.
        """
        if dtype not in self._joined:
            self._joined[dtype] = self._join(dtype)
        return self._joined[dtype]

    def _join(self, dtype: torch.dtype) -> Tensor | None:
        joined = None
        if self.attn_mask is not None:
            joined = self.attn_mask[None, None]
            if joined.dtype == torch.bool:
                joined = torch.zeros_like(joined, dtype=dtype).masked_fill_(joined, float("-inf"))
            joined = joined.to(dtype)
        if self.key_padding_mask is not None:
            blocked = self.key_padding_mask.to(torch.bool)[:, None, None, :]
            if joined is None:  # a search asks for the same mask in every step
                return once_for(
                    self.key_padding_mask,
                    ("bias", dtype),
                    lambda: torch.zeros_like(blocked, dtype=dtype).masked_fill_(blocked, float("-inf")),
                )
            joined = joined.masked_fill(blocked, float("-inf"))
        return joined
