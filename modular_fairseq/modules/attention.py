"""Multi-head attention ("Attention Is All You Need", Vaswani et al. 2017) with two seams for mechanisms.

    scores  = Q K^T / sqrt(head_dim)  (+ causal mask, padding mask)  (+ score bias)      [B, H, T, S]
    heads   = softmax(scores) V       (* head scale)                                     [B, H, T, head_dim]
    output  = out_proj(concatenated heads)                                               [T, B, C]

A mechanism may give the module a `gate`, which computes the head scale, and a `mask`, which computes the
score bias. Without them the module equals fairseq's `MultiheadAttention`: it has the same parameter names,
initialisation and calls, and computes the same numbers. It uses `scaled_dot_product_attention` instead of
hand-written products, and keeps keys and values of a search in place (`key_values.py`).
"""

import math
from typing import Any

import torch
import torch.nn.functional as F
from fairseq.modules.fairseq_dropout import FairseqDropout
from torch import Tensor, nn

from modular_fairseq.modules.beams import fold_beam, unfold_beam
from modular_fairseq.modules.grouped import GroupLinear, build_linear, xavier_uniform
from modular_fairseq.modules.incremental import IncrementalModule
from modular_fairseq.modules.key_values import KeyValues
from modular_fairseq.modules.masks import AttentionMasks
from modular_fairseq.modules.projections import JointWeights, can_be_joined, project


