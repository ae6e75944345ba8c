"""Linear layers and LayerNorm over groups of features that do not mix (TIM, section 2.1).

The paper calls this a Group Linear Layer. A hidden state [..., groups x d] consists of `groups` neighbouring
slices of d features. Each slice has parameters of its own and does not see the others. A linear layer is then
a block-diagonal matrix of which only the blocks are stored and computed. Hidden states keep fairseq's [T, B,
C].
"""

from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules import LayerNorm
from fairseq.modules.quant_noise import quant_noise
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.autograd.function import once_differentiable


def contiguous_rows(x: Tensor) -> Tensor:
    """Return x [..., C] contiguous, with the strides of its shape.

    `Tensor.contiguous` leaves a dimension of size 1 any stride, as in a decoding step of one position that
    was transposed. torch then computes x W^T as a batch of small products, W repeated, if W is frozen, and as
    one product otherwise. With 8,000 types frozen weights made a beam search 1.6 (d = 256) and 2.0 times (d
    = 512) as slow.
    """
    return x.reshape(-1, x.size(-1)).view(x.shape)


class GroupLinear(nn.Module):
    """A linear layer for each group of features: y_j = W_j x_j + b_j for group j.

    The weight is [n, out_features / n, in_features / n]. Each of its slices is initialised as `nn.Linear`
    does.

    Args:
        groups: n, the number of groups.
        in_features, out_features: widths of all groups together.

    Raises:
        ValueError: `groups` does not divide one of the widths.
    """

    def __init__(self, groups: int, in_features: int, out_features: int):
        super().__init__()
        if in_features % groups or out_features % groups:
            raise ValueError(
                f"{in_features} and {out_features} features cannot be divided into {groups} groups"
            )
        self.groups, self.in_features, self.out_features = groups, in_features, out_features
        slices = [nn.Linear(in_features // groups, out_features // groups) for _ in range(groups)]
        self.weight = nn.Parameter(torch.stack([part.weight.detach() for part in slices]))
        self.bias = nn.Parameter(torch.stack([part.bias.detach() for part in slices]))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return self.project(x, self.weight, self.bias)

    def project(self, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        """Map [..., in_features] to [..., n x d] by other parameters.

        This is one batched product for all groups. On a CPU with two groups it takes 0.6 to 0.95 of the time
        of one product per group in a search.

        Args:
            x: input.
            weight: [n, d, in_features / n].
            bias: [n, d].
        """
        rows = x.reshape(-1, self.in_features)
        known = (  # autocast, torch.compile and vmap need operations that they know
            not torch.is_grad_enabled()
            or torch.is_autocast_enabled(x.device.type)
            or torch.compiler.is_compiling()
            or any(map(is_batchedtensor, (x, weight, bias)))
        )
        y = _baddbmm(rows, weight, bias) if known else _GroupProducts.apply(rows, weight, bias)
        return y.view(*x.shape[:-1], bias.numel())

    def extra_repr(self) -> str:
        return f"groups={self.groups}, in_features={self.in_features}, out_features={self.out_features}"


def _baddbmm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Compute y_j = W_j x_j + b_j of each group j: x [N, n x i], W [n, d, i], b [n, d] -> [N, n x d]."""
    y = torch.baddbmm(bias.unsqueeze(1), _by_group(x, len(weight)), weight.transpose(1, 2))
    return _side_by_side(y)


def _by_group(x: Tensor, groups: int) -> Tensor:
    """Return a view [groups, N, d] of x [N, groups x d]."""
    return x.view(len(x), groups, x.size(1) // groups).transpose(0, 1)


def _side_by_side(parts: Tensor) -> Tensor:
    """Return a copy [N, groups x d] of [groups, N, d]."""
    return parts.transpose(0, 1).flatten(1)


class _GroupProducts(torch.autograd.Function):
    """`_baddbmm` with a backward pass that computes the gradient of W in the layout of W.

    torch computes the transposed gradient and then copies it. With two groups and N = 512 the forward and the
    backward pass take 0.92 and 0.95 of the time on a CPU where d and i are 512 and 1,536, 0.88 where d is
    2,048, and 0.72 where i is 2,048. With width 288, 1,152 and N = 2,048 both take the same time.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        return _baddbmm(x, weight, bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        of_x, of_weight, of_bias = ctx.needs_input_grad
        groups = len(weight)
        parts = _by_group(gradient, groups)
        return (
            _side_by_side(torch.bmm(parts, weight)) if of_x else None,
            torch.bmm(parts.transpose(1, 2), _by_group(x, groups)) if of_weight else None,
            gradient.sum(dim=0).view(groups, -1) if of_bias else None,
        )


class GroupLayerNorm(nn.Module):
    """LayerNorm over the features of each group: [..., groups x d] -> [..., groups x d].

    The weight and the bias are [groups, d].

    Raises:
        ValueError: `groups` does not divide `features`.
    """

    def __init__(self, groups: int, features: int, eps: float = 1e-5):
        super().__init__()
        if features % groups:
            raise ValueError(f"{features} features cannot be divided into {groups} groups")
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(groups, features // groups))
        self.bias = nn.Parameter(torch.zeros(groups, features // groups))

    def forward(self, x: Tensor) -> Tensor:
        groups = x.view(*x.shape[:-1], *self.weight.shape)
        return torch.addcmul(
            self.bias, F.layer_norm(groups, groups.shape[-1:], eps=self.eps), self.weight
        ).flatten(-2)


def build_linear(
    groups: int,
    in_features: int,
    out_features: int,
    bias: bool = True,
    q_noise: float = 0.0,
    block_size: int = 8,
) -> nn.Linear | GroupLinear:
    """Build an `nn.Linear` for one group, else a `GroupLinear`.

    With one group the parameters therefore have the names and shapes of a plain layer.

    Args:
        groups: number of groups of features that do not mix.
        in_features, out_features: widths of all groups together.
        bias: whether the layer has a bias.
        q_noise, block_size: quantisation noise, as in fairseq.

    Raises:
        ValueError: with several groups, `bias` is False, `q_noise` is not 0, or `groups` does not divide a
            width.
    """
    if groups == 1:
        return quant_noise(nn.Linear(in_features, out_features, bias=bias), q_noise, block_size)
    if q_noise or not bias:
        raise ValueError(
            f"a linear layer of {groups} groups needs bias True and q_noise 0, not bias {bias} and q_noise "
            f"{q_noise}"
        )
    return GroupLinear(groups, in_features, out_features)


def build_layer_norm(groups: int, features: int) -> nn.Module:
    """Build fairseq's LayerNorm for one group, else a `GroupLayerNorm`."""
    return LayerNorm(features) if groups == 1 else GroupLayerNorm(groups, features)


def xavier_uniform(linear: nn.Linear | GroupLinear, gain: float = 1.0) -> None:
    """Initialise each matrix [d_out, d_in] of a linear layer by itself.

    torch would take the dimension of the groups for a part of the fan-in and fan-out.
    """
    for weight in linear.weight.detach() if isinstance(linear, GroupLinear) else [linear.weight]:
        nn.init.xavier_uniform_(weight, gain=gain)
