"""Several linear projections of one input in one matrix product, such as queries, keys and values.

The projections remain modules of their own, so parameters, state dicts and optimizers do not know of this.
In training their weights are joined in every forward pass. This takes fewer kernels than separate products,
as the backward pass has one product for the input and one for all weights. For inference the joined weights
are made once.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modular_fairseq.modules.grouped import GroupLinear
from modular_fairseq.modules.inference import Kept, PackedLinear, PackedWeight


def can_be_joined(linears: Sequence[Any]) -> bool:
    """Tell whether projections can be computed together.

    Each must be a plain linear layer, or each a `GroupLinear`, and no hook may watch it. Quantisation
    noise is such a hook.
    """
    kinds = {type(linear) for linear in linears}
    return (kinds <= {nn.Linear, PackedLinear} or kinds == {GroupLinear}) and not any(
        linear._forward_hooks or linear._forward_pre_hooks or linear._backward_hooks for linear in linears
    )


class JointWeights:
    """The weights of several projections together, for a model that only translates."""

    def __init__(self) -> None:
        self._kept: Kept[tuple[Tensor, Tensor | None]] = Kept()
        self.packed = PackedWeight()

    def get(self, linears: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
        """Return what `join` returns for the projections."""
        parameters = [getattr(linear, name) for linear in linears for name in ("weight", "bias")]
        return self._kept.get(parameters, lambda: join(linears))


def join(linears: Sequence[Any]) -> tuple[Tensor, Tensor | None]:
    """Return all weights [outputs, C] and biases [outputs] together, or [groups, outputs of a group, ...]."""
    weights, biases = [linear.weight for linear in linears], [linear.bias for linear in linears]
    dim = weights[0].dim() - 2
    return torch.cat(weights, dim=dim), None if biases[0] is None else torch.cat(biases, dim=dim)


def project(x: Tensor, linears: Sequence[Any], kept: JointWeights | None = None) -> Tensor | None:
    """Compute n projections of x [..., C] together: [..., n, C'].

    Projections by `GroupLinear` are [..., groups, n, C' / groups].

    Args:
        x: input of all projections.
        linears: the projections. They have equal numbers of inputs and of outputs.
        kept: their joint weights in a model that only translates.

    Returns:
        None if the projections cannot be joined, and outside of training without `kept`. They must be
        computed one by one then.
    """
    first = linears[0]
    if not can_be_joined(linears) or (kept is None and not torch.is_grad_enabled()):
        return None
    weight, bias = join(linears) if kept is None else kept.get(linears)
    if isinstance(first, GroupLinear):
        assert bias is not None
        return first.project(x, weight, bias).unflatten(-1, (first.groups, len(linears), -1))
    joint = F.linear(x, weight, bias) if kept is None else kept.packed.linear(x, weight, bias)
    return joint.unflatten(-1, (len(linears), -1))
