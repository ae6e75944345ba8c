"""The decoder-only family: fairseq's Transformer language model with our layers."""

from fairseq.dataclass.utils import gen_parser_from_dataclass
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel

from modular_fairseq.models.checks import check_options
from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.loading import ChecksStateDict
from modular_fairseq.models.masks import CountsUpdates
from modular_fairseq.models.mixture import draw_random_experts, set_up_gate_training
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.modules.dropout import replace_dropout


@register_model("modular_transformer_lm", dataclass=FAMILIES["modular_transformer_lm"])
class ModularTransformerLanguageModel(CountsUpdates, ChecksStateDict, TransformerLanguageModel):
    """Language model with any combination of the mechanisms of `LanguageModelOptions`."""

    @classmethod
    def add_args(cls, parser) -> None:
        # Without defaults, so that an arch can set them.
        gen_parser_from_dataclass(parser, FAMILIES["modular_transformer_lm"](), delete_default=True)

    @classmethod
    def build_model(cls, cfg, task) -> "ModularTransformerLanguageModel":
        """Raises UsageError for options that do not work together."""
        check_options(cfg, FAMILIES["modular_transformer_lm"])
        options = resolved(cfg, FAMILIES["modular_transformer_lm"])
        # fairseq's class makes the embeddings of all its kinds, and a decoder of its own that these are taken
        # from.
        embed_tokens = super().build_model(options, task).decoder.embed_tokens
        nested = TransformerConfig.from_namespace(options)
        model = cls(TransformerDecoder(nested, task.target_dictionary, embed_tokens, no_encoder_attn=True))
        model.cfg = nested
        replace_dropout(model)
        draw_random_experts(model, nested.mae_inference_seed)
        model.gate_training = set_up_gate_training(model, nested)
        return model
