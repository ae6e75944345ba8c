"""The options of mixtures of attentive experts, and the values and combinations that are refused.

The paper is "A Mixture of h - 1 Heads is Better than h Heads" (Peng et al. 2020).
"""
# fairseq's parser knows `Optional[int]`, but not `int | None`.
# ruff: noqa: UP007, UP045

import math
from dataclasses import dataclass, field, fields
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from modular_fairseq.models.checks import Choice
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.options import flag
from modular_fairseq.modules.expert_mixture import INFERENCE_MODES
from modular_fairseq.modules.gates import NORMS
from modular_fairseq_cli.errors import UsageError

DEFAULT_INTERVAL = 5  # epochs (section 3 of the paper)
MOST_EXPERTS = 10_000
SHORT_TRAINING = 6  # in fewer epochs than this, G steps in every fifth epoch are too few

# fairseq's parser reads the choices of an option from its type, which must be made at run time.
Gating: Any = ChoiceEnum(["learned", "uniform"])
Training: Any = ChoiceEnum(["bcd", "joint", "joint_main"])
GateContext: Any = ChoiceEnum(["prefix", "window", "source"])
GateNormalisation: Any = ChoiceEnum(list(NORMS))
GateInit: Any = ChoiceEnum(["zero", "linear"])
Inference: Any = ChoiceEnum(list(INFERENCE_MODES))
GateLoss: Any = ChoiceEnum(["instance", "token", "sentence"])
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
            "train everything else with sampled experts; joint: one backward pass trains everything, the "
            "gates by an SGD of their own (NOBCD); joint_main: the main optimizer trains the gates too. Only "
            "with --mae-gating learned (default: bcd)"
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
        default="lagged",
        metadata={
            "help": "normalisation of the inputs of gates: lagged (BatchNorm by its running statistics, also "
            "in training), batch (BatchNorm, whose statistics tell gates in training how long the sentences "
            "of their batch are), layer (LayerNorm) or none (default: lagged)",
            "former_default": "batch",
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
            "(default: 5; with --finetune-from-model or --mae-finetune gates+output: 1)"
        },
    )
    mae_gate_lr: float = field(
        default=0.1,
        metadata={
            "help": "learning rate of the gates' SGD, which is constant. Not with --mae-training joint_main "
            "(default: 0.1)",
            "former_default": 0.2,
        },
    )
    mae_gate_loss: GateLoss = field(
        default="instance",
        metadata={
            "help": "mean loss that the gates' SGD descends: instance (per instance of each gate: per "
            "sentence for a gate that sees a whole sentence, per target token for a gate that sees a prefix "
            "or window), token (per target token) or sentence (per sentence, or block of text). Not with "
            "--mae-training joint_main (default: instance)",
            "former_default": "sentence",
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


def check(choice: Choice) -> None:
    """Raise UsageError for options of mixtures that cannot work or would have no effect."""
    options = choice.options
    for stack in choice.stacks:
        _check_heads(options.mae_dropped_heads, stack, getattr(options, f"{stack}_attention_heads"))
    if not 0 <= options.mae_inference_seed < 2**63:
        raise UsageError(
            f"--mae-inference-seed must be from 0 to {2**63 - 1}, not {options.mae_inference_seed}"
        )
    if options.mae_inference != "random":
        choice.refuse(["mae_inference_seed"], "without --mae-inference random")
    if options.mae_gating == "uniform":
        _check_uniform(choice)
    else:
        _check_training(choice)
        _check_gates(choice)


def _check_heads(dropped: int, stack: str, heads: int) -> None:
    """Raise UsageError unless experts can leave out `dropped` heads in the modules of a stack."""
    if not 0 < dropped < heads:
        raise UsageError(
            f"--mae-dropped-heads {dropped} with --{stack}-attention-heads {heads}: an expert must drop at "
            "least 1 head and keep at least 1"
        )
    if (experts := math.comb(heads, dropped)) > MOST_EXPERTS:
        raise UsageError(
            f"--mae-dropped-heads {dropped} of {heads} heads: there would be {experts:,} experts; give a "
            f"number of heads for which there are at most {MOST_EXPERTS:,}"
        )


def _check_uniform(choice: Choice) -> None:
    """Raise UsageError for options of gate networks, which --mae-gating uniform does not have."""
    of_gates = [name for name in MaeOptions.__dataclass_fields__ if "mae_gate_" in name]
    choice.refuse(
        [*of_gates, "mae_training", "mae_finetune"], "with --mae-gating uniform, which has no gate networks"
    )
    if choice.options.mae_inference == "specialised":
        raise UsageError(
            "--mae-inference specialised needs learned gates, as all experts are equal with --mae-gating "
            "uniform; use --mae-inference random"
        )


def _check_training(choice: Choice) -> None:
    """Raise UsageError for options of the training of gates that cannot work or have no effect."""
    options = choice.options
    if options.mae_training == "bcd" and options.quant_noise_pq > 0:
        raise UsageError(
            "--quant-noise-pq changes weights in every forward pass, even weights that a G step must not "
            "change; leave it out, or use --mae-training joint"
        )
    if options.mae_training != "bcd":
        choice.refuse(
            ["mae_gate_interval", "mae_finetune"],
            f"with --mae-training {options.mae_training}, which takes no G steps",
        )
    if options.mae_training == "joint_main":
        choice.refuse(
            ["mae_gate_lr", "mae_gate_loss"],
            "with --mae-training joint_main, where the main optimizer trains the gates",
        )
    last = "decoder" if "decoder" in choice.stacks else "encoder"
    if options.mae_finetune == "gates+output" and getattr(options, f"{last}_layerdrop") > 0:
        raise UsageError(
            f"--{last}-layerdrop may leave out all layers, and then an F step of --mae-finetune gates+output "
            "has nothing to train; leave one of them out"
        )
    if options.mae_finetune == "gates":
        choice.refuse(["mae_gate_interval"], "with --mae-finetune gates, where every step is a G step")


def _check_gates(choice: Choice) -> None:
    """Raise UsageError for options of gate networks that cannot work or have no effect."""
    options = choice.options
    if "decoder" not in choice.stacks:
        choice.refuse(
            ["mae_gate_context", "mae_gate_window"],
            "in a model without a decoder, where every gate averages the whole sentence",
        )
    if options.mae_gate_context != "window":
        choice.refuse(["mae_gate_window"], "without --mae-gate-context window")
    if options.mae_gate_context == "source" and "encoder" not in choice.stacks:
        raise UsageError(
            "--mae-gate-context source needs an encoder; a language model takes window or prefix"
        )
    for name in ("mae_gate_window", "mae_gate_dim"):
        if getattr(options, name) < 1:
            raise UsageError(f"{flag(name)} must be positive, not {getattr(options, name)}")
    if not 0 < options.mae_gate_lr < math.inf:
        raise UsageError(f"--mae-gate-lr must be positive and finite, not {options.mae_gate_lr}")
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
    """Return options for a training with G steps of fewer than 6 epochs: more G steps, and longer ones.

    Fine-tuning has G steps in every epoch already. The default learning rate of gates is for long trainings:
    after the 356 G steps of the demo, gates have a mean entropy of 2.030 nats with 0.1 and of 1.988 with 0.5.
    Before, they have 2.032.
    """
    learns_in_g_steps = options.mae_gating == "learned" and options.mae_training == "bcd"
    starts_afresh = options.mae_gate_interval is None and not getattr(options, "finetune_from_model", None)
    if not learns_in_g_steps or not starts_afresh or epochs >= SHORT_TRAINING:
        return []
    defaults = {f.name: f.default for f in fields(MaeOptions)}
    as_by_default = all(getattr(options, name) == defaults[name] for name in ("mae_gate_lr", "mae_gate_loss"))
    return ["--mae-gate-interval", str(min(2, epochs)), *(["--mae-gate-lr", "0.5"] if as_by_default else [])]
