"""Losses that disentangle attention heads, sections 3.2 and 3.3 of the DMA paper.

The paper is "Bayesian Transformer Using Disentangled Mask Attention" (Chien and Huang 2022). One mixture
clusters the queries of all heads. What heads know of each other is measured as the mutual information of
these clusters.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modular_fairseq.modules.gaussian_mixture import GaussianMixture
from modular_fairseq.modules.mutual_information import lower_bound, upper_bound


@dataclass(frozen=True)
class LossSettings:
    """Which auxiliary losses a forward pass in training computes, and how.

    Attributes:
        kl: compute the KL divergence from the mixtures.
        qq: compute L_Dqq (Eq. 6).
        xq: compute L_Dxq (Eq. 7).
        densities, pairs: arguments of `mutual_information.upper_bound` for L_Dqq.
        floor: L_Dqq of a sentence gets no gradient where it is below this value.
        critic: argument of `mutual_information.lower_bound` for L_Dxq.
    """

    kl: bool = False
    qq: bool = False
    xq: bool = False
    densities: str = "pooled"
    pairs: int = 0
    floor: float = -math.inf
    critic: str = "head"

    @property
    def any(self) -> bool:
        """Whether any loss is to be computed."""
        return self.kl or self.qq or self.xq


class DisentangledHeads(nn.Module):
    """Losses of the queries of one attention module.

    Args:
        num_heads, clusters, head_dim: H, C and D of the mixture of the queries, which all heads share.
        settings: further arguments of its `GaussianMixture`.
    """

    def __init__(self, num_heads: int, clusters: int, head_dim: int, **settings: Any):
        super().__init__()
        self.mixture = GaussianMixture(num_heads, clusters, head_dim, shared=True, **settings)

    def forward(self, queries: Tensor, valid: Tensor, wanted: LossSettings) -> dict[str, Tensor]:
        """Compute the losses that are `wanted`.

        Args:
            queries: projected but not scaled, [B, H, T, head_dim].
            valid: bool [B, T], False = padding.
            wanted: which losses to compute, and how.

        Returns:
            the losses by name, [B] each: kl (in nats per dimension, a mean over heads and tokens), qq (L_Dqq,
            Eq. 6) and xq (L_Dxq, Eq. 7).
        """
        clusters = self.mixture(queries.permute(2, 0, 1, 3), wanted.kl)
        losses = {}
        if wanted.kl:
            losses["kl"] = mean_over_tokens(clusters.divergence, valid)
        if wanted.qq:
            bound = upper_bound(clusters.posterior, clusters.log_joint, valid, wanted.densities, wanted.pairs)
            losses["qq"] = torch.where(bound > wanted.floor, bound, bound.detach())
        if wanted.xq:
            losses["xq"] = lower_bound(clusters.posterior, valid, wanted.critic)
        return losses


def mean_over_tokens(divergence: Tensor, valid: Tensor) -> Tensor:
    """Average a divergence [B, H, T] over heads and `valid` tokens (bool [B, T]).

    Returns [B], with 0 for a sentence that has no valid token.
    """
    counted = valid.to(divergence.dtype)
    return (divergence.mean(dim=1) * counted).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
