"""The encoder-decoder family: fairseq's Transformer with our layers."""

from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase

from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.encoder import TransformerEncoder
from modular_fairseq.models.family import ModularModel
from modular_fairseq.models.options import FAMILIES


@register_model("modular_transformer", dataclass=FAMILIES["modular_transformer"])
class ModularTransformer(ModularModel, TransformerModelBase):
    """Encoder-decoder with any combination of mechanisms."""

    family = "modular_transformer"

    @classmethod
    def build_model(cls, cfg, task) -> "ModularTransformer":
        """Raises UsageError for options that do not work together."""
        return cls.finish(
            super().build_model(TransformerConfig.from_namespace(cls.checked_options(cfg)), task)
        )

    @classmethod
    def build_encoder(cls, cfg, src_dict, embed_tokens) -> TransformerEncoder:
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(cls, cfg, tgt_dict, embed_tokens) -> TransformerDecoder:
        return TransformerDecoder(cfg, tgt_dict, embed_tokens)
