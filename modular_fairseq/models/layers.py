"""fairseq's encoder and decoder layers on our attention, plain or of independent mechanisms."""

from fairseq.modules.transformer_layer import TransformerDecoderLayerBase, TransformerEncoderLayerBase
from torch import Tensor, nn

from modular_fairseq.models.attention_parts import Place, build_parts
from modular_fairseq.models.options import uses
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.grouped import build_layer_norm, build_linear
from modular_fairseq.modules.mechanisms import Competition, InterMechanismAttention, weigh


class _Layer:
    """What encoder and decoder layers share: their sub-layers, and what a TIM layer has instead and in
    addition.

    In a TIM layer (`tim`) every linear layer and norm has a group of features for each mechanism
    (`grouped.py`), and two parts join the mechanisms: competition and inter-mechanism attention
    (`mechanisms.py`).
    """

    def _set_groups(self, cfg, tim: bool) -> None:
        """Before fairseq's constructor, which builds the linear layers."""
        self.groups = cfg.tim_mechanisms if tim else 1
        self.no_residual = cfg.no_residual

    def _add_mechanisms(self, cfg, tim: bool) -> None:
        """After it: norms of groups in the place of fairseq's, competition, and inter-mechanism attention
        with its norm.
        """
        if self.groups > 1:
            for name in ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm"):
                if getattr(self, name, None) is not None:
                    setattr(self, name, build_layer_norm(self.groups, self.embed_dim))
        self.competition = self.communication = None
        if tim and not cfg.tim_no_competition:
            self.competition = Competition(self.groups, self.embed_dim)
        if tim and cfg.tim_communication_heads:
            heads, dim = cfg.tim_communication_heads, cfg.tim_communication_dim
            self.communication = InterMechanismAttention(
                self.groups, self.embed_dim, heads, dim, cfg.attention_dropout
            )
            self.communication_layer_norm = build_layer_norm(self.groups, self.embed_dim)

    def build_fc1(self, input_dim: int, output_dim: int, q_noise: float, qn_block_size: int) -> nn.Module:
        return build_linear(self.groups, input_dim, output_dim, q_noise=q_noise, block_size=qn_block_size)

    build_fc2 = build_fc1

    def _build_attention(
        self,
        cfg,
        embed_dim: int,
        num_heads: int,
        gate_dim: int,
        decoder: bool,
        self_attention: bool = False,
        **kind,
    ) -> MultiheadAttention:
        """`gate_dim`: width of what a gate looks at."""
        return MultiheadAttention(
            embed_dim,
            num_heads,
            dropout=cfg.attention_dropout,
            self_attention=self_attention,
            q_noise=cfg.quant_noise.pq,
            qn_block_size=cfg.quant_noise.pq_block_size,
            groups=self.groups,
            **build_parts(cfg, Place(num_heads, embed_dim, gate_dim, self_attention, decoder)),
            **kind,
        )

    def _before(self, norm: nn.Module, x: Tensor) -> Tensor:
        return norm(x) if self.normalize_before else x

    def _after(self, norm: nn.Module, x: Tensor, residual: Tensor) -> Tensor:
        x = self.residual_connection(self.dropout_module(x), residual)
        return x if self.normalize_before else norm(x)

    def residual_connection(self, x: Tensor, residual: Tensor) -> Tensor:
        return x if self.no_residual else residual + x

    def _attend_to_self(
        self,
        x: Tensor,
        padding_mask: Tensor | None,
        attn_mask: Tensor | None,
        incremental_state: dict | None = None,
        gate_input: tuple[Tensor, Tensor | None] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Steps 1 and 2 of Algorithm 1: self-attention, its update weighed by the competition for it."""
        residual = x
        x = self._before(self.self_attn_layer_norm, x)
        competition = None if self.competition is None else self.competition(x)
        x, weights = self.self_attn(
            x, x, x, padding_mask, incremental_state, attn_mask=attn_mask, gate_input=gate_input
        )
        if competition is not None:
            x = weigh(x, competition)
        return self._after(self.self_attn_layer_norm, x, residual), weights

    def _communicate(self, x: Tensor) -> Tensor:
        """Step 3: what mechanisms tell each other."""
        if self.communication is None:
            return x
        residual = x
        x = self.communication(self._before(self.communication_layer_norm, x))
        return self._after(self.communication_layer_norm, x, residual)

    def _feed_forward(self, x: Tensor) -> Tensor:
        """Step 4."""
        residual = x
        x = self._before(self.final_layer_norm, x)
        x = self.fc2(self.activation_dropout_module(self.activation_fn(self.fc1(x))))
        return self._after(self.final_layer_norm, x, residual)


class TransformerEncoderLayer(_Layer, TransformerEncoderLayerBase):
    """[T, B, C] -> [T, B, C]: self-attention, inter-mechanism attention in a TIM layer, feed-forward, each
    with dropout, residual connection and LayerNorm."""

    def __init__(self, cfg, tim: bool = False):
        self._set_groups(cfg, tim)
        super().__init__(cfg)
        self._add_mechanisms(cfg, tim)

    def build_self_attention(self, embed_dim: int, cfg) -> MultiheadAttention:
        heads = cfg.encoder.attention_heads
        return self._build_attention(cfg, embed_dim, heads, embed_dim, decoder=False, self_attention=True)

    def forward(
        self, x: Tensor, encoder_padding_mask: Tensor | None, attn_mask: Tensor | None = None
    ) -> Tensor:
        """As fairseq's: encoder_padding_mask bool [B, T], attn_mask [T, T]."""
        x, _ = self._attend_to_self(x, encoder_padding_mask, attn_mask)
        return self._feed_forward(self._communicate(x))


class TransformerDecoderLayer(_Layer, TransformerDecoderLayerBase):
    """[T, B, C] -> [T, B, C]: causal self-attention, cross-attention, inter-mechanism attention in a TIM
    layer, feed-forward.

    fairseq's, without its options for TorchScript, ONNX and cross+self-attention. Both attentions are told
    what their gates look at: the decoder's inputs with their padding, or the encoder output.

    The TIM paper only says that its layer is a drop-in replacement. Here mechanism m attends to slice m of
    the encoder output (so mechanisms mix only in the inter-mechanism attention, which follows the
    cross-attention), and the competition weighs the update "after the self-attention" (section 2.2.1), not
    that of the cross-attention.
    """

    def __init__(self, cfg, no_encoder_attn: bool = False, tim: bool = False):
        self.source_gates = uses(cfg, "mae") and cfg.mae_gate_context == "source"
        self._set_groups(cfg, tim)
        super().__init__(cfg, no_encoder_attn)
        self._add_mechanisms(cfg, tim)

    def build_self_attention(
        self, embed_dim: int, cfg, add_bias_kv: bool = False, add_zero_attn: bool = False
    ) -> MultiheadAttention:
        return self._build_decoder_attention(cfg, embed_dim, self_attention=True)

    def build_encoder_attention(self, embed_dim: int, cfg) -> MultiheadAttention:
        source = cfg.encoder.embed_dim
        return self._build_decoder_attention(
            cfg, embed_dim, kdim=source, vdim=source, encoder_decoder_attention=True
        )

    def _build_decoder_attention(self, cfg, embed_dim: int, **kind) -> MultiheadAttention:
        gate_dim = cfg.encoder.embed_dim if self.source_gates else embed_dim
        return self._build_attention(
            cfg, embed_dim, cfg.decoder.attention_heads, gate_dim, decoder=True, **kind
        )

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
        """As fairseq's: x [T, rows, C], encoder_out [S, B, C], self_attn_padding_mask [rows, T] (new
        positions only when decoding).
        """
        source = (encoder_out, encoder_padding_mask) if self.source_gates else None
        x, attn = self._attend_to_self(x, self_attn_padding_mask, self_attn_mask, incremental_state, source)
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
                query_padding_mask=self_attn_padding_mask,
                gate_input=source,
            )
            x = self._after(self.encoder_attn_layer_norm, x, residual)
        return self._feed_forward(self._communicate(x)), attn, None
