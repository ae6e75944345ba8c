"""The encoder-decoder family: fairseq's Transformer with our layers."""

import torch
from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerEncoderBase, TransformerModelBase
from torch import Tensor, nn

from modular_fairseq.models.layers import TransformerDecoder, TransformerEncoderLayer, wrap_layer
from modular_fairseq.models.loading import ChecksStateDict
from modular_fairseq.models.mixture import draw_random_experts, set_up_gate_training
from modular_fairseq.models.options import TranslationOptions, check_attention_options, nested_config
from modular_fairseq.modules.attention import sentence_order
from modular_fairseq.modules.dropout import replace_dropout


class TransformerEncoder(TransformerEncoderBase):
    """fairseq's encoder; its output stays one row a sentence in beam search.

    fairseq's generator repeats the encoder output for every hypothesis, and each cross-attention then projects each copy. Here the
    repetition is only noted in the output, as "beam_size", and the hypotheses of a sentence share its keys and values. (fairseq's own way
    to that, `set_beam_size`, stays set in the modules: with a next generator of beam 1, or in training after --eval-bleu, they would take
    sentences for hypotheses.)
    """

    def build_encoder_layer(self, cfg) -> nn.Module:
        return wrap_layer(TransformerEncoderLayer(cfg), cfg)

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


@register_model("modular_transformer", dataclass=TranslationOptions)
class ModularTransformer(ChecksStateDict, TransformerModelBase):
    """Encoder-decoder whose attention is plain or a mixture of attentive experts (`TranslationOptions`)."""

    @classmethod
    def add_args(cls, parser) -> None:
        # Without defaults, so that an arch can set them.
        gen_parser_from_dataclass(parser, TranslationOptions(), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task) -> "ModularTransformer":
        """Raises UsageError for options that do not work together."""
        check_attention_options(cfg, TranslationOptions)
        nested = nested_config(cfg)
        model = super().build_model(nested, task)
        replace_dropout(model)
        draw_random_experts(model, nested.mae_inference_seed)
        model.gate_training = set_up_gate_training(model, nested)
        return model

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens) -> TransformerEncoder:
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens) -> TransformerDecoder:
        return TransformerDecoder(cfg, tgt_dict, embed_tokens)
