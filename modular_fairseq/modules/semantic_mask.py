"""The semantic mask of attention ("Bayesian Transformer Using Disentangled Mask Attention", section 3.1), as
a bias on the scores.

    G_ij = sum_c p(c | z_i) p(c | z_j)              the probability that i and j are in one cluster
    M_ij = G_ij / sum_j G_ij                        Eq. 5
    A'_ij = M_ij A_ij / sum_j' M_ij' A_ij'          for A = softmax(S)
          = softmax_j(S_ij + log G_ij)              as what normalises M and A cancels

Multiplying by G after the softmax, and normalising the output, is the same; forward and backward of the
attention alone then took 0.90 of the time for 34 x 30 tokens and 4 heads, and 1.08 for 32 x 128 and 8 heads,
on a CPU. Attention without a bias over values p_j (x) [v_j, 1] is the same again, and took 7.6 and 3.3 times
as long. A bias is what the seam of the attention module takes.

z are the inputs of the attention module, a head's slice of them for each head. The same clusters are used for
the queries' and the keys' side of cross-attention, or they could not be compared.
"""

import torch
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from modular_fairseq.modules.attention import fold_beam, sentence_order
from modular_fairseq.modules.disentangled_heads import DisentangledHeads, LossSettings, mean_over_tokens
from modular_fairseq.modules.gaussian_mixture import Clustering, GaussianMixture
from modular_fairseq.modules.recomputation import is_recomputation

SMALLEST_OVERLAP = 1e-6  # log: -13.8


@with_incremental_state
class SemanticMask(nn.Module):
    """The `mask` of an attention module: clusters of tokens for the mask, and those of queries for losses
    alone (`disentangled_heads.py`).

    `wanted` says which losses forward passes in training compute. It stays as it is until the backward pass,
    as activation checkpointing then computes all again; `losses` are those of the last forward pass, kept
    until they are taken (`models/dma.py`).

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
        settings = {
            "posterior": posterior,
            "centroid_gradient": centroid_gradient,
            "centroid_mode": centroid_mode,
        }
        self.tokens = GaussianMixture(num_heads, clusters, embed_dim // num_heads, **settings)
        self.queries = DisentangledHeads(num_heads, clusters, embed_dim // num_heads, **settings)
        self.wanted = LossSettings()
        self.losses: dict[str, Tensor] = {}

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        projected: Tensor,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: dict | None = None,
    ) -> Tensor | None:
        """Compute the bias log G; in training also `losses`, [B] each.

        Args:
            query: [T, rows, C].
            key: [S, B, C], of cross-attention; not used in self-attention, nor where they are in
                `incremental_state`.
            projected: the queries of the heads, [rows, H, T, head_dim].
            query_padding_mask, key_padding_mask: bool [rows, T], [B, S], True = pad.
            incremental_state: step by step, the clusters of earlier tokens (self-attention) or all keys
                (cross-attention) are kept there.

        Returns:
            [B, H, rows / B x T, S], or None: no mask. Differentiable, in float32 at least.
        """
        if not (self.training or self.in_evaluation):
            return None
        wanted = self.wanted if self.training else LossSettings()
        if self.tokens.clusters == 1 and not wanted.any:
            return None  # the same for all tokens, so no mask
        tokens = self.cluster(query, wanted.kl)
        if self.self_attention:
            keys = tokens
        elif incremental_state is None or not self.get_incremental_state(incremental_state, "clusters"):
            keys = self.cluster(key, wanted.kl)
        else:
            keys = None
        seen = (
            keys.posterior
            if incremental_state is None
            else self._remember(keys, query.size(1), incremental_state)
        )
        if wanted.any:
            losses = self._measure(wanted, tokens, keys, projected, query_padding_mask, key_padding_mask)
            if not is_recomputation():
                self.losses = losses
        if self.tokens.clusters == 1:
            return None
        posterior, beam = tokens.posterior, tokens.posterior.size(0) // seen.size(0)
        return _LogOverlap.apply(fold_beam(posterior.transpose(2, 3), beam).transpose(2, 3), seen)

    def cluster(self, x: Tensor, divergence: bool = False) -> Clustering:
        """The clusters of tokens x [T, B, C], a head's slice of them for each head."""
        return self.tokens(x.unflatten(2, (self.num_heads, -1)), divergence)

    def _remember(self, keys: Clustering | None, rows: int, incremental_state: dict) -> Tensor:
        """The cluster posteriors of all keys up to now, [B, H, C, S]."""
        known = self.get_incremental_state(incremental_state, "clusters")
        if keys is None:
            return known["posterior"]
        posterior = torch.cat([known["posterior"], keys.posterior], dim=3) if known else keys.posterior
        self.set_incremental_state(
            incremental_state, "clusters", {"posterior": posterior, "beam": rows // posterior.size(0)}
        )
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
        wanted: LossSettings,
        tokens: Clustering,
        keys: Clustering,
        projected: Tensor,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
    ) -> dict[str, Tensor]:
        """Those of the queries, and the divergence of the tokens on both sides beside theirs."""
        valid = _valid(query_padding_mask, tokens.posterior)
        losses = self.queries(projected, valid, wanted)
        if wanted.kl:
            divergence = tokens.divergence
            if not self.self_attention:
                divergence = torch.cat([divergence, keys.divergence], dim=2)
                valid = torch.cat([valid, _valid(key_padding_mask, keys.posterior)], dim=1)
            losses["kl"] = losses["kl"] + mean_over_tokens(divergence, valid)
        return losses


def _valid(padding_mask: Tensor | None, posterior: Tensor) -> Tensor:
    """Tokens that count, bool [B, T], out of a padding mask, with the sizes of posteriors [B, H, C, T]."""
    if padding_mask is None:
        return torch.ones(posterior.size(0), posterior.size(3), dtype=torch.bool, device=posterior.device)
    return padding_mask.to(torch.bool).logical_not()


class _LogOverlap(torch.autograd.Function):
    """log max(G, 1e-6) for G_ij = sum_c p_ic k_jc: p [B, H, C, T], k [B, H, C, S] -> [B, H, T, S].

    The floor lets a query attend as without a mask to keys of which none is in its clusters. Posteriors are
    in float32 at least: in bfloat16, G would be wrong by up to a hundredth. One matrix of the size of the
    attention's is kept for the backward pass.
    """

    @staticmethod
    def forward(ctx, p: Tensor, k: Tensor) -> Tensor:
        with torch.autocast(p.device.type, enabled=False):
            overlap = torch.matmul(p.transpose(2, 3), k).clamp_min_(SMALLEST_OVERLAP)
        ctx.save_for_backward(p, k, overlap)
        return overlap.log()

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient: Tensor) -> tuple[Tensor, Tensor]:
        p, k, overlap = ctx.saved_tensors
        slope = (gradient.to(overlap.dtype) / overlap).masked_fill_(overlap <= SMALLEST_OVERLAP, 0.0)
        return torch.matmul(k, slope.transpose(2, 3)), torch.matmul(p, slope)
