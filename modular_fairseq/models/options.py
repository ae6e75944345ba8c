"""The models' options: fairseq's Transformer options, flat, and ours beside them.

Flat, because fairseq's own `TransformerConfig` nests encoder and decoder in a way that its command line cannot fill in.
Every option of ours starts with the name of what it belongs to; one that would be ignored is refused.
(`Optional[int]`, because fairseq's parser does not know `int | None`.)
"""
# ruff: noqa: UP007, UP045

from argparse import Namespace
from collections.abc import Set
from dataclasses import Field, dataclass, field, fields, make_dataclass
from enum import Enum
from typing import Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig, QuantNoiseConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

from modular_fairseq.errors import UsageError
from modular_fairseq.modules.gates import NORMS
from modular_fairseq.modules.mixture import INFERENCE_MODES

# fairseq's options that do not apply: other kernels, other layers, other checkpointing, TorchScript, and names kept for old checkpoints.
_LEFT_OUT = {
    "base_layers",
    "base_shuffle",
    "base_sublayers",
    "char_inputs",
    "cross_self_attention",
    "decoder_xformers_att_config",
    "encoder_xformers_att_config",
    "export",
    "no_cross_attention",
    "offload_activations",
    "relu_dropout",
    "scale_attn",
    "scale_fc",
    "scale_heads",
    "scale_resids",
}
# Not set: as in fairseq's own Transformer presets, the decoder follows the encoder, and its ends follow the decoder.
_FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}
_NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}


def _flat(config: type, left_out: Set[str] = frozenset()) -> type:
    """The dataclass of fairseq's options in `config`, nested parts flat (encoder.layers is encoder_layers), without those left out."""
    parts = [
        (f"{outer.name}_{part.name}" if outer.name in _NESTED else part.name, part)
        for outer in fields(config)
        for part in (fields(_NESTED[outer.name]) if outer.name in _NESTED else [outer])
        if not outer.name.startswith("_")
    ]
    names = {name for name, _ in parts}
    flat = []
    for name, part in parts:
        if name in _LEFT_OUT or name in left_out:
            continue
        kind, default, metadata = part.type, part.default, dict(part.metadata)
        if _FOLLOWS.get(name) in names:
            kind, default = Optional[int], None
            metadata["help"] = metadata.get("help", name.replace("_", " ")) + f" (default: {_FOLLOWS[name].replace('_', ' ')})"
        elif name.endswith("layers_to_keep"):
            kind = Optional[str]  # fairseq declares a list and reads "0,2,4"
        flat.append((name, kind, field(default=default, metadata=metadata)))
    return make_dataclass(f"Flat{config.__name__}", flat, bases=(FairseqDataclass,), namespace={"__module__": __name__})


FlatTransformerConfig = _flat(TransformerConfig, left_out={"adaptive_input"})
FlatTransformerLanguageModelConfig = _flat(TransformerLanguageModelConfig)


