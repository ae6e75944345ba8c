"""The Transformer decoder of both model families."""

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerDecoderBase
from fairseq.modules import SinusoidalPositionalEmbedding
from torch import Tensor, nn

from modular_fairseq.models.layers import TransformerDecoderLayer
from modular_fairseq.models.mechanism import LayerPlace
from modular_fairseq.models.wrapping import wrap_layer
from modular_fairseq.modules.grouped import contiguous_rows
from modular_fairseq.modules.masks import AttentionMasks


class TransformerDecoder(TransformerDecoderBase):
    """fairseq's Transformer decoder with the layers of `layers.py`.

    Attributes:
        returns_attention_in_training: whether the decoder computes the attention weights that it returns also
            in training, where few criterions use them.
    """

    returns_attention_in_training = False

    def __init__(
        self,
        cfg: TransformerConfig,
        dictionary: Dictionary,
        embed_tokens: nn.Module,
        no_encoder_attn: bool = False,
    ):
        # fairseq asks for one layer after the other without saying which.
        self._places = iter(range(cfg.decoder.layers))
        super().__init__(cfg, dictionary, embed_tokens, no_encoder_attn)
        del self._places
        if self.adaptive_softmax is not None:
            # It has weights of its own. fairseq would add an output projection to a state dict that it loads.
            self.share_input_output_embed = False

    def build_decoder_layer(self, cfg: TransformerConfig, no_encoder_attn: bool = False) -> nn.Module:
        """Build the next layer; fairseq's constructor calls this for each layer in turn."""
        place = LayerPlace(next(self._places), cfg.decoder.layers, cfg.decoder.embed_dim)
        return wrap_layer(TransformerDecoderLayer(cfg, place, no_encoder_attn), cfg)

    def extract_features(
        self,
        prev_output_tokens: Tensor,
        encoder_out: dict[str, list[Tensor]] | None = None,
        incremental_state: dict | None = None,
        full_context_alignment: bool = False,
        alignment_layer: int | None = None,
        alignment_heads: int | None = None,
    ) -> tuple[Tensor, dict[str, list]]:
        """Compute the features of a target text, as fairseq's decoder does.

        The masks are made once for all layers. The weights of the cross-attention are computed only if they
        are asked for. In training this is so if `alignment_layer` or `alignment_heads` is given, and in
        evaluation unless the model was prepared for inference without --print-alignment.

        Args:
            prev_output_tokens: int64 [B, T], shifted by one.
            encoder_out: what the encoder returned, or None in a language model.
            incremental_state: fairseq's dictionary for step-by-step decoding, or None. Only the last position
                is then computed.
            full_context_alignment: let a position see later ones.
            alignment_layer: the layer whose weights of the cross-attention are returned; by default the last.
            alignment_heads: number of heads whose weights are averaged; by default all.

        Returns:
            features [B, T, C], and a dictionary with "attn", a list of the attention weights [B, T, S] or
            None, and "inner_states", a list of the outputs of embedding and layers [T, B, C].
        """
        source = source_padding = None
        if encoder_out is not None:
            source = encoder_out["encoder_out"][0] if encoder_out["encoder_out"] else None
            source_padding = (
                encoder_out["encoder_padding_mask"][0] if encoder_out["encoder_padding_mask"] else None
            )
        x, tokens = self._embed(prev_output_tokens, incremental_state)
        # A search never has padding.
        padding_mask, on_the_right = (
            (None, True) if incremental_state is not None else self._find_padding(tokens)
        )
        is_causal = incremental_state is None and not full_context_alignment
        self_masks = AttentionMasks(
            self.buffered_future_mask(x) if is_causal else None, padding_mask, is_causal and on_the_right
        )
        source_masks = AttentionMasks(None, source_padding)
        asked_for = alignment_layer is not None or alignment_heads is not None
        if alignment_layer is None:
            alignment_layer = self.num_layers - 1
        attn = None
        inner_states = [x]
        for number, layer in enumerate(self.layers):
            unasked = layer.need_attn and (self.returns_attention_in_training or not self.training)
            need_attn = number == alignment_layer and (asked_for or unasked)
            x, weights, _ = layer(
                x,
                source,
                source_padding,
                incremental_state,
                self_attn_mask=self_masks.attn_mask,
                self_attn_padding_mask=padding_mask,
                need_attn=need_attn,
                need_head_weights=need_attn,
                self_masks=self_masks,
                source_masks=source_masks,
            )
            inner_states.append(x)
            if weights is not None and number == alignment_layer:
                attn = weights[:alignment_heads].float().to(x).mean(dim=0)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        x = x.transpose(0, 1)  # T x B x C -> B x T x C
        if self.project_out_dim is not None:
            x = self.project_out_dim(x)
        return x, {"attn": [attn], "inner_states": inner_states}

    def _embed(self, tokens: Tensor, incremental_state: dict | None) -> tuple[Tensor, Tensor]:
        """Return the embedded tokens [T, B, C], and the tokens [B, T], of which a search needs the last."""
        positions = self._positions(tokens, incremental_state)
        if incremental_state is not None:
            tokens = tokens[:, -1:]
        x = self.embed_tokens(tokens.contiguous())
        if self.quant_noise is None and self.project_in_dim is None and positions is not None:
            x = torch.add(positions.to(x.dtype), x, alpha=self.embed_scale)
        else:
            x = self.embed_scale * x
            if self.quant_noise is not None:
                x = self.quant_noise(x)
            if self.project_in_dim is not None:
                x = self.project_in_dim(x)
            if positions is not None:
                x = x + positions
        if self.layernorm_embedding is not None:
            x = self.layernorm_embedding(x)
        return self.dropout_module(x).transpose(0, 1), tokens

    def _positions(self, tokens: Tensor, incremental_state: dict | None) -> Tensor | None:
        """Return the embedded positions [B or 1, T or 1, C], or None if the model has none."""
        table = self.embed_positions
        if table is None:
            return None
        if isinstance(table, SinusoidalPositionalEmbedding) and incremental_state is not None:
            number = table.padding_idx + tokens.size(1)
            if number < table.weights.size(0):  # otherwise fairseq makes a larger table
                return table.weights[number].view(1, 1, -1)
        positions = table(tokens, incremental_state=incremental_state)
        return positions if incremental_state is None else positions[:, -1:]

    def _find_padding(self, tokens: Tensor) -> tuple[Tensor | None, bool]:
        """Return the padding mask bool [B, T] or None, and whether all padding is on the right."""
        padding_mask = tokens.eq(self.padding_idx)
        later = padding_mask[:, 1:]
        followed = padding_mask[:, :-1] > later  # also where the text of a target has <pad>
        # One wait for the device instead of two. A first word that is padding has a word or padding after it.
        any_later, any_followed = torch.stack([later, followed]).any(dim=(1, 2)).tolist()
        return (padding_mask if any_later or any_followed else None), not any_followed

    def output_layer(self, features: Tensor) -> Tensor:
        """Project features [B, T, C] to scores of the vocabulary [B, T, V]."""
        # Otherwise torch would compute one small product per sentence if the embeddings are frozen, as in a G
        # step or in a model that was fine-tuned by --mae-finetune.
        return super().output_layer(contiguous_rows(features))
