"""The encoder: fairseq's with our layers, one stream or several, and an output that stays one row a sentence
in beam search.
"""

from collections.abc import Iterable

import torch
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from modular_fairseq.models.assembly import build_arrangement
from modular_fairseq.models.layers import TransformerEncoderLayer
from modular_fairseq.models.mechanism import LayerPlace
from modular_fairseq.models.wrapping import wrap_layer
from modular_fairseq.modules.attention import sentence_order


class TransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder. Its layers follow one another, or as a mechanism arranges them (`Arrangement`).

    In beam search fairseq's generator repeats the encoder output for every hypothesis, and each
    cross-attention then projects each copy. Here the repetition is only noted in the output, as "beam_size",
    and the hypotheses of a sentence share its keys and values. (fairseq's own way to that, `set_beam_size`,
    stays set in the modules: a later generator of beam 1, or training after --eval-bleu, would take sentences
    for hypotheses.)
    """

    def __init__(self, cfg, dictionary, embed_tokens):
        self.arrangement = build_arrangement(cfg)
        # fairseq builds layers without saying which.
        self._places = iter(self.arrangement.places(cfg.encoder.layers))
        super().__init__(cfg, dictionary, embed_tokens)
        del self._places
        self.arrangement.arrange(self)

    def build_encoder_layer(self, cfg) -> nn.Module:
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
        """As fairseq's: src_tokens [B, S] -> a dictionary of lists; "encoder_states" is filled if
        `return_all_hiddens`; for layer l of all streams it has the sum of their outputs."""
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
        """x [T, B, C] -> what the last layer makes of it; `states` gets what each does."""

        def run(layers: Iterable[nn.Module], x: Tensor) -> Tensor:
            for layer in layers:
                x = layer(x, encoder_padding_mask=padding_mask)
                if states is not None:
                    states.append(x)
            return x

        return self.arrangement.run(self, x, padding_mask, states, run)

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
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
