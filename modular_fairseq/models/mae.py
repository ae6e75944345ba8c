"""Mixture of attentive experts: "A Mixture of h - 1 Heads is Better than h Heads" (Peng et al. 2020).

The maths is in `modules/expert_mixture.py` and `modules/gates.py`. `training/bcd.py` takes the G steps.
"""
# fairseq's parser knows `Optional[int]`, but not `int | None`.
# ruff: noqa: UP007, UP045

import math
from dataclasses import dataclass, field
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
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
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import Place, register_attention
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.expert_mixture import INFERENCE_MODES, ExpertMixture
from modular_fairseq.modules.gates import NORMS, GateNetwork, RunningMean
from modular_fairseq_cli.errors import UsageError

DEFAULT_INTERVAL = 5  # epochs (section 3 of the paper)
SHORT_TRAINING = 6  # in fewer epochs than this, G steps in every fifth epoch are too few

# fairseq's parser reads the choices of an option from its type, which must be made at run time.
Gating: Any = ChoiceEnum(["learned", "uniform"])
Training: Any = ChoiceEnum(["bcd", "joint"])
GateContext: Any = ChoiceEnum(["prefix", "window", "source"])
GateNormalisation: Any = ChoiceEnum(list(NORMS))
GateInit: Any = ChoiceEnum(["zero", "linear"])
Inference: Any = ChoiceEnum(list(INFERENCE_MODES))
GateLoss: Any = ChoiceEnum(["sentence", "token"])
Finetuned: Any = ChoiceEnum(["all", "gates", "gates+output"])


@dataclass
class MaeOptions(FairseqDataclass):
    """The options of mixtures of attentive experts."""

    mae_dropped_heads: int = field(
        default=1,
        metadata={
            "help": "number of attention heads that each expert lacks; with 8 heads, 1 gives MAE-7 (8 "
            "experts) and 2 gives MAE-6 (28 experts) (default: 1)"
        },
    )
    mae_gating: Gating = field(
        default="learned",
        metadata={
            "help": "learned: a gate network in every attention module weighs the experts; uniform: all "
            "experts have the same weight, and there are no gate networks (UNI-MAE) (default: "
            "learned)"
        },
    )
    mae_training: Training = field(
        default="bcd",
        metadata={
            "help": "bcd: block coordinate descent, in which G steps train the gates by SGD and F steps "
            "train everything else with sampled experts; joint: the main optimizer trains "
            "everything at once (NOBCD). Only with --mae-gating learned (default: bcd)"
        },
    )
    mae_gate_context: GateContext = field(
        default="prefix",
        metadata={
            "help": "what a gate in a decoder averages: prefix (its inputs so far), window (the most "
            "recent of them, see --mae-gate-window) or source (the encoder output). A gate in an "
            "encoder averages the whole sentence (default: prefix; language models: window)"
        },
    )
    mae_gate_window: int = field(
        default=100,
        metadata={
            "help": "number of most recent inputs that a gate in a decoder averages; only with "
            "--mae-gate-context window (default: 100)"
        },
    )
    mae_gate_dim: int = field(
        default=256,
        metadata={"help": "number of hidden units of a gate network (default: 256)"},
    )
    mae_gate_dropout: float = field(
        default=0.1,
        metadata={"help": "dropout probability of the hidden units of a gate network (default: 0.1)"},
    )
    mae_gate_norm: GateNormalisation = field(
        default="batch",
        metadata={
            "help": "normalisation of the inputs of gates: batch (BatchNorm that ignores padding), lagged "
            "(BatchNorm by its running statistics, also in training), layer (LayerNorm) or none "
            "(default: batch)"
        },
    )
    mae_gate_init: GateInit = field(
        default="linear",
        metadata={
            "help": "initial weights of the last layer of a gate network: zero (gates start uniform, so "
            "the mixture starts as plain attention) or linear (the initial weights of "
            "nn.Linear) (default: linear)"
        },
    )
    mae_inference: Inference = field(
        default="mixture",
        metadata={
            "help": "experts that are used outside training: mixture (all, weighed by the gate), "
            "specialised (the one with the largest gate) or random (one for each attention "
            "module, see --mae-inference-seed) (default: mixture)"
        },
    )
    mae_inference_seed: int = field(
        default=1,
        metadata={"help": "seed that chooses the experts of --mae-inference random (default: 1)"},
    )
    mae_gate_interval: Optional[int] = field(
        default=None,
        metadata={
            "help": "take G steps in every N-th epoch; 1: in every epoch. Only with --mae-training bcd "
            "(default: 5; with --mae-finetune gates+output: 1)"
        },
    )
    mae_gate_lr: float = field(
        default=0.2,
        metadata={
            "help": "learning rate of the SGD of G steps, which is constant. Only with --mae-training bcd "
            "(default: 0.2)"
        },
    )
    mae_gate_loss: GateLoss = field(
        default="sentence",
        metadata={
            "help": "loss whose gradient a G step follows: sentence (the mean per sentence) or token (the "
            "mean over the criterion's sample size: target tokens, or sentences with "
            "--sentence-avg). Only with --mae-training bcd (default: sentence)"
        },
    )
    mae_finetune: Finetuned = field(
        default="all",
        metadata={
            "help": "parameters that learn: all (training from scratch, or FTALL), gates (FTG) or "
            "gates+output (FTG+: gates and the weights of output projections). The last two need "
            "--finetune-from-model and --mae-training bcd (default: all)"
        },
    )


