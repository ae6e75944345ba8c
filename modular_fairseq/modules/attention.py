"""Multi-head attention ("Attention Is All You Need", Vaswani et al. 2017) with two seams for other
mechanisms.

    scores  = Q K^T / sqrt(head_dim)  (+ causal mask, padding mask)  (+ score bias)      [B, H, T, S]
    heads   = softmax(scores) V       (* head scale)                                     [B, H, T, head_dim]
    output  = out_proj(concatenated heads)                                               [T, B, C]

`gate` gives the head scale, `mask` the score bias; with both absent this is fairseq's `MultiheadAttention`:
the same parameter names, initialisation, calls and caches, and the same numbers, on
`scaled_dot_product_attention` instead of hand-written products.
"""

import math

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn

from modular_fairseq.modules.grouped import build_linear, xavier_uniform


@with_incremental_state
class MultiheadAttention(nn.Module):
    """One attention for the encoder, the decoder and between them.

    Args:
        embed_dim: width of the queries and of the output, C.
        num_heads: H; must divide `embed_dim`.
        kdim, vdim: widths of keys and values, default `embed_dim`.
        dropout: probability on the attention weights.
        self_attention, encoder_decoder_attention: which of fairseq's two kinds this is (neither: keys and
            values as given).
        gate: module `(x, padding_mask, incremental_state, rows) -> [rows, H, T or 1, 1] or None`, multiplied
            to the heads.
        mask: module `(query, key, projected query [rows, H, T, head_dim], query_padding_mask,
            key_padding_mask, incremental_state) -> [B, H or 1, rows / B x T, S] or None`, added to the
            scores. Step by step, it gets the new query and key of self-attention, and must keep in
            `incremental_state` what it needs of the S - 1 earlier ones.
        q_noise, qn_block_size: quantisation noise on the projections, as in fairseq.
        groups: of features that do not mix (`grouped.py`): each has `num_heads` / `groups` heads, and
            projections of its own from its slice of queries, keys and values to its slice of the output.

    Raises:
        ValueError: `num_heads` does not divide `embed_dim`, or `groups` not `num_heads`.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        kdim: int | None = None,
        vdim: int | None = None,
        dropout: float = 0.0,
        bias: bool = True,
        self_attention: bool = False,
        encoder_decoder_attention: bool = False,
        gate: nn.Module | None = None,
        mask: nn.Module | None = None,
        q_noise: float = 0.0,
        qn_block_size: int = 8,
        groups: int = 1,
    ):
        super().__init__()
        if embed_dim % num_heads:
            raise ValueError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}")
        if num_heads % groups:
            raise ValueError(f"num_heads {num_heads} is not a multiple of groups {groups}")
        self.embed_dim = embed_dim
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.kdim = embed_dim if kdim is None else kdim
        self.vdim = embed_dim if vdim is None else vdim
        self.self_attention = self_attention
        self.encoder_decoder_attention = encoder_decoder_attention
        self.dropout_module = FairseqDropout(dropout, module_name=self.__class__.__name__)

        def linear(d_in: int) -> nn.Module:
            return build_linear(groups, d_in, embed_dim, bias, q_noise, qn_block_size)

        # In fairseq's order, so that the same seed gives the same weights.
        self.k_proj = linear(self.kdim)
        self.v_proj = linear(self.vdim)
        self.q_proj = linear(embed_dim)
        self.out_proj = linear(embed_dim)
        self.reset_parameters()
        self.gate = gate
        self.mask = mask

    def reset_parameters(self) -> None:
        same_dim = self.kdim == self.vdim == self.embed_dim
        gain = 1 / math.sqrt(2) if same_dim else 1.0
        for projection in (self.k_proj, self.v_proj, self.q_proj):
            xavier_uniform(projection, gain)
        xavier_uniform(self.out_proj)
        if self.out_proj.bias is not None:
            nn.init.zeros_(self.out_proj.bias)

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        value: Tensor | None,
        key_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        need_weights: bool = False,
        static_kv: bool = False,
        attn_mask: Tensor | None = None,
        need_head_weights: bool = False,
        query_padding_mask: Tensor | None = None,
        source: tuple[Tensor, Tensor | None] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend.

        Args:
            query: [T, rows, C].
            key, value: [S, B, kdim], [S, B, vdim]. rows is B, or B x beam in beam search with one source for
                all hypotheses of a sentence; the rows of a sentence are then neighbours.
            key_padding_mask: bool [B, S], True = pad.
            incremental_state: fairseq's dictionary for step-by-step decoding; keys and values of earlier
                steps are kept there.
            static_kv: keys and values do not change between steps (cross-attention): project them once.
            attn_mask: float [T, S], added to the scores (0 or -inf).
            need_weights, need_head_weights: also return the attention weights, averaged or per head.
            query_padding_mask: bool [rows, T], True = pad: for gate and mask, which must not count them; in
                self-attention the default is that of the keys.
            source: `(encoder output [S, B, C'], padding mask bool [B, S] or None)`: what a gate with
                `looks_at_source` looks at; other gates look at the query.

        Returns:
            output [T, rows, C]; weights [rows, T, S], or [H, rows, T, S] per head, or None. Weights are those
            of the softmax: no dropout, no head scale.
        """
        # Contiguous, or each projection copies it, or takes a slow path where its weights are frozen.
        query = query.contiguous()
        rows = query.size(1)
        if query_padding_mask is None and self.self_attention:
            query_padding_mask = key_padding_mask
        q = self._split(self.q_proj(query))
        cache = self._get_input_buffer(incremental_state) if incremental_state is not None else {}
        if static_kv and "prev_key" in cache:
            k, v, key_padding_mask = cache["prev_key"], cache["prev_value"], cache["prev_key_padding_mask"]
        else:
            if self.self_attention:
                key = value = query
            elif self.encoder_decoder_attention:
                value = key
            k, v = self._split(self.k_proj(key)), self._split(self.v_proj(value))
            if incremental_state is not None:
                if "prev_key" in cache:
                    key_padding_mask = _append_padding(
                        cache["prev_key_padding_mask"], cache["prev_key"], key_padding_mask, k
                    )
                    k = torch.cat([cache["prev_key"], k], dim=2)
                    v = torch.cat([cache["prev_value"], v], dim=2)
                cache = {"prev_key": k, "prev_value": v, "prev_key_padding_mask": key_padding_mask}
                self._set_input_buffer(incremental_state, cache)
                self.set_incremental_state(incremental_state, "beam_size", rows // k.size(0))

        # Hypotheses that share a source attend to it as further queries of one sentence.
        beam = rows // k.size(0)
        bias = _join_masks(attn_mask, key_padding_mask, q.dtype)
        if bias is not None and bias.size(-2) > 1:
            bias = bias.repeat(1, 1, beam, 1)
        if self.mask is not None:
            score_bias = self.mask(query, key, q, query_padding_mask, key_padding_mask, incremental_state)
            if score_bias is not None:
                bias = score_bias.to(q.dtype) if bias is None else bias + score_bias.to(q.dtype)
        heads, weights = self._attend(fold_beam(q, beam), k, v, bias, need_weights or need_head_weights)
        heads = _unfold_beam(heads, beam)

        if self.gate is not None:
            seen = source if getattr(self.gate, "looks_at_source", False) else (query, query_padding_mask)
            scale = self.gate(*seen, incremental_state=incremental_state, rows=rows)
            if scale is not None:
                heads = heads * scale.to(heads.dtype)
        # B x H x T x D -> T x B x C
        output = self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))
        if weights is not None:
            weights = _unfold_beam(weights, beam)
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return output, weights

    def _split(self, x: Tensor) -> Tensor:
        """[T, B, C] -> [B, H, T, head_dim], a view."""
        return x.view(x.size(0), x.size(1), self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """softmax(q k^T / sqrt(head_dim) + bias) v, and the weights if asked for: [B, H, T, head_dim], [B, H,
        T, S].
        """
        dropout = self.dropout_module
        if not need_weights:
            p = dropout.p if self.training or dropout.apply_during_inference else 0.0
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, dropout_p=p), None
        scores = torch.matmul(q * self.head_dim**-0.5, k.transpose(-2, -1))
        if bias is not None:
            scores = scores + bias
        at_least_float32 = torch.promote_types(scores.dtype, torch.float32)
        # A query that may see no key at all gets zeros, as from scaled_dot_product_attention, instead of NaN,
        # also as gradients.
        blind = torch.isneginf(scores).all(dim=-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(blind, 0.0), dim=-1, dtype=at_least_float32).masked_fill(
            blind, 0.0
        )
        return torch.matmul(dropout(weights.to(v.dtype)), v), weights

    # The caches, under the names that fairseq's decoder layers know. They belong to one batch: nothing about
    # a search is kept in the module, so generators of different beam sizes can share a model.

    def _get_input_buffer(self, incremental_state: dict | None) -> dict[str, Tensor | None]:
        return self.get_incremental_state(incremental_state, "attn_state") or {}

    def _set_input_buffer(self, incremental_state: dict, buffer: dict[str, Tensor | None]) -> dict:
        return self.set_incremental_state(incremental_state, "attn_state", buffer)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        """Follow the beam: row i of the caches becomes what was row `new_order[i]`.

        Cross-attention keys are kept once a sentence. They change only when sentences leave the batch, since
        a hypothesis never moves to another sentence.
        """
        cache = self._get_input_buffer(incremental_state)
        if cache:
            if self.encoder_decoder_attention:
                beam = self.get_incremental_state(incremental_state, "beam_size") or 1
                new_order = sentence_order(new_order, beam, cache["prev_key"].size(0))
            if new_order is not None:
                cache = {name: t if t is None else t.index_select(0, new_order) for name, t in cache.items()}
                self._set_input_buffer(incremental_state, cache)
        return incremental_state

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Split the packed `in_proj_weight` / `in_proj_bias` of old fairseq checkpoints."""
        for kind in ("weight", "bias"):
            packed = state_dict.pop(f"{name}.in_proj_{kind}", None)
            if packed is not None:
                for projection, part in zip("qkv", packed.chunk(3), strict=True):
                    state_dict[f"{name}.{projection}_proj.{kind}"] = part


def sentence_order(new_order: Tensor, beam: int, sentences: int) -> Tensor | None:
    """The order of sentences behind an order of hypotheses; None when no sentence left the batch."""
    if beam == 1:
        return new_order
    return None if new_order.numel() == sentences * beam else new_order[::beam] // beam


def _join_masks(
    attn_mask: Tensor | None, key_padding_mask: Tensor | None, dtype: torch.dtype
) -> Tensor | None:
    """One additive mask [B or 1, 1, T or 1, S] out of float or bool (True = masked) [T, S] and bool [B, S];
    None when nothing is masked.
    """
    if attn_mask is not None and attn_mask.dtype == torch.bool:
        attn_mask = torch.zeros(attn_mask.shape, dtype=dtype, device=attn_mask.device).masked_fill(
            attn_mask, float("-inf")
        )
    joined = None if attn_mask is None else attn_mask.to(dtype)[None, None]
    if key_padding_mask is not None:
        blocked = key_padding_mask.to(torch.bool)[:, None, None, :]
        if joined is None:
            joined = torch.zeros((), dtype=dtype, device=blocked.device)
        joined = torch.where(blocked, float("-inf"), joined)
    return joined


def _append_padding(
    previous: Tensor | None, previous_key: Tensor, current: Tensor | None, key: Tensor
) -> Tensor | None:
    """Padding mask of the cached keys [B, H, S', D] followed by the new ones; None when there is no pad in
    either.
    """
    if previous is None and current is None:
        return None
    if previous is None:
        previous = current.new_zeros(previous_key.size(0), previous_key.size(2))
    if current is None:
        current = previous.new_zeros(key.size(0), key.size(2))
    return torch.cat([previous, current.to(previous.dtype)], dim=1)


def fold_beam(x: Tensor, beam: int) -> Tensor:
    """[B x beam, H, T, D] -> [B, H, beam x T, D]: the hypotheses of a sentence as further queries of it."""
    if beam == 1:
        return x
    rows, heads, length, dim = x.shape
    return (
        x.view(rows // beam, beam, heads, length, dim)
        .transpose(1, 2)
        .reshape(rows // beam, heads, beam * length, dim)
    )


def _unfold_beam(x: Tensor, beam: int) -> Tensor:
    """[B, H, beam x T, D] -> [B x beam, H, T, D]."""
    if beam == 1:
        return x
    sentences, heads, length, dim = x.shape
    return (
        x.view(sentences, heads, beam, length // beam, dim)
        .transpose(1, 2)
        .reshape(sentences * beam, heads, length // beam, dim)
    )
