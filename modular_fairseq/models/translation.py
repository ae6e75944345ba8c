"""The encoder-decoder model family: fairseq's Transformer with our layers."""

from fairseq.data import Dictionary
from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig, TransformerModelBase
from fairseq.tasks import FairseqTask
from torch import nn

from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.encoder import TransformerEncoder
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.family import ModularModel
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.models.vocabulary_checks import check_adaptive


@register_model("modular_transformer", dataclass=FAMILIES["modular_transformer"])
class ModularTransformer(ModularModel, TransformerModelBase):
    """A Transformer for translation with any combination of mechanisms."""

    family = "modular_transformer"

    @classmethod
    def build_model(cls, cfg: Options, task: FairseqTask) -> "ModularTransformer":
        """Build a model for a task.

        Raises:
            UsageError: the options do not work together, or one of them would have no effect.
        """
        options = cls.checked_options(cfg, task)
        check_adaptive(options, task.target_dictionary)
        return cls.finish(super().build_model(TransformerConfig.from_namespace(options), task))

    @classmethod
    def build_encoder(
        cls, cfg: TransformerConfig, src_dict: Dictionary, embed_tokens: nn.Module
    ) -> TransformerEncoder:
        """Build the encoder; fairseq's `build_model` calls this."""
        return TransformerEncoder(cfg, src_dict, embed_tokens)

    @classmethod
    def build_decoder(
        cls, cfg: TransformerConfig, tgt_dict: Dictionary, embed_tokens: nn.Module
    ) -> TransformerDecoder:
        """Build the decoder; fairseq's `build_model` calls this."""
        return TransformerDecoder(cfg, tgt_dict, embed_tokens)
