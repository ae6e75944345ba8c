"""fairseq's encoder and decoder layers on our attention, and the decoder that both families share."""

import functools
from contextlib import nullcontext

import torch
from fairseq.distributed import fsdp_wrap
from fairseq.models.transformer import TransformerDecoderBase
from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modular_fairseq.models.mixture import build_mixture
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.gates import recomputation


class TransformerEncoderLayer(TransformerEncoderLayerBase):
    """[T, B, C] -> [T, B, C]: self-attention and feed-forward, each with dropout, residual connection and LayerNorm."""

    def build_self_attention(self, embed_dim: int, cfg) -> MultiheadAttention:
        heads = cfg.encoder.attention_heads
        return _build_attention(cfg, embed_dim, heads, build_mixture(cfg, heads, embed_dim, decoder=False), self_attention=True)


class TransformerDecoderLayer(TransformerDecoderLayerBase):
    """[T, B, C] -> [T, B, C]: causal self-attention, cross-attention, feed-forward.

    The forward pass is fairseq's without its options for TorchScript, ONNX and cross+self-attention, and with one addition: both attentions
    are told what their gates look at, the decoder's inputs with their padding, or the encoder output.
    """

    def __init__(self, cfg, no_encoder_attn: bool = False):
        self.source_gates = cfg.attention_type == "mae" and cfg.mae_gate_context == "source"
        super().__init__(cfg, no_encoder_attn)

    def build_self_attention(self, embed_dim: int, cfg, add_bias_kv: bool = False, add_zero_attn: bool = False) -> MultiheadAttention:
        return _build_attention(cfg, embed_dim, cfg.decoder.attention_heads, self._build_mixture(embed_dim, cfg), self_attention=True)

    def build_encoder_attention(self, embed_dim: int, cfg) -> MultiheadAttention:
        return _build_attention(
            cfg,
            embed_dim,
            cfg.decoder.attention_heads,
            self._build_mixture(embed_dim, cfg),
            kdim=cfg.encoder.embed_dim,
            vdim=cfg.encoder.embed_dim,
            encoder_decoder_attention=True,
        )

    def _build_mixture(self, embed_dim: int, cfg):
        looked_at = cfg.encoder.embed_dim if self.source_gates else embed_dim
        return build_mixture(cfg, cfg.decoder.attention_heads, looked_at, decoder=True)

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
    ) -> tuple[Tensor, Tensor | None, None]:
        """As fairseq's: x [T, rows, C], encoder_out [S, B, C], self_attn_padding_mask [rows, T] (new positions only when decoding)."""
        source = (encoder_out, encoder_padding_mask)
        residual = x
        x = self._before(self.self_attn_layer_norm, x)
        x, attn = self.self_attn(
            query=x,
            key=x,
            value=x,
            key_padding_mask=self_attn_padding_mask,
            incremental_state=incremental_state,
            attn_mask=self_attn_mask,
            gate_input=source if self.source_gates else (x, self_attn_padding_mask),
        )
        x = self._after(self.self_attn_layer_norm, x, residual)

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
                need_weights=need_attn or need_head_weights or (not self.training and self.need_attn),
                need_head_weights=need_head_weights,
                gate_input=source if self.source_gates else (x, self_attn_padding_mask),
            )
            x = self._after(self.encoder_attn_layer_norm, x, residual)

        residual = x
        x = self._before(self.final_layer_norm, x)
        x = self.fc2(self.activation_dropout_module(self.activation_fn(self.fc1(x))))
        x = self._after(self.final_layer_norm, x, residual)
        return x, attn, None

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _after(self, norm: nn.Module, x: Tensor, residual: Tensor) -> Tensor:
        x = self.residual_connection(self.dropout_module(x), residual)
        return x if self.normalize_before else norm(x)


def _build_attention(cfg, embed_dim: int, num_heads: int, gate: nn.Module | None, **kind) -> MultiheadAttention:
    return MultiheadAttention(
        embed_dim,
        num_heads,
        dropout=cfg.attention_dropout,
        gate=gate,
        q_noise=cfg.quant_noise.pq,
        qn_block_size=cfg.quant_noise.pq_block_size,
        **kind,
    )


def wrap_layer(layer: nn.Module, cfg) -> nn.Module:
    """Activation checkpointing and FSDP.

    torch's checkpointing instead of fairseq's, which gives no gradient to a layer whose input needs none: in a G step, and when
    fine-tuning a part of the model, embeddings are frozen.
    """
    if cfg.checkpoint_activations:
        layer.forward = functools.partial(_checkpointed, layer.forward)
    return fsdp_wrap(layer, min_num_params=0 if cfg.checkpoint_activations else cfg.min_params_to_wrap)


def _checkpointed(forward, *args, **kwargs):
    if not torch.is_grad_enabled():
        return forward(*args, **kwargs)
    return checkpoint(forward, *args, use_reentrant=False, context_fn=lambda: (nullcontext(), recomputation()), **kwargs)


class TransformerDecoder(TransformerDecoderBase):
    """fairseq's decoder."""

    def build_decoder_layer(self, cfg, no_encoder_attn: bool = False) -> nn.Module:
        return wrap_layer(TransformerDecoderLayer(cfg, no_encoder_attn), cfg)

    def output_layer(self, features: Tensor) -> Tensor:
        # Contiguous, or torch makes one small product a sentence of it in a G step, where the embeddings are frozen.
        return super().output_layer(features.contiguous())
