"""The semantic mask of attention ("Bayesian Transformer Using Disentangled Mask Attention", section 3.1), as a bias on the scores.

    G_ij = sum_c p(c | z_i) p(c | z_j)              the probability that tokens i and j belong to the same cluster
    M_ij = G_ij / sum_j G_ij                                                                                        Eq. 5
    A'_ij = M_ij A_ij / sum_j' M_ij' A_ij'          for A = softmax(S)
          = softmax_j(S_ij + log G_ij)              as what normalises M and A cancels

z are the inputs of the attention module, a head's slice of them for each head. The same clusters are used for the queries' and the keys'
side of cross-attention, or they could not be compared.
"""

import math
from dataclasses import dataclass

import torch
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn

from modular_fairseq.modules.attention import fold_beam, sentence_order
from modular_fairseq.modules.gaussian_mixture import Clustering, GaussianMixture
from modular_fairseq.modules.mutual_information import lower_bound, upper_bound
from modular_fairseq.modules.recomputation import is_recomputation

SMALLEST_OVERLAP = 1e-6  # log: -13.8


@dataclass(frozen=True)
class Losses:
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


@with_incremental_state
class SemanticMask(nn.Module):
    """The `mask` of an attention module, and the losses that train its clusters and disentangle its heads.

    Two mixtures: of the tokens z, one a head, for the mask; of the queries, shared by all heads, for the losses alone.

    Args:
        num_heads, embed_dim: of the attention module; keys must be as wide as queries.
        clusters, posterior, centroid_gradient, centroid_mode: see `GaussianMixture`.
        self_attention: keys are the queries' own positions.
        in_evaluation: False: no mask outside training, as in the paper's decoder self-attention.
    """

    def __init__(
        self,
        num_heads: int,
        embed_dim: int,
        clusters: int,
        posterior: str = "expected",
        centroid_gradient: float = 10.0,
        centroid_mode: str = "lr",
        self_attention: bool = True,
        in_evaluation: bool = True,
    ):
        super().__init__()
        self.num_heads = num_heads
        self.self_attention = self_attention
        self.in_evaluation = in_evaluation
        settings = {"posterior": posterior, "centroid_gradient": centroid_gradient, "centroid_mode": centroid_mode}
        self.tokens = GaussianMixture(num_heads, clusters, embed_dim // num_heads, **settings)
        self.queries = GaussianMixture(num_heads, clusters, embed_dim // num_heads, shared=True, **settings)
        self.wanted: Losses | None = None
        self.losses: dict[str, Tensor] = {}

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        heads: Tensor,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: dict | None = None,
    ) -> Tensor | None:
        """The bias log G, and in training `losses`, those that are `wanted`, as one value a sentence, [B].

        Args:
            query: [T, rows, C].
            key: [S, B, C], of cross-attention; not used in self-attention, nor where they are in `incremental_state`.
            heads: the projected queries, [rows, H, T, head_dim].
            query_padding_mask, key_padding_mask: bool [rows, T], [B, S], True = pad.
            incremental_state: step by step, the clusters of earlier tokens (self-attention) or all keys (cross-attention) are kept there.

        Returns:
            [B, H, rows / B x T, S], or None: no mask. Differentiable, in float32 at least.
        """
        if not (self.training or self.in_evaluation):
            return None
        wanted = self.wanted if self.training else None
        measures = wanted is not None and (wanted.kl or wanted.qq or wanted.xq)
        if self.tokens.clusters == 1 and not measures:
            return None  # the same for all tokens, so no mask
        divergence = measures and wanted.kl
        tokens = self.tokens(self._split(query), divergence)
        if self.self_attention:
            keys = tokens
        elif incremental_state is None or not self.get_incremental_state(incremental_state, "clusters"):
            keys = self.tokens(self._split(key), divergence)
        else:
            keys = None
        seen = keys.posterior if incremental_state is None else self._remember(keys, query.size(1), incremental_state)
        if measures:
            losses = self._measure(wanted, tokens, keys, heads, query_padding_mask, key_padding_mask)
            if not is_recomputation():
                self.losses = losses
        if self.tokens.clusters == 1:
            return None
        posterior, beam = tokens.posterior, tokens.posterior.size(0) // seen.size(0)
        bias = _LogOverlap.apply(fold_beam(posterior.transpose(2, 3), beam).transpose(2, 3), seen)
        if self.training and not measures:
            # DistributedDataParallel wants a gradient of every parameter, and these are for the losses alone.
            bias = bias + 0.0 * sum(parameter.sum() for parameter in self.queries.parameters())
        return bias

    def _split(self, x: Tensor) -> Tensor:
        """[T, B, C] -> [T, B, H, C / H]."""
        return x.unflatten(2, (self.num_heads, -1))

    def _remember(self, keys: Clustering | None, rows: int, incremental_state: dict) -> Tensor:
        """The cluster posteriors of all keys up to now, [B, H, C, S]."""
        known = self.get_incremental_state(incremental_state, "clusters")
        if keys is None:
            return known["posterior"]
        posterior = torch.cat([known["posterior"], keys.posterior], dim=3) if known else keys.posterior
        self.set_incremental_state(incremental_state, "clusters", {"posterior": posterior, "beam": rows // posterior.size(0)})
        return posterior

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Follow the beam, as the attention module does with its keys."""
        known = self.get_incremental_state(incremental_state, "clusters")
        if known:
            posterior, beam = known["posterior"], known["beam"]
            order = new_order if self.self_attention else sentence_order(new_order, beam, posterior.size(0))
            if order is not None:
                known = {"posterior": posterior.index_select(0, order), "beam": beam}
                self.set_incremental_state(incremental_state, "clusters", known)

    def _measure(
        self,
        wanted: Losses,
        tokens: Clustering,
        keys: Clustering,
        heads: Tensor,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> dict[str, Tensor]:
        """The losses by name, each [B]: a mean over heads, and over the tokens of a sentence or its pairs of tokens."""
        valid = _valid(query_padding_mask, tokens.posterior)
        queries = self.queries(heads.permute(2, 0, 1, 3), wanted.kl)
        losses = {}
        if wanted.kl:
            divergence, counted = tokens.divergence, valid
            if not self.self_attention:
                divergence = torch.cat([divergence, keys.divergence], dim=2)
                counted = torch.cat([valid, _valid(key_padding_mask, keys.posterior)], dim=1)
            losses["kl"] = _mean(divergence, counted) + _mean(queries.divergence, valid)
        if wanted.qq:
            bound = upper_bound(queries.posterior, queries.log_joint, valid, wanted.densities, wanted.pairs)
            losses["qq"] = torch.where(bound > wanted.floor, bound, bound.detach())
        if wanted.xq:
            losses["xq"] = lower_bound(queries.posterior, valid, wanted.critic)
        return losses


def _valid(padding_mask: Tensor | None, posterior: Tensor) -> Tensor:
    """Tokens that count, bool [B, T], out of a padding mask, with the sizes of posteriors [B, H, C, T]."""
    if padding_mask is None:
        return torch.ones(posterior.size(0), posterior.size(3), dtype=torch.bool, device=posterior.device)
    return padding_mask.to(torch.bool).logical_not()


def _mean(divergence: Tensor, valid: Tensor) -> Tensor:
    """[B, H, T] -> [B], over heads and valid tokens; 0 where there are none."""
    counted = valid.to(divergence.dtype)
    return (divergence.mean(dim=1) * counted).sum(dim=1) / counted.sum(dim=1).clamp_min(1)


class _LogOverlap(torch.autograd.Function):
    """log max(G, 1e-6) for G_ij = sum_c p_ic k_jc: p [B, H, C, T], k [B, H, C, S] -> [B, H, T, S].

    The floor lets a query attend as without a mask to keys of which none is in its clusters. Posteriors are in float32 at least: in
    bfloat16, G would be wrong by up to a hundredth. One matrix of the size of the attention's is kept for the backward pass.
    """

    @staticmethod
    def forward(ctx, p: Tensor, k: Tensor) -> Tensor:
        with torch.autocast(p.device.type, enabled=False):
            overlap = torch.matmul(p.transpose(2, 3), k).clamp_min_(SMALLEST_OVERLAP)
        ctx.save_for_backward(p, k, overlap)
        return overlap.log()

    @staticmethod
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        p, k, overlap = ctx.saved_tensors
        slope = (gradient.to(overlap.dtype) / overlap).masked_fill_(overlap <= SMALLEST_OVERLAP, 0.0)
        return torch.matmul(k, slope.transpose(2, 3)), torch.matmul(p, slope)
