"""Compute what follows from a mask once, although many modules of a model get the same mask."""

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

Result = TypeVar("Result")

_results: WeakIdKeyDictionary = WeakIdKeyDictionary()  # dictionaries of results by their mask


def once_for(mask: Tensor, name: Hashable, compute: Callable[[], Result]) -> Result:
    """Return `compute()`, or what it returned when it was called for the same mask and name before.

    Results live as long as the mask. The mask must not be changed in place. A compiled layer (--compile)
    computes the result itself, as part of its kernels.

    Args:
        mask: the tensor from which the result is computed.
        name: tells results for one mask apart. It must name everything else that the result depends on.
        compute: a function without arguments, whose result needs no gradient.
    """
    if torch.compiler.is_compiling():
        return compute()
    results: dict[Hashable, Any] = _results.setdefault(mask, {})
    if name not in results:
        results[name] = compute()
    return results[name]
