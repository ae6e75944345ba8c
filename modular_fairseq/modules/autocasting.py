"""Computation in the precision of its inputs, also where torch.autocast is on."""

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def no_autocast(x: Tensor) -> AbstractContextManager:
    """Return a context in which nothing is computed in half precision on the device of `x` by torch.autocast.

    A context that changes nothing takes as long as several small operations, so there is none if autocast is
    off. A search has one for each gate or mask in each step.
    """
    device = x.device.type
    return torch.autocast(device, enabled=False) if torch.is_autocast_enabled(device) else nullcontext()
