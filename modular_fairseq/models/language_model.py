"""The decoder-only family: fairseq's Transformer language model with our layers."""

from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel

from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.family import ModularModel
from modular_fairseq.models.options import FAMILIES


@register_model("modular_transformer_lm", dataclass=FAMILIES["modular_transformer_lm"])
class ModularTransformerLanguageModel(ModularModel, TransformerLanguageModel):
    """Language model with any combination of mechanisms."""

    family = "modular_transformer_lm"

    @classmethod
    def build_model(cls, cfg, task) -> "ModularTransformerLanguageModel":
        """Raises UsageError for options that do not work together."""
        options = cls.checked_options(cfg)
        # fairseq's class makes the embeddings of all its kinds, and a decoder of its own that these are taken
        # from.
        embed_tokens = super().build_model(options, task).decoder.embed_tokens
        nested = TransformerConfig.from_namespace(options)
        model = cls(TransformerDecoder(nested, task.target_dictionary, embed_tokens, no_encoder_attn=True))
        model.cfg = nested
        return cls.finish(model)
