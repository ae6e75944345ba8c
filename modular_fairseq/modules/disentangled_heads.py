"""Losses that disentangle attention heads, sections 3.2 and 3.3 of the DMA paper.

The paper is "Bayesian Transformer Using Disentangled Mask Attention" (Chien and Huang 2022). One mixture
clusters the queries of all heads. What heads know of each other is measured as the mutual information of
these clusters.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from modular_fairseq.modules.autocasting import no_autocast
from modular_fairseq.modules.gaussian_densities import Clustering
from modular_fairseq.modules.gaussian_mixture import GaussianMixture, cluster_together, stack
from modular_fairseq.modules.mutual_information import (
    cluster_information,
    lower_bound,
    released_estimate,
    upper_bound,
)


@dataclass(frozen=True)
class LossSettings:
    """Which auxiliary losses a forward pass in training computes, and how.

    Attributes:
        kl: compute the KL divergence from the mixtures.
        qq: compute L_Dqq (Eq. 6).
        xq: compute L_Dxq (Eq. 7).
        diversity: compute the diversity loss (section 3.3) of tokens and queries.
        estimator: how L_Dqq is computed, one of `mutual_information.ESTIMATORS`.
        densities: argument of `mutual_information.upper_bound` and `released_estimate` for L_Dqq.
        pairs: argument of `upper_bound`, for the estimator "eq6".
        floor: L_Dqq of a sentence is this value, without a gradient, where its estimate is below.
        critic: argument of `mutual_information.lower_bound` for L_Dxq.
    """

    kl: bool = False
    qq: bool = False
    xq: bool = False
    diversity: bool = False
    estimator: str = "eq6"
    densities: str = "pooled"
    pairs: int = 0
    floor: float = -math.inf
    critic: str = "head"

    @property
    def wants_any(self) -> bool:
        """Whether any loss is to be computed."""
        return self.kl or self.qq or self.xq or self.diversity


class DisentangledHeads(nn.Module):
    """The mixture that clusters the queries of one attention module, for losses only.

    Args:
        num_heads, clusters, head_dim: H, C and D of the mixture of the queries, which all heads share.
        settings: further arguments of its `GaussianMixture`.
    """

    def __init__(self, num_heads: int, clusters: int, head_dim: int, **settings: Any):
        super().__init__()
        self.mixture = GaussianMixture(num_heads, clusters, head_dim, shared=True, **settings)

    def draw(self, queries: Tensor) -> Tensor:
        """Draw samples of the queries [B, H, T, head_dim], in float32 or better."""
        return self.mixture.draw(queries.permute(2, 0, 1, 3)).permute(1, 2, 0, 3)


def losses_of_queries(
    modules: Sequence[DisentangledHeads],
    queries: Sequence[Tensor],
    valid: Tensor,
    wanted: LossSettings,
    drawn: Sequence[Tensor] | None = None,
) -> dict[str, Tensor]:
    """Compute the losses that are `wanted` for the queries of M attention modules over the same positions.

    All modules are computed together, in a few kernels.

    Args:
        modules: the mixtures of the modules, which differ only in their parameters.
        queries: for each module, projected but not scaled queries [B, H, T, head_dim].
        valid: bool [B, T], False = padding.
        wanted: which losses to compute, and how.
        drawn: for each module, samples that `draw` has drawn. Without them, some are drawn if needed.

    Returns:
        the losses by name, [M, B] each: kl (in nats per dimension, a mean over heads and tokens), qq (L_Dqq,
        Eq. 6), xq (L_Dxq, Eq. 7) and diversity.
    """
    # M x B x H x T x D -> M x T x B x H x D
    x = stack(queries).permute(0, 3, 1, 2, 4)
    z = None if drawn is None else stack(drawn).permute(0, 3, 1, 2, 4)
    clusters = cluster_together([module.mixture for module in modules], x, wanted.kl, z)
    number = len(modules)
    of_all = valid.repeat(number, 1)  # a sentence of a module is a row
    posterior, log_joint = clusters.posterior.flatten(0, 1), clusters.log_joint.flatten(0, 1)
    losses = {}
    if wanted.kl:
        assert clusters.divergence is not None
        losses["kl"] = mean_over_tokens(clusters.divergence.flatten(0, 1), of_all)
    if wanted.qq:
        estimate = between_heads(Clustering(posterior, log_joint, None), of_all, wanted)
        losses["qq"] = estimate.clamp_min(wanted.floor)
    if wanted.xq:
        losses["xq"] = lower_bound(posterior, of_all, wanted.critic)
    if wanted.diversity:
        losses["diversity"] = diversity(posterior, of_all)
    return {name: loss.view(number, -1) for name, loss in losses.items()}


def between_heads(clusters: Clustering, valid: Tensor, wanted: LossSettings) -> Tensor:
    """Return L_Dqq of each sentence [B] by the estimator that is wanted, without a floor."""
    if wanted.estimator == "clusters":
        return cluster_information(clusters.posterior, valid)
    known = clusters.posterior, clusters.log_joint, valid, wanted.densities
    return released_estimate(*known) if wanted.estimator == "released" else upper_bound(*known, wanted.pairs)


def diversity(posterior: Tensor, valid: Tensor) -> Tensor:
    """Compute the diversity loss of each sentence [B], the mean over heads.

    Section 3.3 names a diversity loss without a formula. This is the one of the code that the authors
    released. For the posteriors P [n, C] of the n tokens of a sentence in one head, it is the mean over all
    pairs (i, k) of

        w_ik (P P^T - I)_ik^2,    w_ii = 1.25, w_ik = 0.75 for i != k

    It is low if the clusters of each token are decided and if tokens are in different clusters. The sum over
    all pairs needs no [n, n] matrix: the sum of (p_i . p_k)^2 is the squared norm of P^T P [C, C].

    Args:
        posterior: p(c | z_i^h) or p(c | q_i^h), [B, H, C, T].
        valid: bool [B, T], False = padding.
    """
    with no_autocast(posterior):
        n = valid.sum(dim=1).clamp_min(1).to(posterior.dtype)
        counted = posterior * valid[:, None, None]
        all_pairs = torch.matmul(counted, counted.transpose(2, 3)).square().sum(dim=(2, 3))
        own = counted.square().sum(dim=2)
        diagonal = 1.25 * (own - 1).square() - 0.75 * own.square()
        diagonal = (diagonal * valid.unsqueeze(1)).sum(dim=2)
        return ((0.75 * all_pairs + diagonal) / n.square().unsqueeze(1)).mean(dim=1)


def mean_over_tokens(divergence: Tensor, valid: Tensor) -> Tensor:
    """Average a divergence [B, H, T] over heads and `valid` tokens (bool [B, T]).

    Returns [B], with 0 for a sentence that has no valid token.
    """
    counted = valid.to(divergence.dtype)
    return (divergence.mean(dim=1) * counted).sum(dim=1) / counted.sum(dim=1).clamp_min(1)
