"""The models' options: fairseq's, and ours beside them.

Every option of ours starts with the name of what it belongs to; one that would be ignored is refused
(`checks.py`). Those of attention parts that others register join the families in `FAMILIES`
(`attention_parts.py`). (`Optional[int]`, because fairseq's parser does not know `int | None`.)
"""
# ruff: noqa: UP007, UP045

from dataclasses import dataclass, field
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig

from modular_fairseq.models.fairseq_options import (
    FlatTransformerConfig,
    FlatTransformerLanguageModelConfig,
    resolved,
)
from modular_fairseq.modules.gates import NORMS
from modular_fairseq.modules.gaussian_mixture import CENTROID_MODES, POSTERIORS
from modular_fairseq.modules.mixture import INFERENCE_MODES


@dataclass
class MaeOptions(FairseqDataclass):
    """Of mixtures of attentive experts."""

    mae_dropped_heads: int = field(
        default=1,
        metadata={
            "help": "heads that an expert lacks: with 8 heads, 1 is MAE-7 (8 experts) and 2 is MAE-6 (28 "
            "experts)"
        },
    )
    mae_gating: ChoiceEnum(["learned", "uniform"]) = field(
        default="learned",
        metadata={
            "help": "learned: a gate network per attention module; uniform: UNI-MAE, no gate parameters"
        },
    )
    mae_training: ChoiceEnum(["bcd", "joint"]) = field(
        default="bcd",
        metadata={
            "help": "bcd: block coordinate descent, gates by SGD in G steps, the rest in F steps; joint: "
            "NOBCD, all by the main optimizer"
        },
    )
    mae_gate_context: ChoiceEnum(["prefix", "window", "source"]) = field(
        default="prefix",
        metadata={
            "help": "what a decoder's gates average: its inputs so far, the most recent of them, or the "
            "encoder output"
        },
    )
    mae_gate_window: int = field(
        default=100, metadata={"help": "inputs that a gate averages with --mae-gate-context window"}
    )
    mae_gate_dim: int = field(default=256, metadata={"help": "hidden units of a gate network"})
    mae_gate_dropout: float = field(
        default=0.1, metadata={"help": "dropout on the hidden units of a gate network"}
    )
    mae_gate_norm: ChoiceEnum(list(NORMS)) = field(
        default="batch",
        metadata={
            "help": "normalisation of gate inputs: over the batch, by running statistics only (lagged), "
            "LayerNorm, or none"
        },
    )
    mae_gate_init: ChoiceEnum(["zero", "linear"]) = field(
        default="linear",
        metadata={
            "help": "last layer of a gate network: zero (starts uniform, equal to plain attention) or "
            "nn.Linear's own initialisation"
        },
    )
    mae_inference: ChoiceEnum(list(INFERENCE_MODES)) = field(
        default="mixture",
        metadata={
            "help": "outside training: mix all experts, take the one with the largest gate, or one random "
            "expert per module"
        },
    )
    mae_inference_seed: int = field(
        default=1, metadata={"help": "draws the experts of --mae-inference random"}
    )
    mae_gate_interval: Optional[int] = field(
        default=None,
        metadata={
            "help": "epochs between epochs with G steps; 1 = every epoch (default: 5, or 1 when "
            "--mae-finetune is not 'all')"
        },
    )
    mae_gate_lr: float = field(
        default=0.2, metadata={"help": "learning rate of the gates' SGD, which no scheduler changes"}
    )
    mae_gate_loss: ChoiceEnum(["sentence", "token"]) = field(
        default="sentence",
        metadata={
            "help": "the mean that a G step descends: loss per sentence, or per token (criterion's sample "
            "size)"
        },
    )
    mae_finetune: ChoiceEnum(["all", "gates", "gates+output"]) = field(
        default="all",
        metadata={
            "help": "what learns: everything (FTALL, or training from scratch), the gates (FTG), or gates "
            "and output projections (FTG+)"
        },
    )