class MultiheadAttention(IncrementalModule):
    """Self-attention of an encoder or decoder, or cross-attention from a decoder to the encoder output.

    Args:
        embed_dim: C, the width of the queries and of the output.
        num_heads: H, the number of heads. It must divide `embed_dim`.
        kdim, vdim: widths of keys and values. The default is `embed_dim`.
        dropout: dropout probability of the attention weights.
        bias: whether the projections have a bias.
        self_attention: whether keys and values are computed from the query.
        encoder_decoder_attention: whether values are computed from the key. If both flags are False, `key`
            and `value` are used as given.
        gate: a module `(x, padding_mask, incremental_state, rows) -> [rows, H, T or 1, 1] or None`. The heads
            are multiplied by its result.
        mask: a module `(query, key, projected query [rows, H, T, head_dim], query_padding_mask,
            key_padding_mask, incremental_state) -> [B or 1, H or 1, rows / B x T, S] or None`. Its result is
            added to the scores. In step-by-step decoding it receives only the new query and key of
            self-attention. It must keep what it needs of the S - 1 earlier ones in `incremental_state`. A
            mask with the attribute `draws_latents` = True also replaces, in training, what the scores are
            computed from: `draw(query, key)` returns an object with `tokens` and `keys`, from which the
            module projects its queries and keys, and `draw_queries(projected query, that object)` returns the
            queries that it takes. The mask then receives the object as `latents`, after `incremental_state`.
        q_noise, qn_block_size: quantisation noise on the projections, as in fairseq.
        groups: number of groups of features that do not mix (`grouped.py`). Each group has `num_heads` /
            `groups` heads. Its projections map its slice of queries, keys and values to its slice of the
            output.

    Raises:
        ValueError: `num_heads` does not divide `embed_dim`, or `groups` does not divide `num_heads`.
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

        def linear(d_in: int) -> nn.Linear | GroupLinear:
            return build_linear(groups, d_in, embed_dim, bias, q_noise, qn_block_size)

        # The order is fairseq's, so that the same seed gives the same weights.
        self.k_proj = linear(self.kdim)
        self.v_proj = linear(self.vdim)
        self.q_proj = linear(embed_dim)
        self.out_proj = linear(embed_dim)
        self.reset_parameters()
        self.gate = gate
        self.mask = mask
        self.kept: JointWeights | None = None  # for inference

    def reset_parameters(self) -> None:
        """Initialise the projections as fairseq's `MultiheadAttention` does."""
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
        masks: AttentionMasks | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attend from `query` to `key`, and return the output and, if asked for, the attention weights.

        Args:
            query: [T, rows, C].
            key, value: [S, B, kdim], [S, B, vdim]. `rows` is B, or B x beam in a beam search in which all
                hypotheses of a sentence share one source. The rows of a sentence are then neighbours.
            key_padding_mask: bool [B, S], True = pad.
            incremental_state: fairseq's dictionary for step-by-step decoding, which keeps the keys and values
                of earlier steps. None outside of it.
            static_kv: keys and values do not change between steps (cross-attention), so they are projected
                once.
            attn_mask: added to the scores, float [T, S] of 0 and -inf; or bool [T, S], True = masked.
            need_weights: also return the attention weights, averaged over heads.
            need_head_weights: also return the attention weights of each head.
            query_padding_mask: bool [rows, T], True = pad, for gate and mask, which must ignore padding. In
                self-attention the default is `key_padding_mask`.
            source: `(encoder output [S, B, C'], padding mask bool [B, S] or None)`, the input of a gate with
                `looks_at_source`. Other gates get the query.
            masks: `attn_mask` and `key_padding_mask` together, if other modules use the same ones. It then
                takes the place of `attn_mask`.

        Returns:
            output [T, rows, C], and weights: [rows, T, S], or [H, rows, T, S] with `need_head_weights`, or
            None. The weights are the output of the softmax, without dropout and without the head scale.
        """
        # Each projection would copy a query that is not contiguous, or be slow if its weights are frozen.
        query = query.contiguous()
        rows = query.size(1)
        if query_padding_mask is None and self.self_attention:
            query_padding_mask = key_padding_mask
        mask: Any = self.mask
        draws = mask is not None and self.training and getattr(mask, "draws_latents", False)
        latents = mask.draw(query, key) if draws else None
        cache = self._get_input_buffer(incremental_state)
        if static_kv and cache:
            q = self._split(self.q_proj(query))
        else:
            if self.self_attention:
                key = value = query
            elif self.encoder_decoder_attention:
                value = key
            q, k, v, both = self._project(query, key, value, latents)
            if incremental_state is not None:
                new = torch.stack([k, v]) if both is None else both
                if cache:
                    cache.append(new, key_padding_mask)
                else:
                    cache = KeyValues(new, key_padding_mask, grows=not static_kv)
                    self._set_input_buffer(incremental_state, cache)
                    self.set_incremental_state(incremental_state, "beam_size", rows // new.size(1))
        if cache:
            k, v, key_padding_mask = cache.keys, cache.values, cache.padding_mask

        # Hypotheses that share a source are treated as further queries of one sentence.
        beam = rows // k.size(0)
        need_weights = need_weights or need_head_weights
        if masks is None or (incremental_state is not None and self.self_attention):
            masks = AttentionMasks(attn_mask, key_padding_mask)
        score_bias = None
        if mask is not None:
            known = [query, key, q, query_padding_mask, key_padding_mask, incremental_state]
            if latents is not None:
                q = mask.draw_queries(q, latents)
                known.append(latents)
            score_bias = mask(*known)
        is_causal = masks.is_causal and score_bias is None and not need_weights
        bias = None if is_causal else masks.bias(q.dtype)
        if beam > 1 and bias is not None and bias.size(-2) > 1:
            bias = bias.repeat(1, 1, beam, 1)
        if score_bias is not None:
            bias = score_bias.to(q.dtype) if bias is None else bias + score_bias.to(q.dtype)
        heads, weights = self.attend(fold_beam(q, beam), k, v, bias, is_causal, need_weights)
        heads = unfold_beam(heads, beam)

        if self.gate is not None:
            seen = source if getattr(self.gate, "looks_at_source", False) else (query, query_padding_mask)
            assert seen is not None, "a gate that looks at the source needs `source`"
            scale = self.gate(*seen, incremental_state=incremental_state, rows=rows)
            if scale is not None:
                heads = heads * scale.to(heads.dtype)
        # B x H x T x D -> T x B x C
        output = self.out_proj(heads.permute(2, 0, 1, 3).flatten(2))
        if weights is not None:
            weights = unfold_beam(weights, beam)
            weights = weights.transpose(0, 1) if need_head_weights else weights.mean(dim=1)
        return output, weights

    def _split(self, x: Tensor) -> Tensor:
        """Return x [T, B, C] or [T, B, groups, C / groups] by heads, [B, H, T, head_dim]."""
        return x.reshape(x.size(0), x.size(1), self.num_heads, self.head_dim).permute(1, 2, 0, 3)

    def _project(
        self, query: Tensor, key: Tensor | None, value: Tensor | None, latents: Any
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """Return queries, keys and values by heads, [B, H, T or S, head_dim] each.

        There are as few products as there are different inputs. If keys and values come from one product,
        they are also returned as one tensor [2, B, H, S, head_dim].
        """
        if latents is not None:
            inputs: list[Tensor | None] = [latents.tokens, latents.keys, value]
        else:
            inputs = [query, key, value]
            if query is key is value:
                joint = project(query, [self.q_proj, self.k_proj, self.v_proj], self.kept)
                if joint is not None:
                    (q, k, v), together = self._split_joint(joint)
                    return q, k, v, together[1:]
            elif key is not None and key is value:
                joint = project(key, [self.k_proj, self.v_proj])
                if joint is not None:
                    (k, v), together = self._split_joint(joint)
                    return self._split(self.q_proj(query)), k, v, together
        linears = (self.q_proj, self.k_proj, self.v_proj)
        q, k, v = (self._split(linear(x)) for linear, x in zip(linears, inputs, strict=True))
        return q, k, v, None

    def _split_joint(self, joint: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return joint projections (`projections.project`) by heads, each [B, H, T, head_dim], and together.

        The second value is [n, B, H, T, head_dim].
        """
        heads = joint.unflatten(-1, (-1, self.head_dim))
        if heads.dim() == 5:  # T x B x n x H x D
            each = [projection.permute(1, 2, 0, 3) for projection in heads.unbind(2)]
            return each, heads.permute(2, 1, 3, 0, 4)
        # T x B x groups x n x heads of a group x D
        together = heads.permute(3, 1, 2, 4, 0, 5).flatten(2, 3)
        return list(together.unbind()), together

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Keep the joint weights of a self-attention; fairseq calls this before a model translates."""
        if self.self_attention and can_be_joined([self.q_proj, self.k_proj, self.v_proj]):
            self.kept = JointWeights()

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, is_causal: bool, need_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """Compute softmax(q k^T / sqrt(head_dim) + bias) v, [B, H, T, head_dim].

        If `is_causal`, a position sees itself and earlier ones only. If `need_weights`, also return the
        attention weights [B, H, T, S], else None. A subclass of a plugin may compute something else here.
        """
        dropout = self.dropout_module
        if not need_weights:
            p = dropout.p if self.training or dropout.apply_during_inference else 0.0
            return F.scaled_dot_product_attention(
                q, k, v, attn_mask=bias, dropout_p=p, is_causal=is_causal
            ), None
        scores = torch.matmul(q * self.head_dim**-0.5, k.transpose(-2, -1))
        if bias is not None:
            scores = scores + bias
        at_least_float32 = torch.promote_types(scores.dtype, torch.float32)
        # A query that may see no key at all gets zeros instead of NaN, as scaled_dot_product_attention gives
        # it. The same holds for its gradients.
        blind = torch.isneginf(scores).all(dim=-1, keepdim=True)
        weights = torch.softmax(scores.masked_fill(blind, 0.0), dim=-1, dtype=at_least_float32).masked_fill(
            blind, 0.0
        )
        return torch.matmul(dropout(weights.to(v.dtype)), v), weights

    # A cache belongs to one batch. The module itself keeps nothing about a search, so generators of different
    # beam sizes can share a model.

    def _get_input_buffer(self, incremental_state: dict | None) -> KeyValues | None:
        return self.get_incremental_state(incremental_state, "attn_state")

    def _set_input_buffer(self, incremental_state: dict, buffer: KeyValues) -> None:
        self.set_incremental_state(incremental_state, "attn_state", buffer)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> dict:
        """Reorder the cache as the beam was reordered: row i becomes the former row `new_order[i]`.

        The keys of cross-attention are kept once per sentence. A hypothesis never moves to another sentence,
        so they change only when sentences leave the batch.
        """
        cache = self._get_input_buffer(incremental_state)
        if cache and self.encoder_decoder_attention:
            beam = self.get_incremental_state(incremental_state, "beam_size") or 1
            cache.reorder_sentences(new_order, beam)
        elif cache:
            cache.reorder(new_order)
        return incremental_state

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Split the packed `in_proj_weight` and `in_proj_bias` of old fairseq checkpoints."""
        for kind in ("weight", "bias"):
            packed = state_dict.pop(f"{name}.in_proj_{kind}", None)
            if packed is not None:
                for projection, part in zip("qkv", packed.chunk(3), strict=True):
                    state_dict[f"{name}.{projection}_proj.{kind}"] = part
