"""The losses that disentangle attention heads ("Bayesian Transformer Using Disentangled Mask Attention",
sections 3.2 and 3.3).

The queries of all heads are clustered by one mixture, and what heads know of each other is the mutual
information of these clusters.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modular_fairseq.modules.gaussian_mixture import GaussianMixture
from modular_fairseq.modules.mutual_information import lower_bound, upper_bound


@dataclass(frozen=True)
class LossSettings:
    """Which auxiliary losses a forward pass in training is to compute, and how (`mutual_information.py`).

    `floor`: L_Dqq of a sentence gets no gradient where it is below this.
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
        return self.kl or self.qq or self.xq


class DisentangledHeads(nn.Module):
    """Losses of the queries of one attention module; `settings` are those of its `GaussianMixture`."""

    def __init__(self, num_heads: int, clusters: int, head_dim: int, **settings):
        super().__init__()
        self.mixture = GaussianMixture(num_heads, clusters, head_dim, shared=True, **settings)

    def forward(self, queries: Tensor, valid: Tensor, wanted: LossSettings) -> dict[str, Tensor]:
        """Measure.

        Args:
            queries: projected, not scaled, [B, H, T, head_dim].
            valid: bool [B, T], False = padding.

        Returns:
            what is `wanted`, [B] each: kl (in nats per dimension, a mean over heads and tokens), qq (L_Dqq,
            Eq. 6), xq (L_Dxq, Eq. 7).
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
    """[B, H, T] -> [B], over heads and valid tokens; 0 where there are none."""
    counted = valid.to(divergence.dtype)
    return (divergence.mean(dim=1) * counted).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
