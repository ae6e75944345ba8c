"""Mixture of attentive experts: "A Mixture of h - 1 Heads is Better than h Heads" (Peng et al. 2020).

The maths is in `modules/expert_mixture.py` and `modules/gates.py`; G steps are taken by `training/bcd.py`.
(`Optional[int]`, because fairseq's parser does not know `int | None`.)
"""
# ruff: noqa: UP007, UP045

import math
from dataclasses import dataclass, field
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import nn

from modular_fairseq.models.architectures import (
    IWSLT_DE_EN,
    TINY_CPU,
    TINY_CPU_LM,
    WIKI103,
    WMT_EN_DE,
    register_all,
)
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import Place, register_attention
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.expert_mixture import INFERENCE_MODES, ExpertMixture
from modular_fairseq.modules.gates import NORMS, GateNetwork, RunningMean
from modular_fairseq_cli.errors import UsageError

DEFAULT_INTERVAL = 5  # epochs, section 3 of the paper
SHORT_TRAINING = 6  # epochs up to which G steps in every fifth epoch are too few


@dataclass
class MaeOptions(FairseqDataclass):
    """Options of mixtures of attentive experts."""

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
            "help": "what a decoder's gates average: its inputs so far, the most recent of them (default of "
            "language models), or the encoder output"
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


@dataclass(frozen=True)
class GateTraining:
    """How gates learn by block coordinate descent; the trainer's hook finds it at `model.gate_training`.

    Args:
        interval: G steps are taken in epochs that it divides.
        lr: learning rate of the gates' SGD.
        loss: sentence or token, the mean that G steps descend.
        gates_only: FTG: there are no F steps, and every epoch has G steps.
        finetunes: only a part of the model learns (FTG, FTG+).
    """

    interval: int
    lr: float
    loss: str
    gates_only: bool
    finetunes: bool

    def is_g_epoch(self, epoch: int) -> bool:
        return self.gates_only or epoch % self.interval == 0


