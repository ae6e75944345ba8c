"""The options of the model families: fairseq's, which attention to use, and those of every mechanism.

`registry.py` adds the options of mechanisms to `FAMILIES`. Every option starts with the name of the mechanism
that it belongs to. An option that would be ignored is refused (`checks.py`).
"""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from modular_fairseq.models.fairseq_options import (
    FlatTransformerConfig,
    FlatTransformerLanguageModelConfig,
    resolved,
)


@dataclass
class AttentionOptions(FairseqDataclass):
    """What attention is made of; shared by all model families."""

    attention_type: str = field(
        default="plain", metadata={"help": "plain: multi-head attention; or a mechanism"}
    )


@dataclass
class TranslationOptions(AttentionOptions, FlatTransformerConfig):
    """Options of the encoder-decoder family, without those of mechanisms."""


@dataclass
class LanguageModelOptions(AttentionOptions, FlatTransformerLanguageModelConfig):
    """Options of the decoder-only family, without those of mechanisms."""


# The options of each model family, by the name of its model.
FAMILIES: dict[str, type[FairseqDataclass]] = {
    "modular_transformer": TranslationOptions,
    "modular_transformer_lm": LanguageModelOptions,
}
PRESETS: dict[str, dict] = {}  # the defaults of each arch; architectures.py and the mechanisms fill it


def flag(name: str) -> str:
    """Return the name of an option on the command line: mae_gate_lr is --mae-gate-lr."""
    return "--" + name.replace("_", "-")


def nested_config(options) -> TransformerConfig:
    """Return fairseq's nested `TransformerConfig` for options of the encoder-decoder family.

    Options of mechanisms are attributes of it under their own names.
    """
    return TransformerConfig.from_namespace(resolved(options, FAMILIES["modular_transformer"]))
