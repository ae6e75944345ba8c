"""The options of the model families: fairseq's options, --attention-type, and the options of every mechanism.

`registry.py` adds the options of mechanisms to `FAMILIES`. Every option of a mechanism starts with the name
of the mechanism. An option that would have no effect is refused (`checks.py`).
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from modular_fairseq.models.fairseq_options import (
    FlatTransformerConfig,
    FlatTransformerLanguageModelConfig,
    Options,
    resolved,
)


@dataclass
class AttentionOptions(FairseqDataclass):
    """The option that chooses the attention; all model families have it."""

    attention_type: str = field(
        default="plain",
        metadata={"help": "plain (multi-head attention) or a registered attention type (default: plain)"},
    )


@dataclass
class TranslationOptions(AttentionOptions, FlatTransformerConfig):
    """The options of the encoder-decoder family, to which mechanisms add theirs."""


@dataclass
class LanguageModelOptions(AttentionOptions, FlatTransformerLanguageModelConfig):
    """The options of the decoder-only family, to which mechanisms add theirs."""


# The options of each model family. Keys are the names under which its model is registered.
FAMILIES: dict[str, type[FairseqDataclass]] = {
    "modular_transformer": TranslationOptions,
    "modular_transformer_lm": LanguageModelOptions,
}
# The defaults that each arch sets. architectures.py and the mechanisms fill it.
PRESETS: dict[str, dict[str, Any]] = {}


def flag(name: str) -> str:
    """Return an option as it is written on the command line: --label-smoothing for label_smoothing."""
    return "--" + name.replace("_", "-")


def nested_config(options: Options) -> TransformerConfig:
    """Return fairseq's nested `TransformerConfig` for options of the encoder-decoder family.

    The options of mechanisms are attributes of it, under their own names.
    """
    return TransformerConfig.from_namespace(resolved(options, FAMILIES["modular_transformer"]))
