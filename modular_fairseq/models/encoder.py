"""The Transformer encoder: fairseq's encoder with our layers, in an arrangement that mechanisms may change.

In a beam search its output stays one row per sentence.
"""

from collections.abc import Iterable

import torch
from fairseq.data import Dictionary
from fairseq.models.transformer import TransformerConfig, TransformerEncoderBase
from torch import Tensor, nn

from modular_fairseq.models.assembly import build_arrangement
from modular_fairseq.models.layers import TransformerEncoderLayer
from modular_fairseq.models.mechanism import LayerPlace
from modular_fairseq.models.wrapping import wrap_layer
from modular_fairseq.modules.beams import sentence_order
from modular_fairseq.modules.masks import AttentionMasks


class TransformerEncoder(TransformerEncoderBase):
    """fairseq's Transformer encoder with the layers of `layers.py`.

    The layers follow one another, or are connected as a mechanism arranges them (`Arrangement`).

    In a beam search fairseq's generator repeats the encoder output for every hypothesis, and each
    cross-attention then projects every copy. Here the repetition is only noted in the output, as "beam_size",
    and the hypotheses of a sentence share its keys and values. fairseq has a method for that purpose,
    `set_beam_size`, but its effect stays in the modules. A later generator of beam 1, or training after
    --eval-bleu, would take sentences for hypotheses.
    """

    def __init__(self, cfg: TransformerConfig, dictionary: Dictionary, embed_tokens: nn.Module):
        self.arrangement = build_arrangement(cfg)
        # fairseq asks for one layer after the other without saying which.
        self._places = iter(self.arrangement.places(cfg.encoder.layers))
        super().__init__(cfg, dictionary, embed_tokens)
        del self._places
        self.arrangement.arrange(self)

    def build_encoder_layer(self, cfg: TransformerConfig) -> nn.Module:
        """Build the next layer; fairseq's constructor calls this for each layer in turn."""
        depth = self.arrangement.depth(cfg.encoder.layers)
        place = LayerPlace(next(self._places), depth, cfg.encoder.embed_dim)
        return wrap_layer(TransformerEncoderLayer(cfg, place), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict:
        """Encode src_tokens [B, S] into fairseq's dictionary of lists.

        Args:
            src_tokens: int64 [B, S].
            src_lengths: not used, as in fairseq.
            return_all_hiddens: fill "encoder_states" with the output of every layer [S, B, C]. For layer l of
                parallel streams this is the sum of their outputs.
            token_embeddings: embeddings [B, S, C] to use instead of those of `src_tokens`.
        """
        padding_mask = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x * padding_mask.logical_not().unsqueeze(-1).type_as(x)
        x = x.transpose(0, 1)  # B x T x C -> T x B x C
        states = [x] if return_all_hiddens else None
        x = self._run_layers(x, padding_mask if padding_mask.any() else None, states)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states or [],
            "src_tokens": [],
            "src_lengths": [padding_mask.logical_not().sum(dim=1, keepdim=True, dtype=torch.int32)],
        }

    def _run_layers(self, x: Tensor, padding_mask: Tensor | None, states: list[Tensor] | None) -> Tensor:
        """Apply all layers to x [T, B, C]. If there is a list `states`, it receives every output."""

        masks = AttentionMasks(None, padding_mask)

        def run(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
            for layer in layers:
                x = layer(x, encoder_padding_mask=padding_mask, masks=masks)
                if states is not None:
                    states.append(x)
            return x

        return self.arrangement.run(self, x, masks, states, run)

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
        """Repeat or reorder the encoder output as the beam demands.

        Args:
            encoder_out: result of `forward`.
            new_order: for every row of the new batch, its row in the old one. The first call of a beam search
                repeats every sentence for each hypothesis. This is only noted as "beam_size".
        """
        beam = encoder_out.get("beam_size", 1)
        sentences = encoder_out["encoder_out"][0].size(1)
        repeats = new_order.numel() // sentences
        if (
            beam == 1
            and repeats > 1
            and torch.equal(new_order, torch.arange(sentences).repeat_interleave(repeats).to(new_order))
        ):
            return {**encoder_out, "beam_size": repeats}
        order = sentence_order(new_order, beam, sentences)
        if order is None:
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, order), "beam_size": beam}
