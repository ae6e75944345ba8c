"""Mixture of attentive experts: "A Mixture of h - 1 Heads is Better than h Heads" (Peng et al. 2020).

The maths is in `modules/expert_mixture.py`, `modules/gates.py` and `modules/gate_inputs.py`, and the options
are in `models/mae_options.py`. `training/g_steps.py` and `training/gate_sgd.py` train the gates.
"""

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from torch import nn

from modular_fairseq.models.architectures import (
    IWSLT_DE_EN,
    TINY_CPU,
    TINY_CPU_LM,
    TINY_CPU_ROBERTA,
    WIKI103,
    WMT_EN_DE,
    register_all,
)
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.mae_options import DEFAULT_INTERVAL, MaeOptions, check, short_training
from modular_fairseq.models.registry import Place, register_attention
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.expert_mixture import ExpertMixture
from modular_fairseq.modules.gate_inputs import RunningMean
from modular_fairseq.modules.gates import GateNetwork


@dataclass(frozen=True)
class GateTraining:
    """How gates learn by an SGD of their own. The trainer's hook finds it at `model.gate_training`.

    Attributes:
        interval: G steps are taken in the epochs (from 1) that are a multiple of it; None means the default.
        lr: learning rate of the gates' SGD.
        loss: "instance", "token" or "sentence", the mean loss that the SGD descends (--mae-gate-loss).
        joint: there are no G steps; the SGD takes a step in every update, on the gradient of the same
            backward pass that trains everything else (NOBCD).
        gates_only: there are no F steps, and every epoch has G steps (FTG).
        finetunes: only a part of the model learns (FTG, FTG+).
    """

    interval: int | None
    lr: float
    loss: str
    joint: bool
    gates_only: bool
    finetunes: bool

    def interval_of(self, starts_from_checkpoint: bool) -> int:
        """Return the number of epochs from one epoch with G steps to the next.

        The default is 1 for fine-tuning, where the paper reports the best scores after about one epoch
        (section 5.2), and 5 for training from scratch (section 3).

        Args:
            starts_from_checkpoint: whether --finetune-from-model is given.
        """
        if self.gates_only:
            return 1
        return self.interval or (1 if self.finetunes or starts_from_checkpoint else DEFAULT_INTERVAL)


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


def trained_by_sgd(model: nn.Module) -> list[nn.Parameter]:
    """Return the gate parameters that an SGD of their own trains beside the main optimizer.

    With FTG there are none. The gates stay trainable then, so that fairseq counts and saves them. As no F
    step is taken, only G steps change them nevertheless.
    """
    training = getattr(model, "gate_training", None)
    return [] if training is None or training.gates_only else gate_parameters(model)


def prepare(model: BaseFairseqModel, options: Options) -> None:
    """Prepare a finished model for random experts and for gates that have an SGD of their own.

    Draw the random experts, freeze what --mae-finetune does not train, and set `model.gate_training`. F steps
    train all parameters but the gates (FTALL and training from scratch), the weights of the output
    projections W (Eq. 4) without their biases (FTG+), or nothing (FTG).
    """
    generator = torch.Generator().manual_seed(options.mae_inference_seed)
    for module in model.modules():  # a seed gives the same experts in every command of fairseq
        if isinstance(module, ExpertMixture) and module.inference == "random":
            module.draw_expert(generator)
    model.gate_training = None
    if options.mae_gating == "uniform" or options.mae_training == "joint_main":
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
    model.gate_training = GateTraining(
        interval=options.mae_gate_interval,
        lr=options.mae_gate_lr,
        loss=options.mae_gate_loss,
        joint=options.mae_training == "joint",
        gates_only=gates_only,
        finetunes=finetunes,
    )


def train_with_head(model: BaseFairseqModel, options: Options) -> None:
    """Let F steps train a new classification head beside gates that --mae-finetune gates trains (FTG)."""
    training = model.gate_training
    if training is not None and training.gates_only:
        model.gate_training = replace(training, gates_only=False)
        for parameter in gate_parameters(model):  # they are outside the main optimizer now
            parameter.requires_grad_(False)


@register_attention(
    "mae",
    seam="gate",
    options=MaeOptions,
    summary="a mixture of attentive experts in every attention module",
    check=check,
    after_build=prepare,
    after_head=train_with_head,
    # Appendix A: language models average the 100 most recent inputs (--mae-gate-window).
    family_defaults={"modular_transformer_lm": {"mae_gate_context": "window"}},
    trained_outside=trained_by_sgd,
    short_training=short_training,
    benched=(
        "mae_transformer_iwslt_de_en",
        "mae_transformer_iwslt_de_en --mae-gate-context source",
        "mae_transformer_lm",
        "mae_roberta",
    ),
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
        options.mae_training == "bcd",
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
MASKED_LANGUAGE_MODELS: dict[str, list[dict[str, Any]]] = {
    "mae_roberta": [MAE],
    "mae_roberta_tiny_cpu": [TINY_CPU_ROBERTA, MAE],
}
register_all(MASKED_LANGUAGE_MODELS, "modular_roberta")
