"""The encoder: fairseq's with our layers, one stream or several, and an output that stays one row a sentence in beam search."""

from collections.abc import Iterator

import torch
from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from modular_fairseq.models.layers import TransformerEncoderLayer, tim_layers, wrap_layer
from modular_fairseq.modules.attention import sentence_order
from modular_fairseq.modules.streams import Streams


class TransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder. With --streams K and --stream-skip that of Multi-Stream Transformers (Eq. 1):

        Z_in = L_in(x),    Z_out = L_out(sum_i S_i(Z_in) + [skip] Z_in)

    `layers` are then L_in and L_out, and `streams` the K stacks of (layers - 2) / K layers between them; with one stream `layers` are all
    of them. As every layer is initialised by itself, streams differ from the start. With pre-norm the sum is one of residual streams
    without norm, which L_out normalises. Middle TIM layers are counted on the way of a word, through L_in, the layers of one stream, L_out.

    In beam search fairseq's generator repeats the encoder output for every hypothesis, and each cross-attention then projects each copy.
    Here the repetition is only noted in the output, as "beam_size", and the hypotheses of a sentence share its keys and values. (fairseq's
    own way to that, `set_beam_size`, stays set in the modules: with a next generator of beam 1, or in training after --eval-bleu, they
    would take sentences for hypotheses.)
    """

    def __init__(self, cfg, dictionary, embed_tokens, return_fc: bool = False):
        depth, k = cfg.encoder.layers, cfg.streams
        if k > 1:
            depth = 2 + (depth - 2) // k
        placement = tim_layers(cfg.tim_layers, depth)
        # In the order of `layers`: L_in, stream after stream, L_out.
        self._placement = iter([*placement[:1], *placement[1:-1] * k, *placement[-1:]])
        super().__init__(cfg, dictionary, embed_tokens, return_fc)
        self.stream_skip = cfg.stream_skip
        self.streams = None
        if k > 1:
            first, *body, last = self.layers
            self.layers = nn.ModuleList([first, last])
            self.num_layers = 2
            self.streams = Streams(
                [body[i : i + depth - 2] for i in range(0, len(body), depth - 2)], _wide_layers(cfg, placement[1:-1], body)
            )

    def build_encoder_layer(self, cfg) -> nn.Module:
        return wrap_layer(TransformerEncoderLayer(cfg, next(self._placement)), cfg)

    def forward(
        self,
        src_tokens: Tensor,
        src_lengths: Tensor | None = None,
        return_all_hiddens: bool = False,
        token_embeddings: Tensor | None = None,
    ) -> dict:
        """As fairseq's: src_tokens [B, S] -> a dictionary of lists; "encoder_states" is filled if `return_all_hiddens`, where a layer of
        several streams counts with the sum of their outputs."""
        padding_mask = src_tokens.eq(self.padding_idx)
        x, embedding = self.forward_embedding(src_tokens, token_embeddings)
        x = x * padding_mask.logical_not().unsqueeze(-1).type_as(x)
        x = x.transpose(0, 1)  # B x T x C -> T x B x C
        states = [x]
        for state in self._run_layers(x, padding_mask if padding_mask.any() else None):
            x = state
            if return_all_hiddens:
                states.append(x)
        if self.layer_norm is not None:
            x = self.layer_norm(x)
        return {
            "encoder_out": [x],
            "encoder_padding_mask": [padding_mask],
            "encoder_embedding": [embedding],
            "encoder_states": states if return_all_hiddens else [],
            "src_tokens": [],
            "src_lengths": [padding_mask.logical_not().sum(dim=1, keepdim=True, dtype=torch.int32)],
        }

    def _run_layers(self, x: Tensor, padding_mask: Tensor | None) -> Iterator[Tensor]:
        """What each layer makes of x [T, B, C]."""
        if self.streams is None and not self.stream_skip:
            for layer in self.layers:
                x = layer(x, encoder_padding_mask=padding_mask)
                yield x
            return
        first, *body, last = self.layers
        z = x = first(x, encoder_padding_mask=padding_mask)
        yield z
        if self.streams is not None:
            for x in self.streams(z, padding_mask):
                yield x
        for layer in body:
            x = layer(x, encoder_padding_mask=padding_mask)
            yield x
        yield last(x + z if self.stream_skip else x, encoder_padding_mask=padding_mask)

    def reorder_encoder_out(self, encoder_out: dict, new_order: Tensor) -> dict:
        beam = encoder_out.get("beam_size", 1)
        sentences = encoder_out["encoder_out"][0].size(1)
        repeats = new_order.numel() // sentences
        if beam == 1 and repeats > 1 and torch.equal(new_order, torch.arange(sentences).repeat_interleave(repeats).to(new_order)):
            return {**encoder_out, "beam_size": repeats}
        order = sentence_order(new_order, beam, sentences)
        if order is None:
            return encoder_out
        return {**super().reorder_encoder_out(encoder_out, order), "beam_size": beam}


def _wide_layers(cfg, placement: list[bool], layers: list[nn.Module]) -> list[nn.Module] | None:
    """Layers that compute all streams at once; None where streams are more than their parameters: each has gates of its own, or layers are
    wrapped for activation checkpointing or FSDP."""
    if cfg.attention_type != "plain" or cfg.checkpoint_activations or any(type(layer) is not TransformerEncoderLayer for layer in layers):
        return None
    with torch.device("meta"):
        return [TransformerEncoderLayer(cfg, tim, cfg.streams) for tim in placement]
