"""The encoder-decoder family: fairseq's Transformer with our layers."""

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerModelBase

from modular_fairseq.models.checks import check_options
from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.encoder import TransformerEncoder
from modular_fairseq.models.loading import ChecksStateDict
from modular_fairseq.models.masks import CountsUpdates
from modular_fairseq.models.mixture import draw_random_experts, set_up_gate_training
from modular_fairseq.models.options import FAMILIES, nested_config
from modular_fairseq.modules.dropout import replace_dropout


@register_model("modular_transformer", dataclass=FAMILIES["modular_transformer"])
class ModularTransformer(CountsUpdates, ChecksStateDict, TransformerModelBase):
    """Encoder-decoder with any combination of the mechanisms of `TranslationOptions`."""

    @classmethod
    def add_args(cls, parser) -> None:
        # Without defaults, so that an arch can set them.
        gen_parser_from_dataclass(parser, FAMILIES["modular_transformer"](), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task) -> "ModularTransformer":
        """Raises UsageError for options that do not work together."""
        check_options(cfg, FAMILIES["modular_transformer"])
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