@dataclass
class AttentionOptions(FairseqDataclass):
    """What attention is made of; shared by all model families."""

    attention_type: ChoiceEnum(["plain", "mae"]) = field(
        default="plain", metadata={"help": "plain: multi-head attention; mae: a mixture of attentive experts in every attention module"}
    )
    mae_dropped_heads: int = field(
        default=1, metadata={"help": "heads that an expert lacks: with 8 heads, 1 is MAE-7 (8 experts) and 2 is MAE-6 (28 experts)"}
    )
    mae_gating: ChoiceEnum(["learned", "uniform"]) = field(
        default="learned", metadata={"help": "learned: a gate network per attention module; uniform: UNI-MAE, no gate parameters"}
    )
    mae_training: ChoiceEnum(["bcd", "joint"]) = field(
        default="bcd",
        metadata={
            "help": "bcd: block coordinate descent, gates by SGD in G steps, the rest in F steps; joint: NOBCD, all by the main optimizer"
        },
    )
    mae_gate_context: ChoiceEnum(["prefix", "window", "source"]) = field(
        default="prefix",
        metadata={"help": "what a decoder's gates average: its inputs so far, the most recent of them, or the encoder output"},
    )
    mae_gate_window: int = field(default=100, metadata={"help": "inputs that a gate averages with --mae-gate-context window"})
    mae_gate_dim: int = field(default=256, metadata={"help": "hidden units of a gate network"})
    mae_gate_dropout: float = field(default=0.1, metadata={"help": "dropout on the hidden units of a gate network"})
    mae_gate_norm: ChoiceEnum(list(NORMS)) = field(
        default="batch",
        metadata={"help": "normalisation of gate inputs: over the batch, by running statistics only (lagged), LayerNorm, or none"},
    )
    mae_gate_init: ChoiceEnum(["zero", "linear"]) = field(
        default="linear",
        metadata={
            "help": "last layer of a gate network: zero (starts uniform, equal to plain attention) or nn.Linear's own initialisation"
        },
    )
    mae_inference: ChoiceEnum(list(INFERENCE_MODES)) = field(
        default="mixture",
        metadata={"help": "outside training: mix all experts, take the one with the largest gate, or one random expert per module"},
    )
    mae_inference_seed: int = field(default=1, metadata={"help": "draws the experts of --mae-inference random"})
    mae_gate_interval: Optional[int] = field(
        default=None,
        metadata={"help": "epochs between epochs with G steps; 1 = every epoch (default: 5, or 1 when --mae-finetune is not 'all')"},
    )
    mae_gate_lr: float = field(default=0.2, metadata={"help": "learning rate of the gates' SGD, which no scheduler changes"})
    mae_gate_loss: ChoiceEnum(["sentence", "token"]) = field(
        default="sentence", metadata={"help": "the mean that a G step descends: loss per sentence, or per token (criterion's sample size)"}
    )
    mae_finetune: ChoiceEnum(["all", "gates", "gates+output"]) = field(
        default="all",
        metadata={
            "help": "what learns: everything (FTALL, or training from scratch), the gates (FTG), or gates and output projections (FTG+)"
        },
    )


@dataclass
class TranslationOptions(AttentionOptions, FlatTransformerConfig):
    """Options of the encoder-decoder family."""


@dataclass
class LanguageModelOptions(AttentionOptions, FlatTransformerLanguageModelConfig):
    """Options of the decoder-only family. Gates look at the 100 most recent inputs, as in the paper (appendix A)."""

    mae_gate_context: ChoiceEnum(["prefix", "window", "source"]) = field(
        default="window", metadata={"help": "what gates average: all inputs so far, or the most recent of them; source needs an encoder"}
    )


PRESETS: dict[str, dict] = {}  # arch -> its defaults; architectures.py fills it


def resolved(options, family: type) -> Namespace:
    """The options of a family with nothing left to follow: `_FOLLOWS` filled in."""
    flat = {f.name: _value(options, f) for f in fields(family) if not f.name.startswith("_")}
    for name, source in _FOLLOWS.items():
        if flat[name] is None:
            flat[name] = flat[source]
    return Namespace(**flat)


def nested_config(options) -> TransformerConfig:
    """fairseq's nested `TransformerConfig` from `TranslationOptions`; ours are attributes of it under their own names."""
    return TransformerConfig.from_namespace(resolved(options, TranslationOptions))


