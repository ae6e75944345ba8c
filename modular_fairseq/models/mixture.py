"""How the models use mixtures of attentive experts: a mixture per attention module, and what the BCD hook
must know.
"""

import math
from dataclasses import dataclass

import torch
from torch import nn

from modular_fairseq.models.attention_parts import Place, register_attention
from modular_fairseq.models.options import MaeOptions, uses
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.gates import GateNetwork, RunningMean
from modular_fairseq.modules.mixture import ExpertMixture

DEFAULT_INTERVAL = 5  # epochs, section 3 of the paper


@dataclass(frozen=True)
class GateTraining:
    """How gates learn by block coordinate descent; the trainer hook looks for it at `model.gate_training`.

    Args:
        interval: G steps are taken in epochs that it divides.
        lr: of the gates' SGD.
        loss: sentence or token, the mean that G steps descend.
        gates_only: FTG, no F steps at all, and G steps in every epoch.
        finetunes: only a part of the model learns (FTG, FTG+).
    """

    interval: int
    lr: float
    loss: str
    gates_only: bool
    finetunes: bool

    def is_g_epoch(self, epoch: int) -> bool:
        return self.gates_only or epoch % self.interval == 0


@register_attention("mae", seam="gate", options=MaeOptions)
def build_mixture(options, place: Place) -> ExpertMixture:
    """The `gate` of one attention module."""
    gate_network = running_mean = None
    if options.mae_gating == "learned":
        num_experts = math.comb(place.num_heads, options.mae_dropped_heads)
        gate_network = GateNetwork(
            place.gate_dim,
            options.mae_gate_dim,
            num_experts,
            options.mae_gate_dropout,
            options.mae_gate_norm,
            options.mae_gate_init,
        )
        if place.decoder and options.mae_gate_context != "source":
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
    )


def mixtures(model: nn.Module) -> dict[str, ExpertMixture]:
    """The mixtures with learned gates, by the name of their attention module, such as
    encoder.layers.0.self_attn.
    """
    return {
        name.removesuffix(".gate"): module
        for name, module in model.named_modules()
        if isinstance(module, ExpertMixture) and module.gate_network is not None
    }


def draw_random_experts(model: nn.Module, seed: int) -> None:
    """For inference with one random expert per module: the same experts for the same seed, in every command
    of fairseq.
    """
    generator = torch.Generator().manual_seed(seed)
    for module in model.modules():
        if isinstance(module, ExpertMixture) and module.inference == "random":
            module.random_expert = int(torch.randint(module.num_experts, (), generator=generator))


def gate_parameters(model: nn.Module) -> list[nn.Parameter]:
    """phi: all parameters of all gate networks."""
    return [
        parameter for mixture in mixtures(model).values() for parameter in mixture.gate_network.parameters()
    ]


def set_up_gate_training(model: nn.Module, options) -> GateTraining | None:
    """Decide which parameters the main optimizer gets, and return how the gates learn (None: no BCD).

    FTALL and training from scratch: all but the gates. FTG+: the weights of the output projections W (Eq. 4),
        not their biases. FTG: the
    gates are left trainable, so that fairseq counts and saves them, but no F step is ever taken, so only G
    steps change them.
    """
    if not uses(options, "mae") or options.mae_gating == "uniform" or options.mae_training == "joint":
        return None
    gates_only = options.mae_finetune == "gates"
    if options.mae_finetune != "all":
        model.requires_grad_(False)
    if options.mae_finetune == "gates+output":
        for module in model.modules():
            if isinstance(module, MultiheadAttention):
                module.out_proj.weight.requires_grad_(True)
    for parameter in gate_parameters(model):
        parameter.requires_grad_(gates_only)
    interval = options.mae_gate_interval
    if interval is None:
        interval = DEFAULT_INTERVAL if options.mae_finetune == "all" else 1
    return GateTraining(
        interval,
        options.mae_gate_lr,
        options.mae_gate_loss,
        gates_only,
        finetunes=options.mae_finetune != "all",
    )
