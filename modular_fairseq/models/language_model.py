"""The decoder-only model family: fairseq's Transformer language model with our layers."""

from fairseq.models import register_model
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer_lm import TransformerLanguageModel
from fairseq.tasks import FairseqTask

from modular_fairseq.models.checks import check_cutoffs
from modular_fairseq.models.decoder import TransformerDecoder
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.family import ModularModel
from modular_fairseq.models.options import FAMILIES


@register_model("modular_transformer_lm", dataclass=FAMILIES["modular_transformer_lm"])
class ModularTransformerLanguageModel(ModularModel, TransformerLanguageModel):
    """A Transformer language model with any combination of mechanisms."""

    family = "modular_transformer_lm"

    @classmethod
    def build_model(cls, cfg: Options, task: FairseqTask) -> "ModularTransformerLanguageModel":
        """Build a language model for a task.

        Raises:
            UsageError: the options do not work together, or one of them would have no effect.
        """
        options = cls.checked_options(cfg)
        check_cutoffs(options, task.target_dictionary)
        # fairseq's class can make embeddings of several kinds, but only together with a decoder of its own.
        embed_tokens = super().build_model(options, task).decoder.embed_tokens
        nested = TransformerConfig.from_namespace(options)
        model = cls(TransformerDecoder(nested, task.target_dictionary, embed_tokens, no_encoder_attn=True))
        model.cfg = nested
        return cls.finish(model)