@dataclass(frozen=True)
class GateTraining:
    """How gates learn by block coordinate descent. The trainer's hook finds it at `model.gate_training`.

    Attributes:
        interval: G steps are taken in the epochs (from 1) that are a multiple of it.
        lr: learning rate of the gates' SGD.
        loss: "sentence" or "token", the loss that G steps descend (--mae-gate-loss).
        gates_only: there are no F steps, and every epoch has G steps (FTG).
        finetunes: only a part of the model learns (FTG, FTG+).
    """

    interval: int
    lr: float
    loss: str
    gates_only: bool
    finetunes: bool

    def is_g_epoch(self, epoch: int) -> bool:
        """Tell whether G steps are taken in `epoch`, counted from 1."""
        return self.gates_only or epoch % self.interval == 0


def expert_mixtures(model: nn.Module) -> dict[str, ExpertMixture]:
    """Return the mixtures with learned gates, by the name of their attention module.

    A name is, for example, encoder.layers.0.self_attn.
    """
    return {
        name.removesuffix(".gate"): module
        for name, module in model.named_modules()
        if isinstance(module, ExpertMixture) and module.gate_network is not None
    }


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """Return phi, the parameters of all gate networks."""
    return [
        parameter
        for mixture in expert_mixtures(model).values()
        if mixture.gate_network is not None
        for parameter in mixture.gate_network.parameters()
    ]


def trained_in_g_steps(model: nn.Module) -> list[nn.Parameter]:
    """Return the gate parameters that G steps train beside the main optimizer.

    With FTG there are none. The gates stay trainable then, so that fairseq counts and saves them. As no F
    step is taken, only G steps change them nevertheless.
    """
    training = getattr(model, "gate_training", None)
    return [] if training is None or training.gates_only else gate_parameters(model)


def prepare(model: BaseFairseqModel, options: Options) -> None:
    """Prepare a finished model for random experts and for training by block coordinate descent.

    Draw the random experts, freeze what --mae-finetune does not train, and set `model.gate_training`. F steps
    train all parameters but the gates (FTALL and training from scratch), the weights of the output
    projections W (Eq. 4) without their biases (FTG+), or nothing (FTG).
    """
    generator = torch.Generator().manual_seed(options.mae_inference_seed)
    for module in model.modules():  # a seed gives the same experts in every command of fairseq
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
    """Raise UsageError for options of mixtures that cannot work or would have no effect."""
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
                "--mae-inference specialised needs learned gates, as all experts are equal with --mae-gating "
                "uniform; use --mae-inference random"
            )
        return
    if options.mae_training == "bcd" and options.quant_noise_pq > 0:
        raise UsageError(
            "--quant-noise-pq changes weights in every forward pass, even weights that a G step must not "
            "change; leave it out, or use --mae-training joint"
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


def short_training(options: Options, epochs: int, warmup_updates: int) -> list[str]:
    """Return `--mae-gate-interval 2` for a training with G steps of fewer than 6 epochs."""
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
    # Appendix A: language models average the 100 most recent inputs (--mae-gate-window).
    family_defaults={"modular_transformer_lm": {"mae_gate_context": "window"}},
    trained_outside=trained_in_g_steps,
    short_training=short_training,
    benched=("mae_transformer_iwslt_de_en", "mae_transformer_iwslt_de_en --mae-gate-context source"),
)
def build_mixture(options: Options, place: Place) -> ExpertMixture:
    """Build the `gate` of one attention module."""
    gate_network = running_mean = None
    looks_at_source = place.decoder and options.mae_gate_context == "source"
    if options.mae_gating == "learned":
        width = place.source_dim if looks_at_source else place.embed_dim
        assert width is not None  # there is an encoder, or `check` has refused the source
        gate_network = GateNetwork(
            width,
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
# The paper mixes 8 experts in every model. Its IWSLT model therefore has 8 heads where fairseq's has 4, which
# leaves the number of parameters unchanged.
EIGHT_HEADS = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
ARCHS: dict[str, list[dict[str, Any]]] = {
    "mae_transformer": [MAE],
    "mae_transformer_iwslt_de_en": [IWSLT_DE_EN, MAE, EIGHT_HEADS],
    "mae_transformer_wmt_en_de": [WMT_EN_DE, MAE],
    "mae_transformer_tiny_cpu": [TINY_CPU, MAE],
}
register_all(ARCHS)
LANGUAGE_MODELS: dict[str, list[dict[str, Any]]] = {
    "mae_transformer_lm": [MAE],
    "mae_transformer_lm_wiki103": [WIKI103, MAE],
    "mae_transformer_lm_tiny_cpu": [TINY_CPU_LM, MAE],
}
register_all(LANGUAGE_MODELS, "modular_transformer_lm")