@dataclass
class DmaOptions(FairseqDataclass):
    """Of semantic masks."""

    dma_clusters: int = field(
        default=4, metadata={"help": "Gaussians of a mixture; with 1 attention is plain"}
    )
    dma_posterior: ChoiceEnum(list(POSTERIORS)) = field(
        default="expected",
        metadata={
            "help": "clusters of latent vectors by their expected log-densities, or in training by those of "
            "a sample (slower on CPUs)"
        },
    )
    dma_centroid_gradient: float = field(
        default=10.0, metadata={"help": "makes steps of cluster centroids so many times as long: c_grad"}
    )
    dma_centroid_mode: ChoiceEnum(list(CENTROID_MODES)) = field(
        default="lr",
        metadata={
            "help": "lr: really so, under Adam; hook: their gradient is multiplied, the paper's letter, "
            "which Adam undoes"
        },
    )
    dma_decoder_eval_mask: bool = field(
        default=False,
        metadata={
            "help": "mask the decoder's self-attention (a language model has no other) also in evaluation "
            "and search"
        },
    )


@dataclass
class AttentionOptions(MaeOptions, DmaOptions):
    """What attention is made of; shared by all model families."""

    attention_type: str = field(
        default="plain",
        metadata={
            "help": "plain: multi-head attention; mae: a mixture of attentive experts in every attention "
            "module; dma: disentangled mask "
            "attention, a semantic mask in every one; mae+dma: both; or what a --user-dir registers"
        },
    )


@dataclass
class BodyOptions(FairseqDataclass):
    """What layers are made of and how they are put together; shared by all model families."""

    no_residual: bool = field(
        default=False,
        metadata={
            "help": "no residual connection around any sub-layer: norm(dropout(F(x))), or "
            "dropout(F(norm(x))) with pre-norm"
        },
    )
    tim_layers: ChoiceEnum(["none", "middle", "all"]) = field(
        default="none",
        metadata={
            "help": "layers of independent mechanisms (TIM): in encoder and decoder, all but the first two "
            "and the last (middle), or all"
        },
    )
    tim_mechanisms: int = field(
        default=2,
        metadata={"help": "mechanisms of a TIM layer; divides its width, feed-forward width and heads"},
    )
    tim_no_competition: bool = field(
        default=False,
        metadata={
            "help": "NoComp: no softmax over mechanisms that weighs their updates after the self-attention"
        },
    )
    tim_communication_heads: int = field(
        default=2,
        metadata={
            "help": "heads of the attention between the mechanisms of a position; 0: mechanisms tell each "
            "other nothing"
        },
    )
    tim_communication_dim: int = field(default=32, metadata={"help": "units of each of these heads"})
    streams: int = field(
        default=1,
        metadata={
            "help": "parallel streams between first and last encoder layer, of (encoder layers - 2) / "
            "streams layers each, summed"
        },
    )
    stream_batched: bool = field(
        default=False,
        metadata={
            "help": "train each layer of all streams in one computation instead of one after the other (for "
            "GPUs; slower on CPUs)"
        },
    )
    stream_skip: bool = field(
        default=False,
        metadata={
            "help": "add the output of the first encoder layer to the input of the last (also with one "
            "stream)"
        },
    )


@dataclass
class TranslationOptions(AttentionOptions, BodyOptions, FlatTransformerConfig):
    """Options of the encoder-decoder family."""


@dataclass
class LanguageModelOptions(AttentionOptions, BodyOptions, FlatTransformerLanguageModelConfig):
    """Options of the decoder-only family. Gates look at the 100 most recent inputs, as in the paper (appendix
    A).
    """

    mae_gate_context: ChoiceEnum(["prefix", "window", "source"]) = field(
        default="window",
        metadata={
            "help": "what gates average: all inputs so far, or the most recent of them; source needs an "
            "encoder"
        },
    )


# The options of each model family by the name of its model.
FAMILIES: dict[str, type[FairseqDataclass]] = {
    "modular_transformer": TranslationOptions,
    "modular_transformer_lm": LanguageModelOptions,
}


def uses(options, part: str) -> bool:
    """Whether `part`, such as mae or dma, is in --attention-type."""
    return part in options.attention_type.split("+")


PRESETS: dict[str, dict] = {}  # arch -> its defaults; architectures.py fills it


def nested_config(options) -> TransformerConfig:
    """fairseq's nested `TransformerConfig` from those of the encoder-decoder family; ours are attributes of
    it under their own names.
    """
    return TransformerConfig.from_namespace(resolved(options, FAMILIES["modular_transformer"]))
