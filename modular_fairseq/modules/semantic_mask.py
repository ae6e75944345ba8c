"""The semantic mask of attention, as a bias on the scores (DMA, section 3.1).

The paper is "Bayesian Transformer Using Disentangled Mask Attention" (Chien and Huang 2022).

    G_ij = sum_c p(c | z_i) p(c | z_j)              the probability that i and j are in one cluster
    M_ij = G_ij / sum_j G_ij                        Eq. 5
    A'_ij = M_ij A_ij / sum_j' M_ij' A_ij'          for A = softmax(S)
          = softmax_j(S_ij + log G_ij)              as the normalisers of M and A cancel

Two other forms compute the same. The first multiplies by G after the softmax and normalises the output.
Forward and backward pass of the attention alone then took 0.90 of the time for 34 x 30 tokens and 4 heads,
and 1.08 for 32 x 128 tokens and 8 heads, on a CPU. The second is attention without a bias over values p_j (x)
[v_j, 1]; it took 7.6 and 3.3 times as long. A bias is used because it fits the seam of the attention module.

z is the input of the attention module, and each head has its slice of the features. Cross-attention uses the
same clusters for queries and keys, because posteriors of different clusters could not be compared.
"""

from collections.abc import Hashable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from modular_fairseq.modules.autocasting import no_autocast
from modular_fairseq.modules.beams import fold_beam, sentence_order
from modular_fairseq.modules.disentangled_heads import DisentangledHeads, LossSettings
from modular_fairseq.modules.divided_input import DividesInput
from modular_fairseq.modules.gaussian_densities import Clustering
from modular_fairseq.modules.gaussian_mixture import GaussianMixture
from modular_fairseq.modules.incremental import IncrementalModule
from modular_fairseq.modules.recomputation import is_recomputation

SMALLEST_OVERLAP = 1e-6  # its logarithm is -13.8


@dataclass
class Latents:
    """Samples of the latent vectors of one forward pass in training (section 3.3).

    Attributes:
        tokens: z at the positions of the queries, [T, rows, C].
        keys: z at the positions of the keys, [S, B, C]; in self-attention `tokens`.
        queries: q, [rows, H, T, head_dim]; None before `SemanticMask.draw_queries`.
    """

    tokens: Tensor
    keys: Tensor
    queries: Tensor | None = None


class Seen(NamedTuple):
    """What a mask has seen in a forward pass, from which its losses are computed.

    Attributes:
        tokens: the clusters of the tokens at the positions of the queries.
        keys: the clusters of the keys. In self-attention, keys are tokens and have the same clusters.
        projected: the queries of the heads, [rows, H, T, head_dim].
        drawn: samples of the queries, [rows, H, T, head_dim], or None.
        query_padding_mask, key_padding_mask: bool [rows, T] and [B, S], True = pad, or None.
    """

    tokens: Clustering
    keys: Clustering | None
    projected: Tensor
    drawn: Tensor | None
    query_padding_mask: Tensor | None
    key_padding_mask: Tensor | None


