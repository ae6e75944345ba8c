"""The options of the model families: fairseq's options, --attention-type, and the options of every mechanism.

`registry.py` adds the options of mechanisms to `FAMILIES`. Every option of a mechanism starts with the name
of the mechanism. An option that would have no effect is refused (`checks.py`).
"""

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import Field, dataclass, field
from typing import Any

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig
from fairseq.criterions.masked_lm import MaskedLmConfig
from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from modular_fairseq.models.fairseq_options import (
    FlatRobertaConfig,
    FlatTransformerConfig,
    FlatTransformerLanguageModelConfig,
    Options,
    resolved,
)


@dataclass
class CommonOptions(FairseqDataclass):
    """The options that all model families have beside fairseq's."""

    attention_type: str = field(
        default="plain",
        metadata={"help": "plain (multi-head attention) or a registered attention type (default: plain)"},
    )
    compile: bool = field(
        default=False,
        metadata={"help": "compile the layers with torch.compile in training"},
    )


@dataclass
class LossOptions(LabelSmoothedCrossEntropyCriterionConfig):
    """The options of the criterion, to which mechanisms add theirs."""

    loss_chunk_size: int = field(
        default=0,
        metadata={
            "help": "compute the logits and the cross-entropy of this many target positions at a time, and "
            "again in the backward pass, which needs less memory and more time; 0 computes all at once "
            "(default: 0)"
        },
    )


@dataclass
class MaskedLossOptions(MaskedLmConfig):
    """The options of the criterion of masked language models, to which mechanisms add theirs."""


@dataclass
class TranslationOptions(CommonOptions, FlatTransformerConfig):
    """The options of the encoder-decoder family, to which mechanisms add theirs."""


@dataclass
class LanguageModelOptions(CommonOptions, FlatTransformerLanguageModelConfig):
    """The options of the decoder-only family, to which mechanisms add theirs."""


@dataclass
class RobertaOptions(CommonOptions, FlatRobertaConfig):
    """The options of the encoder-only family, to which mechanisms add theirs."""


# The options of each model family. Keys are the names under which its model is registered.
FAMILIES: dict[str, type[FairseqDataclass]] = {
    "modular_transformer": TranslationOptions,
    "modular_transformer_lm": LanguageModelOptions,
    "modular_roberta": RobertaOptions,
}
# The defaults that each arch sets. architectures.py and the mechanisms fill it.
PRESETS: dict[str, dict[str, Any]] = {}


_of_a_command_line = ContextVar("of_a_command_line", default=False)


@contextmanager
def of_a_command_line() -> Iterator[None]:
    """Tell `is_set` inside the block that the user has written the options, on a command line.

    Elsewhere options may come from a checkpoint. It holds all values, also the defaults of the version that
    saved it.
    """
    token = _of_a_command_line.set(True)
    try:
        yield
    finally:
        _of_a_command_line.reset(token)


def are_of_a_command_line() -> bool:
    """Tell whether options are those of a command line, inside of `of_a_command_line`."""
    return _of_a_command_line.get()


def is_set(field: Field, value: Any) -> bool:
    """Tell whether the user has set an option to `value`.

    The default does not count as set. A default of an earlier version ("former_default" in the metadata of
    the field) counts as set only inside `of_a_command_line`.
    """
    former = field.default if are_of_a_command_line() else field.metadata.get("former_default", field.default)
    return value not in (field.default, former)


def flag(name: str) -> str:
    """Return an option as it is written on the command line: --label-smoothing for label_smoothing."""
    return "--" + name.replace("_", "-")


def nested_config(options: Options) -> TransformerConfig:
    """Return fairseq's nested `TransformerConfig` for options of the encoder-decoder family.

    The options of mechanisms are attributes of it, under their own names.
    """
    return TransformerConfig.from_namespace(resolved(options, FAMILIES["modular_transformer"]))