def expert_mixtures(model: nn.Module) -> dict[str, ExpertMixture]:
    """Return the mixtures with learned gates by the name of their attention module:
    encoder.layers.0.self_attn.
    """
    return {
        name.removesuffix(".gate"): module
        for name, module in model.named_modules()
        if isinstance(module, ExpertMixture) and module.gate_network is not None
    }


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return phi: all parameters of all gate networks."""
    return [
        parameter
        for mixture in expert_mixtures(model).values()
        for parameter in mixture.gate_network.parameters()
    ]


def trained_in_g_steps(model: nn.Module) -> list[nn.Parameter]:
    """Return the gates that G steps train beside the main optimizer.

    With FTG the gates stay trainable, so that fairseq counts and saves them. No F step is ever taken there,
    so only G steps change them.
    """
    training = getattr(model, "gate_training", None)
    return [] if training is None or training.gates_only else gate_parameters(model)


def prepare(model: nn.Module, options) -> None:
    """Draw random experts, freeze what --mae-finetune does not train, and tell the trainer's hook how gates
    learn.

    FTALL and training from scratch train all but the gates in F steps, FTG+ the weights of the output
    projections W (Eq. 4), not their biases, and FTG nothing.
    """
    generator = torch.Generator().manual_seed(options.mae_inference_seed)
    for module in model.modules():  # the same experts for the same seed in every command of fairseq
        if isinstance(module, ExpertMixture) and module.inference == "random":
            module.random_expert = int(torch.randint(module.num_experts, (), generator=generator))
    model.gate_training = None
    if options.mae_gating == "uniform" or options.mae_training == "joint":
        return
    finetunes = options.mae_finetune != "all"
    if finetunes:
        model.requires_grad_(False)
    if options.mae_finetune == "gates+output":
        for module in model.modules():
            if isinstance(module, MultiheadAttention):
                module.out_proj.weight.requires_grad_(True)
    gates_only = options.mae_finetune == "gates"
    for parameter in gate_parameters(model) if gates_only else ():
        parameter.requires_grad_(True)
    interval = options.mae_gate_interval or (1 if finetunes else DEFAULT_INTERVAL)
    model.gate_training = GateTraining(
        interval, options.mae_gate_lr, options.mae_gate_loss, gates_only, finetunes
    )


def check(choice: Choice) -> None:
    """Raise UsageError for options of mixtures that cannot work or would be ignored."""
    options = choice.options
    for stack in choice.stacks:
        heads = getattr(options, f"{stack}_attention_heads")
        if not 0 < options.mae_dropped_heads < heads:
            raise UsageError(
                f"--mae-dropped-heads {options.mae_dropped_heads} with --{stack}-attention-heads {heads}: "
                "an expert must drop at least 1 head and keep at least 1"
            )
    if options.mae_inference != "random":
        choice.refuse(["mae_inference_seed"], "without --mae-inference random")
    if options.mae_gating == "uniform":
        of_gates = [name for name in MaeOptions.__dataclass_fields__ if "mae_gate_" in name]
        choice.refuse(
            [*of_gates, "mae_training", "mae_finetune"],
            "with --mae-gating uniform, which has no gate networks",
        )
        if options.mae_inference == "specialised":
            raise UsageError(
                "--mae-inference specialised needs learned gates; with --mae-gating uniform all experts are "
                "equal, use random"
            )
        return
    if options.mae_training == "bcd" and options.quant_noise_pq > 0:
        raise UsageError(
            "--quant-noise-pq rewrites weights in every forward pass, also those that a G step must not "
            "change; leave it out"
        )
    if options.mae_training == "joint":
        choice.refuse(
            ["mae_gate_interval", "mae_gate_lr", "mae_gate_loss", "mae_finetune"],
            "with --mae-training joint, which takes no G steps",
        )
    if options.mae_finetune == "gates":
        choice.refuse(["mae_gate_interval"], "with --mae-finetune gates, where every step is a G step")
    if options.mae_gate_context != "window":
        choice.refuse(["mae_gate_window"], "without --mae-gate-context window")
    if options.mae_gate_context == "source" and "encoder" not in choice.stacks:
        raise UsageError(
            "--mae-gate-context source needs an encoder; a language model takes window or prefix"
        )
    for name in ("mae_gate_window", "mae_gate_dim", "mae_gate_lr"):
        if not getattr(options, name) > 0:
            raise UsageError(f"{flag(name)} must be positive, not {getattr(options, name)}")
    if not 0 <= options.mae_gate_dropout < 1:
        raise UsageError(
            f"--mae-gate-dropout must be at least 0 and less than 1, not {options.mae_gate_dropout}"
        )
    if options.mae_gate_interval is not None and options.mae_gate_interval < 1:
        raise UsageError(
            "--mae-gate-interval must be at least 1 (1 = G steps in every epoch), not "
            f"{options.mae_gate_interval}"
        )


def short_training(options, epochs: int, warmup_updates: int) -> list[str]:
    """Return `--mae-gate-interval 2` for a training of fewer than 6 epochs that takes G steps."""
    learns_in_g_steps = options.mae_gating == "learned" and options.mae_training == "bcd"
    if not learns_in_g_steps or options.mae_gate_interval is not None or epochs >= SHORT_TRAINING:
        return []
    return ["--mae-gate-interval", "2"]


@register_attention(
    "mae",
    seam="gate",
    options=MaeOptions,
    summary="a mixture of attentive experts in every attention module",
    check=check,
    after_build=prepare,
    family_defaults={"modular_transformer_lm": {"mae_gate_context": "window"}},  # 100 inputs: appendix A
    trained_outside=trained_in_g_steps,
    short_training=short_training,
    benched=("mae_transformer_iwslt_de_en", "mae_transformer_iwslt_de_en --mae-gate-context source"),
)
def build_mixture(options, place: Place) -> ExpertMixture:
    """Build the `gate` of one attention module."""
    gate_network = running_mean = None
    looks_at_source = place.decoder and options.mae_gate_context == "source"
    if options.mae_gating == "learned":
        gate_network = GateNetwork(
            place.source_dim if looks_at_source else place.embed_dim,
            options.mae_gate_dim,
            math.comb(place.num_heads, options.mae_dropped_heads),
            options.mae_gate_dropout,
            options.mae_gate_norm,
            options.mae_gate_init,
        )
        if place.decoder and not looks_at_source:
            running_mean = RunningMean(
                options.mae_gate_window if options.mae_gate_context == "window" else None
            )
    return ExpertMixture(
        place.num_heads,
        options.mae_dropped_heads,
        gate_network,
        running_mean,
        options.mae_training,
        options.mae_inference,
        looks_at_source,
    )


MAE = {"attention_type": "mae"}
# MAE mixes 8 experts everywhere, so it has 8 heads where fairseq's IWSLT preset has 4; the parameter count is
# the same.
EIGHT_HEADS = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
ARCHS = {
    "mae_transformer": [MAE],
    "mae_transformer_iwslt_de_en": [IWSLT_DE_EN, MAE, EIGHT_HEADS],
    "mae_transformer_wmt_en_de": [WMT_EN_DE, MAE],
    "mae_transformer_tiny_cpu": [TINY_CPU, MAE],
}
register_all(ARCHS)
LANGUAGE_MODELS = {
    "mae_transformer_lm": [MAE],
    "mae_transformer_lm_wiki103": [WIKI103, MAE],
    "mae_transformer_lm_tiny_cpu": [TINY_CPU_LM, MAE],
}
register_all(LANGUAGE_MODELS, "modular_transformer_lm")