def _value(options, f: Field):
    """An option; its default where `options` comes from a checkpoint that is older than the option."""
    return getattr(options, f.name, f.default)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_attention_options(options, family: type) -> None:
    """Refuse what cannot work and what would be ignored.

    Args:
        options: of the command line or a checkpoint.
        family: the dataclass of their model family, for its defaults.

    Raises:
        UsageError: one sentence that names the option.
    """
    _check_preset(options, family)
    for f in fields(AttentionOptions):
        choices = [choice.value for choice in f.type] if isinstance(f.type, type) and issubclass(f.type, Enum) else None
        if choices and _value(options, f) not in choices:
            raise UsageError(f"{_flag(f.name)} is {_value(options, f)!r}; it must be one of {', '.join(choices)}")
    options = resolved(options, family)
    changed = [f.name for f in fields(family) if f.name.startswith("mae_") and getattr(options, f.name) != f.default]
    stacks = [f.name for f in fields(family) if f.name in ("encoder_attention_heads", "decoder_attention_heads")]

    def refuse_changed(names, unless: str) -> None:
        for name in changed:
            if name in names:
                raise UsageError(f"{_flag(name)} has no effect {unless}; leave it out")

    for stack in stacks:
        width = stack.replace("attention_heads", "embed_dim")
        if getattr(options, width) % getattr(options, stack):
            raise UsageError(f"{_flag(width)} {getattr(options, width)} is not a multiple of {_flag(stack)} {getattr(options, stack)}")
    if options.attention_type == "plain":
        refuse_changed(changed, "without --attention-type mae (or an arch such as mae_transformer)")
        return
    for stack in stacks:
        heads = getattr(options, stack)
        if not 0 < options.mae_dropped_heads < heads:
            raise UsageError(
                f"--mae-dropped-heads {options.mae_dropped_heads} with {_flag(stack)} {heads}: "
                "an expert must drop at least 1 head and keep at least 1"
            )
    if options.mae_gating == "uniform":
        refuse_changed([name for name in changed if "gate" in name], "with --mae-gating uniform, which has no gate networks")
        refuse_changed(["mae_training", "mae_finetune"], "with --mae-gating uniform, which has no gate networks")
        if options.mae_inference == "specialised":
            raise UsageError("--mae-inference specialised needs learned gates; with --mae-gating uniform all experts are equal, use random")
        return
    if options.mae_inference != "random":
        refuse_changed(["mae_inference_seed"], "without --mae-inference random")
    if options.mae_training == "bcd" and options.quant_noise_pq > 0:
        raise UsageError("--quant-noise-pq rewrites weights in every forward pass, also those that a G step must not change; leave it out")
    if options.mae_training == "joint":
        refuse_changed(
            ["mae_gate_interval", "mae_gate_lr", "mae_gate_loss", "mae_finetune"], "with --mae-training joint, which takes no G steps"
        )
    if options.mae_finetune == "gates":
        refuse_changed(["mae_gate_interval"], "with --mae-finetune gates, where every step is a G step")
    if options.mae_gate_context != "window":
        refuse_changed(["mae_gate_window"], "without --mae-gate-context window")
    if options.mae_gate_context == "source" and "encoder_attention_heads" not in stacks:
        raise UsageError("--mae-gate-context source needs an encoder; a language model takes window or prefix")
    for name in ("mae_gate_window", "mae_gate_dim", "mae_gate_lr"):
        if not getattr(options, name) > 0:
            raise UsageError(f"{_flag(name)} must be positive, not {getattr(options, name)}")
    if not 0 <= options.mae_gate_dropout < 1:
        raise UsageError(f"--mae-gate-dropout must be at least 0 and less than 1, not {options.mae_gate_dropout}")
    if options.mae_gate_interval is not None and options.mae_gate_interval < 1:
        raise UsageError(f"--mae-gate-interval must be at least 1 (1 = G steps in every epoch), not {options.mae_gate_interval}")


def _check_preset(options, family: type) -> None:
    """fairseq-hydra-train fills in every default before an arch can set its own, which then has no effect at all."""
    arch = getattr(options, "_name", None)
    preset = PRESETS.get(arch, {})
    defaults = {f.name: f.default for f in fields(family)}
    if preset and all(getattr(options, name, defaults[name]) == defaults[name] != value for name, value in preset.items()):
        settings = " ".join(f"+model.{name}={value}" for name, value in preset.items())
        model = "modular_transformer" if family is TranslationOptions else "modular_transformer_lm"
        raise UsageError(f"the arch {arch} has no effect through hydra; write +model._name={model} {settings}")
