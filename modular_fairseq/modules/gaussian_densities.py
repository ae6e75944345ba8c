"""The densities of diagonal Gaussians, for a stack of mixtures (DMA, sections 2.2 and 3.1).

`gaussian_mixture.py` has the symbols, and makes `Densities` from parameters.
"""

import math
from itertools import repeat
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class Clustering(NamedTuple):
    """The clusters of vectors at T positions in B sentences and H heads.

    All tensors are float32, or float64 for float64 vectors. With a stack of M mixtures, they have a first
    dimension M.

    Attributes:
        posterior: q(c | x), [B, H, C, T].
        log_joint: log p(c, z), of which the posterior is the softmax over c, [B, H, C, T].
        divergence: KL(q(z, c | x) || p(z, c)) / D in nats per dimension, [B, H, T]; None if it was not asked
            for.
    """

    posterior: Tensor
    log_joint: Tensor
    divergence: Tensor | None


class Densities(NamedTuple):
    """What the densities of M mixtures with G groups of C clusters consist of. G is 1 if heads share one.

    Attributes:
        quadratic: -1/2 sigma^-2, [M, G, C, D].
        linear: mu sigma^-2, [M, G, C, D].
        constant: log pi_c N(0 | c), [M, G, C].
        expected: `constant` - 1/2 sum_d s_d^2 / sigma_cd^2, [M, H, C]; None if s^2 is computed from the
            vectors.
        noise: log s^2, [M, H, D]; None if it is computed from the vectors.
    """

    quadratic: Tensor
    linear: Tensor
    constant: Tensor
    expected: Tensor | None
    noise: Tensor | None

    def one_by_one(self) -> list["Densities"]:
        """Return the densities of each mixture by itself."""
        parts = [repeat(None) if each is None else each.unsqueeze(1).unbind() for each in self]
        return [Densities(*each) for each in zip(*parts, strict=False)]


def divergence_of(log_joint: Tensor, noise: Tensor, at_x: Tensor | None = None) -> Tensor:
    """Compute KL(q(z, c | x) || p(z, c)) / D = E_q(z,c)[log q(z, c) - log p(z, c)] / D, [M, B, H, T].

    Without a sample, q(c) minimises it. The minimum of E_q(c)[log q(c) - log p(z, c)] is
    -logsumexp(log_joint).

    Args:
        log_joint: of z, or, without a sample, its expectation, [M, B, H, C, T].
        noise: log s^2, [M, H, D] or [M, T, B, H, D].
        at_x: with a sample z, the expectation of log p(c, z) under q(z | x), [M, B, H, C, T].
    """
    if at_x is None:
        surprise = -torch.logsumexp(log_joint, dim=3)
    else:
        log_posterior = torch.log_softmax(log_joint, dim=3)
        surprise = (log_posterior.exp() * (log_posterior - at_x)).sum(dim=3)
    entropy = 0.5 * (noise + 1 + math.log(2 * math.pi)).sum(dim=-1)
    # M x H -> M x 1 x H x 1, or M x T x B x H -> M x B x H x T
    entropy = entropy[:, None, :, None] if entropy.dim() == 2 else entropy.permute(0, 2, 3, 1)
    return (surprise - entropy) / noise.size(-1)


def log_joint_of(densities: Densities, z: Tensor, noise: Tensor | None = None) -> Tensor:
    """Compute log pi_c + log N(z | c): z [M, T, B, H, D] -> [M, B, H, C, T].

    With `noise`, log s^2 [M, H, D] or [M, T, B, H, D], compute the expectation under q(z | x) for x = `z`.
    """
    modules, length, sentences, heads, dim = z.shape
    groups, constant = densities.quadratic.size(1), densities.constant
    if noise is not None and densities.expected is not None:
        constant = densities.expected

    def by_group(x: Tensor) -> Tensor:
        """Return vectors as M G x N x D. If heads share a mixture, their vectors are one group."""
        return (x.permute(0, 3, 1, 2, 4) if groups > 1 else x).reshape(modules * groups, -1, dim)

    a, b = densities.quadratic.flatten(0, 1), densities.linear.flatten(0, 1)
    sums = (WeightedSums.apply if torch.is_grad_enabled() else weighted_sums)(by_group(z), a, b)
    if noise is not None and densities.expected is None:
        sums = sums + torch.bmm(a, by_group(noise.exp()).transpose(1, 2))
    if groups > 1:
        sums = sums.view(modules, heads, -1, length, sentences).permute(0, 4, 1, 2, 3)
    else:
        sums = sums.view(modules, -1, length, sentences, heads).permute(0, 3, 4, 1, 2)
    return sums + constant[:, None, :, :, None]


class Sample(torch.autograd.Function):
    """Draw z = x + s * noise for x [M, T, B, H, D] and log s^2, [M, H, D] or [M, T, B, H, D].

    The backward pass needs z, which other functions keep anyway, and not the noise.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, log_variance: Tensor) -> Tensor:
        deviation = (0.5 * log_variance).exp()
        ctx.per_vector = log_variance.dim() == x.dim()
        if not ctx.per_vector:
            deviation = deviation[:, None, None]
        z = torch.addcmul(x, deviation, torch.randn_like(x))
        ctx.save_for_backward(x, z)
        return z

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        x, z = ctx.saved_tensors
        slope = gradient * (z - x)
        return gradient, 0.5 * (slope if ctx.per_vector else slope.sum(dim=(1, 2)))


def weighted_sums(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """Compute sum_d a_cd x_d^2 + b_cd x_d: x [G, N, D], a and b [G, C, D] -> [G, C, N]."""
    return torch.bmm(b, x.transpose(1, 2)).baddbmm_(a, x.square().transpose(1, 2))


class WeightedSums(torch.autograd.Function):
    """`weighted_sums` with a backward pass that needs x, and not its square.

    Other functions keep x anyway.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, a: Tensor, b: Tensor) -> Tensor:
        ctx.save_for_backward(x, a, b)
        return weighted_sums(x, a, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, a, b = ctx.saved_tensors
        gradient = gradient.contiguous()
        by_vector = gradient.transpose(1, 2)
        dx = torch.bmm(by_vector, b).addcmul_(torch.bmm(by_vector, a), x, value=2)
        return dx, torch.bmm(gradient, x.square()), torch.bmm(gradient, x)
