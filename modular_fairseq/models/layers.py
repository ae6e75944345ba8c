"""fairseq's encoder and decoder layers on our attention, with the parts that mechanisms put into them."""

from collections.abc import Callable

import torch.nn.functional as F
from fairseq.models.transformer import TransformerConfig
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from modular_fairseq.models.assembly import build_attention_parts, build_layer_parts
from modular_fairseq.models.mechanism import LayerPlace, Place
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.grouped import build_layer_norm, build_linear
from modular_fairseq.modules.independent_mechanisms import weigh
from modular_fairseq.modules.inference import PackedLinear
from modular_fairseq.modules.masks import AttentionMasks


class _Layer:
    """The sub-layers that encoder and decoder layers share, with the parts that `LayerParts` puts into them.

    With several groups every linear layer and norm keeps groups of features apart (`modules/grouped.py`).

    Attributes:
        competition, communication: modules that a mechanism has added (`LayerParts`), or None.
        obsolete: see `LayerParts`.
    """

    # fairseq's constructors make these attributes.
    embed_dim: int
    normalize_before: bool
    activation_fn: Callable[[Tensor], Tensor]
    activation_dropout_module: nn.Module
    dropout_module: nn.Module
    self_attn: nn.Module
    self_attn_layer_norm: nn.Module
    fc1: nn.Module
    fc2: nn.Module
    final_layer_norm: nn.Module

    def _plan_parts(self, cfg: TransformerConfig, place: LayerPlace) -> None:
        """Choose the parts. This comes before fairseq's constructor, which builds the linear layers."""
        parts = build_layer_parts(cfg, place)
        self.groups, self.residual_connection, self.obsolete = parts.groups, parts.residual, parts.obsolete
        self._parts = parts

    def _add_parts(self) -> None:
        """Build the norms of groups and the further modules. This comes after fairseq's constructor."""
        if self.groups > 1:
            for name in ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"):
                if getattr(self, name, None) is not None:
                    setattr(self, name, build_layer_norm(self.groups, self.embed_dim))
        self.competition = self._parts.competition()
        self.communication = self._parts.communication()
        if self.communication is not None:
            self.communication_layer_norm = build_layer_norm(self.groups, self.embed_dim)
        del self._parts

    def build_fc1(self, input_dim: int, output_dim: int, q_noise: float, qn_block_size: int) -> nn.Module:
        """Build a linear layer of the feed-forward sub-layer; fairseq's constructor calls this."""
        return build_linear(self.groups, input_dim, output_dim, q_noise=q_noise, block_size=qn_block_size)

    build_fc2 = build_fc1

    def _build_attention(
        self,
        cfg: TransformerConfig,
        place: Place,
        encoder_decoder_attention: bool = False,
        source_dim: int | None = None,
    ) -> MultiheadAttention:
        """Build the attention module for a place, with what --attention-type puts into it."""
        parts = build_attention_parts(cfg, place)
        return MultiheadAttention(
            place.embed_dim,
            place.num_heads,
            kdim=source_dim,
            vdim=source_dim,
            dropout=cfg.attention_dropout,
            self_attention=place.self_attention,
            encoder_decoder_attention=encoder_decoder_attention,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
            groups=self.groups,
            gate=parts.get("gate"),
            mask=parts.get("mask"),
        )

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _after(self, norm: nn.Module, x: Tensor, residual: Tensor) -> Tensor:
        x = self.residual_connection(self.dropout_module(x), residual)
        return x if self.normalize_before else norm(x)

    def _attend_to_self(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        incremental_state: dict | None = None,
        source: tuple[Tensor, Tensor | None] | None = None,
        masks: AttentionMasks | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply the self-attention sub-layer to x [T, B, C] (TIM, Algorithm 1, steps 1 and 2).

        The competition, if there is one, weighs the update.

        Returns:
            the output [T, B, C], and the attention weights or None.
        """
        residual = x
        x = self._before(self.self_attn_layer_norm, x)
        competition = None if self.competition is None else self.competition(x)
        x, weights = self.self_attn(
            x, x, x, padding_mask, incremental_state, attn_mask=attn_mask, source=source, masks=masks
        )
        if competition is not None:
            x = weigh(x, competition)
        return self._after(self.self_attn_layer_norm, x, residual), weights

    def _communicate(self, x: Tensor) -> Tensor:
        """Apply the communication sub-layer between groups of features, if there is one (step 3)."""
        if self.communication is None:
            return x
        residual = x
        x = self.communication(self._before(self.communication_layer_norm, x))
        return self._after(self.communication_layer_norm, x, residual)

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Apply the feed-forward sub-layer (step 4)."""
        residual = x
        x = self._before(self.final_layer_norm, x)
        fc1 = self.fc1
        if isinstance(fc1, PackedLinear) and self.activation_fn is F.relu and not fc1._forward_hooks:
            x = fc1.relu(x)
        else:
            x = self.activation_fn(fc1(x))
        x = self.fc2(self.activation_dropout_module(x))
        return self._after(self.final_layer_norm, x, residual)


class TransformerEncoderLayer(_Layer, TransformerEncoderLayerBase):
    """An encoder layer: self-attention, communication if there is any, feed-forward.

    Each sub-layer has dropout, a residual connection and LayerNorm.
    """

    def __init__(self, cfg: TransformerConfig, place: LayerPlace):
        self._plan_parts(cfg, place)
        super().__init__(cfg)
        self._add_parts()

    def build_self_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        """Build the self-attention; fairseq's constructor calls this."""
        heads = cfg.encoder.attention_heads
        place = Place(heads, embed_dim, None, self_attention=True, decoder=False, groups=self.groups)
        return self._build_attention(cfg, place)

    def forward(
        self,
        x: Tensor,
        encoder_padding_mask: Tensor | None,
        attn_mask: Tensor | None = None,
        masks: AttentionMasks | None = None,
    ) -> Tensor:
        """Apply the layer to x [T, B, C], as fairseq's layer does.

        Args:
            x: [T, B, C].
            encoder_padding_mask: bool [B, T], True = pad, or None.
            attn_mask: [T, T], added to the scores, or None.
            masks: both masks, if other layers share them.
        """
        x, _ = self._attend_to_self(x, encoder_padding_mask, attn_mask, masks=masks)
        return self._feed_forward(self._communicate(x))


class TransformerDecoderLayer(_Layer, TransformerDecoderLayerBase):
    """A decoder layer: causal self-attention, cross-attention, communication if there is any, feed-forward.

    It is fairseq's layer without the options for TorchScript, ONNX and joint cross- and self-attention. Both
    attention modules get the encoder output, for gates that look at the source.
    """

    def __init__(self, cfg: TransformerConfig, place: LayerPlace, no_encoder_attn: bool = False):
        self._source_dim = None if no_encoder_attn else cfg.encoder.embed_dim
        self._plan_parts(cfg, place)
        super().__init__(cfg, no_encoder_attn)
        self._add_parts()

    def build_self_attention(
        self,
        embed_dim: int,
        cfg: TransformerConfig,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
    ) -> MultiheadAttention:
        """Build the self-attention; fairseq's constructor calls this."""
        return self._build_attention(cfg, self._place(embed_dim, cfg, self_attention=True))

    def build_encoder_attention(self, embed_dim: int, cfg: TransformerConfig) -> MultiheadAttention:
        """Build the cross-attention; fairseq's constructor calls this."""
        place = self._place(embed_dim, cfg, self_attention=False)
        return self._build_attention(cfg, place, encoder_decoder_attention=True, source_dim=place.source_dim)

    def _place(self, embed_dim: int, cfg: TransformerConfig, self_attention: bool) -> Place:
        heads = cfg.decoder.attention_heads
        return Place(heads, embed_dim, self._source_dim, self_attention, decoder=True, groups=self.groups)

    def forward(
        self,
        x: Tensor,
        encoder_out: Tensor | None = None,
        encoder_padding_mask: Tensor | None = None,
        incremental_state: dict | None = None,
        self_attn_mask: Tensor | None = None,
        self_attn_padding_mask: Tensor | None = None,
        need_attn: bool = False,
        need_head_weights: bool = False,
        self_masks: AttentionMasks | None = None,
        source_masks: AttentionMasks | None = None,
    ) -> tuple[Tensor, Tensor | None, None]:
        """Apply the layer to x [T, rows, C], as fairseq's layer does.

        Args:
            x: [T, rows, C]; in step-by-step decoding only the new positions.
            encoder_out: [S, B, C'], or None in a language model.
            encoder_padding_mask: bool [B, S], True = pad, or None.
            incremental_state: fairseq's dictionary for step-by-step decoding, or None.
            self_attn_mask: [T, T], added to the scores, or None.
            self_attn_padding_mask: bool [rows, T], True = pad, or None; in step-by-step decoding for the new
                positions.
            need_attn: also return the weights of the cross-attention, averaged over heads.
            need_head_weights: also return the weights of the cross-attention for each head.
            self_masks, source_masks: the masks of the self-attention and of the cross-attention, if other
                layers share them.

        Returns:
            the output [T, rows, C], the attention weights or None, and None in the place of fairseq's state.
        """
        source = None if encoder_out is None else (encoder_out, encoder_padding_mask)
        x, attn = self._attend_to_self(
            x, self_attn_padding_mask, self_attn_mask, incremental_state, source, self_masks
        )
        if self.encoder_attn is not None and encoder_out is not None:
            residual = x
            x = self._before(self.encoder_attn_layer_norm, x)
            x, attn = self.encoder_attn(
                query=x,
                key=encoder_out,
                value=encoder_out,
                key_padding_mask=encoder_padding_mask,
                incremental_state=incremental_state,
                static_kv=True,
                need_weights=need_attn or need_head_weights,
                need_head_weights=need_head_weights,
                query_padding_mask=self_attn_padding_mask,
                source=source,
                masks=source_masks,
            )
            x = self._after(self.encoder_attn_layer_norm, x, residual)
        return self._feed_forward(self._communicate(x)), attn, None