class SemanticMask(IncrementalModule, DividesInput):
    """The `mask` of an attention module, with the auxiliary losses of its clusters.

    It has two mixtures: `tokens` clusters tokens for the mask, and `queries` clusters queries, for losses
    only (`disentangled_heads.py`).

    Args:
        num_heads, embed_dim: H and C of the attention module. Keys must be as wide as queries.
        clusters, posterior, centroid_gradient, centroid_mode, variance: see `GaussianMixture`.
        draws_latents: whether attention computes its scores in training from samples of z and q, as the
            expectation over z and q in section 3.3 asks. It needs the posterior "sample". By default samples
            are only used for clusters. Values and residual connections never see samples, because the paper
            defines a latent attention and not a noisy network.
        self_attention: whether the keys are at the positions of the queries.
        in_evaluation: whether the mask is used outside training. False in the paper's decoder self-attention.

    Raises:
        ValueError: latents are to be drawn with another posterior than "sample".

    Attributes:
        wanted: which losses a forward pass in training computes. It must not change before the backward pass,
            in which activation checkpointing computes everything a second time.
        seen: what the last forward pass has seen, if losses are `wanted`. `measure` computes the losses of
            many masks from it.
    """

    def __init__(
        self,
        num_heads: int,
        embed_dim: int,
        clusters: int,
        posterior: str = "expected",
        centroid_gradient: float = 10.0,
        centroid_mode: str = "lr",
        variance: str = "learned",
        draws_latents: bool = False,
        self_attention: bool = True,
        in_evaluation: bool = True,
    ):
        super().__init__()
        if draws_latents and posterior != "sample":
            raise ValueError(f"draws_latents needs the posterior 'sample', not {posterior!r}")
        self.num_heads = num_heads
        self.draws_latents = draws_latents
        self.self_attention = self_attention
        self.in_evaluation = in_evaluation
        settings: dict[str, Any] = {
            "posterior": posterior,
            "centroid_gradient": centroid_gradient,
            "centroid_mode": centroid_mode,
            "variance": variance,
        }
        self.tokens = GaussianMixture(num_heads, clusters, embed_dim // num_heads, **settings)
        self.queries = DisentangledHeads(num_heads, clusters, embed_dim // num_heads, **settings)
        self.wanted = LossSettings()
        self.seen: Seen | None = None

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        projected: Tensor,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: dict | None = None,
        latents: Latents | None = None,
    ) -> Tensor | None:
        """Compute the bias log G, and in training also note in `seen` what losses need.

        Args:
            query: [T, rows, C].
            key: [S, B, C] of cross-attention. It is not used in self-attention, nor if `incremental_state`
                has the clusters of the keys.
            projected: the queries of the heads, [rows, H, T, head_dim].
            query_padding_mask, key_padding_mask: bool [rows, T] and [B, S], True = pad.
            incremental_state: fairseq's dictionary for step-by-step decoding. It keeps the clusters of
                earlier tokens (self-attention) or of all keys (cross-attention).
            latents: the samples from which the scores are computed. Clusters and losses take the same ones.

        Returns:
            the bias [B, H, rows / B x T, S], differentiable and in float32 or better, or None if there is no
            mask.
        """
        if not (self.training or self.in_evaluation):
            return None
        wanted = self.wanted if self.training else LossSettings()
        if self.tokens.clusters == 1 and not wanted.wants_any:
            return None  # the bias would be the same for all tokens
        z_tokens = z_keys = drawn = None
        if latents is not None:
            z_tokens, z_keys, drawn = latents.tokens, latents.keys, latents.queries
        divergence = wanted.kl and self.tokens.needs_vectors
        tokens = self.cluster(query, divergence, z_tokens)
        keys: Clustering | None
        if self.self_attention:
            keys = tokens
        elif incremental_state is None or not self.get_incremental_state(incremental_state, "clusters"):
            assert key is not None
            keys = self.cluster(key, divergence, z_keys)
        else:
            keys = None
        if incremental_state is None:
            assert keys is not None
            seen = keys.posterior
        else:
            seen = self._remember(keys, query.size(1), incremental_state)
        if wanted.wants_any and not is_recomputation():
            self.seen = Seen(tokens, keys, projected, drawn, query_padding_mask, key_padding_mask)
        if self.tokens.clusters == 1:
            return None
        posterior, beam = tokens.posterior, tokens.posterior.size(0) // seen.size(0)
        return log_overlap(fold_beam(posterior.transpose(2, 3), beam).transpose(2, 3), seen)

    def kind(self) -> Hashable:
        """Return what tells apart masks that cannot be measured together, after a forward pass."""
        assert self.seen is not None
        of_masks = (self.seen.query_padding_mask, self.seen.key_padding_mask)
        return (
            self.self_attention,
            *(None if mask is None else id(mask) for mask in of_masks),
            self.seen.projected.shape,
            self.tokens.kind(),
            self.queries.mixture.kind(),
        )

    def draw(self, query: Tensor, key: Tensor | None) -> Latents:
        """Draw samples of z for the input of the attention module, query [T, rows, C] and key [S, B, C].

        In self-attention the keys are the queries. The samples have the type of the input.
        """
        tokens = self._draw_tokens(query)
        return Latents(tokens, tokens if self.self_attention or key is None else self._draw_tokens(key))

    def draw_queries(self, projected: Tensor, latents: Latents) -> Tensor:
        """Draw samples of q for the projected queries [rows, H, T, head_dim], and keep them in `latents`."""
        latents.queries = self.queries.draw(projected).to(projected.dtype)
        return latents.queries

    def _draw_tokens(self, x: Tensor) -> Tensor:
        return self.undivided(self.tokens.draw(self._by_head(x)).flatten(2)).to(x.dtype)

    def _by_head(self, x: Tensor) -> Tensor:
        return self.divided(x).unflatten(2, (self.num_heads, -1))

    def cluster(self, x: Tensor, divergence: bool = False, z: Tensor | None = None) -> Clustering:
        """Return the clusters of tokens x [T, B, C]; each head has its slice of the features.

        Args:
            divergence: whether to compute the KL divergence from the prior.
            z: samples of the tokens, [T, B, C], that `draw` has drawn.
        """
        return self.tokens(self._by_head(x), divergence, None if z is None else self._by_head(z))

    def _remember(self, keys: Clustering | None, rows: int, incremental_state: dict) -> Tensor:
        """Add `keys` to the state of the search, and return the posteriors of all keys so far [B, H, C, S].

        Args:
            keys: the clusters of new keys; None if the state already has the clusters of all keys.
            rows: number of query rows, B or B x beam.
        """
        known = self.get_incremental_state(incremental_state, "clusters")
        if keys is None:
            return known["posterior"]
        posterior = torch.cat([known["posterior"], keys.posterior], dim=3) if known else keys.posterior
        self.set_incremental_state(
            incremental_state, "clusters", {"posterior": posterior, "beam": rows // posterior.size(0)}
        )
        return posterior

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Reorder the posteriors as the beam was reordered, like the keys of the attention module."""
        known = self.get_incremental_state(incremental_state, "clusters")
        if known:
            posterior, beam = known["posterior"], known["beam"]
            order = new_order if self.self_attention else sentence_order(new_order, beam, posterior.size(0))
            if order is not None:
                known = {"posterior": posterior.index_select(0, order), "beam": beam}
                self.set_incremental_state(incremental_state, "clusters", known)


def log_overlap(p: Tensor, k: Tensor) -> Tensor:
    """Compute log max(G, 1e-6) for G_ij = sum_c p_ic k_jc: p [B, H, C, T], k [B, H, C, S] -> [B, H, T, S].

    If none of the keys is in the clusters of a query, the lower limit lets it attend as without a mask.
    Posteriors are in float32 or better, because in bfloat16 G would be wrong by up to a hundredth.
    """
    # The compiler cannot trace a function of our own with autocast, and only a backward pass needs one.
    if torch.compiler.is_compiling() or not torch.is_grad_enabled():
        return _overlap(p, k).clamp(min=SMALLEST_OVERLAP).log()
    return _LogOverlap.apply(p, k)


def _overlap(p: Tensor, k: Tensor) -> Tensor:
    with no_autocast(p):
        return torch.matmul(p.transpose(2, 3), k)


class _LogOverlap(torch.autograd.Function):
    """`log_overlap` with a backward pass that keeps one matrix of the size of the attention weights."""

    @staticmethod
    def forward(ctx: Any, p: Tensor, k: Tensor) -> Tensor:
        overlap = _overlap(p, k).clamp_min_(SMALLEST_OVERLAP)
        ctx.save_for_backward(p, k, overlap)
        return overlap.log()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:
        p, k, overlap = ctx.saved_tensors
        slope = (gradient.to(overlap.dtype) / overlap).masked_fill_(overlap <= SMALLEST_OVERLAP, 0.0)
        return torch.matmul(k, slope.transpose(2, 3)), torch.matmul(p, slope)
