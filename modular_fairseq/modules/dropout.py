"""Dropout that needs fewer random numbers on a CPU.

On a CPU random numbers take a noticeable part of a training step (`modular-fairseq bench`).
"""

import functools

import torch
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor

LEVELS = 1 << 16


@functools.cache
def _views_under_vmap() -> bool:
    """Return whether this torch can view a tensor as another dtype under vmap. torch 2.6 cannot."""
    try:
        torch.vmap(lambda x: x.view(torch.int16))(torch.zeros(1, 1, dtype=torch.int64))
    except RuntimeError:
        return False
    return True


class Dropout(FairseqDropout):
    """Zero elements with probability p and scale the others by 1 / (1 - p), as fairseq's dropout does.

    On a CPU four elements share one 64-bit random number and use 16 bits each. p is rounded to a multiple of
    2^-16, also in the scale, so the expectation is exact. On other devices, and in compiled layers
    (--compile), torch's own dropout is faster and is used. It refuses a p above 1.
    """

    def forward(self, x: Tensor, inplace: bool = False) -> Tensor:
        if (
            x.device.type != "cpu"
            or not 0 < self.p <= 1
            or not (self.training or self.apply_during_inference)
        ):
            return super().forward(x, inplace)
        if torch.compiler.is_compiling() or is_batchedtensor(x) and not _views_under_vmap():
            return super().forward(x, inplace)
        dropped = round(self.p * LEVELS)
        if dropped == 0:
            return super().forward(x, inplace)
        if dropped == LEVELS:
            return x * 0
        # `new_empty` makes a tensor of its own for each sample under vmap.
        numbers = x.new_empty((x.numel() + 3) // 4, dtype=torch.int64).random_(-(2**63), None)
        numbers = numbers.view(torch.int16)[: x.numel()].view(x.shape)
        return x * (numbers >= dropped - LEVELS // 2).to(x.dtype).mul_(LEVELS / (LEVELS - dropped))


class GrowingDropout(Dropout):
    """Dropout whose probability grows in training: after n updates it is p min(1, n / updates).

    Args:
        p: the final probability. It holds until fairseq's training calls `set_num_updates`.
        updates: the number of updates in which it grows from 0 to p.
        module_name: the name of the module for fairseq's --retain-dropout-modules.
    """

    def __init__(self, p: float, updates: int, module_name: str | None = None):
        super().__init__(p, module_name)
        self.final, self.updates = p, updates

    def set_num_updates(self, num_updates: int) -> None:
        """Set the number of updates so far; fairseq's training calls this before every forward pass."""
        self.p = self.final * min(1.0, num_updates / self.updates)


def replace_dropout(model: nn.Module) -> None:
    """Replace every `FairseqDropout` in `model` by `Dropout`."""
    for parent in list(model.modules()):
        for name, child in parent.named_children():
            if type(child) is FairseqDropout:
                setattr(parent, name, Dropout(child.p, child.module_name))
