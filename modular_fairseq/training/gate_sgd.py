"""Plain SGD for the gates of MAE, apart from the main optimizer (appendix A of the paper).

It has a constant learning rate, and neither momentum nor weight decay, so it has no state to save. G steps
(`training/g_steps.py`) and joint training (`training/joint_training.py`, NOBCD) use it.
"""

from contextlib import suppress
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from fairseq.trainer import Trainer
from torch import Tensor

from modular_fairseq.models.family import is_masked
from modular_fairseq.models.mae import GateTraining
from modular_fairseq.modules.expert_mixture import ExpertMixture


class GateStep(NamedTuple):
    """The result of a step of the gates.

    Attributes:
        norm: norm of the gradient over all workers that the step follows.
        skipped: why the step was not taken, or None if it was.
        sums: the further numbers that were given, added up over all workers.
    """

    norm: Tensor
    skipped: str | None
    sums: list[float]


class GateSgd:
    """One update of the gates: the sum of gradients over micro-batches and workers, then the step.

    The step of a gate network follows the gradient of a mean loss (`GateTraining.loss`):

        "instance"  the mean over the instances of the gate, which are sentences for a gate that sees a whole
                    sentence, and target positions for a gate that sees a prefix or a window
        "token"     the mean over target tokens, which in a masked language model are the masked ones
        "sentence"  the mean over sentences, or over blocks of text in a language model

    The mean is over the batches of all micro-batches and workers. So a step depends on neither --update-freq
    nor the number of workers, except that --mae-gate-norm batch normalises by single micro-batches.

    Attributes:
        gates: phi, the parameters of all gate networks.
    """

    def __init__(self, trainer: Trainer, mixtures: list[ExpertMixture], settings: GateTraining):
        self.trainer = trainer
        self.settings = settings
        owners = [
            (mixture, parameter)
            for mixture in mixtures
            if mixture.gate_network is not None
            for parameter in mixture.gate_network.parameters()
        ]
        self.gates = [parameter for _, parameter in owners]
        self.per_sentence = [
            settings.loss == "sentence" or (settings.loss == "instance" and mixture.running_mean is None)
            for mixture, _ in owners
        ]
        self.masked = is_masked(trainer.get_model())
        self.padding_idx = trainer.get_criterion().padding_idx
        self.clear()

    def clear(self) -> None:
        """Forget the gradients and the counts so far."""
        self.gradients: list[Tensor | None] = [None] * len(self.gates)
        self.sentences = self.tokens = 0.0

    def add_one(self, number: int, gradient: Tensor | None, loss_scale: float) -> None:
        """Add a gradient of the summed loss.

        Args:
            number: number of the parameter in `gates`.
            gradient: None counts as zero.
            loss_scale: factor by which the loss was scaled.
        """
        if gradient is not None:
            old = self.gradients[number]
            gradient = gradient if loss_scale == 1 else gradient / loss_scale
            self.gradients[number] = gradient if old is None else old + gradient

    def add_count(self, sample: dict[str, Any]) -> None:
        """Count the sentences and the target tokens of a batch. A class of a sentence is one target token."""
        self.sentences += float(sample["nsentences"])
        self.tokens += self._target_tokens(sample) if self.masked else float(sample["ntokens"])

    def _target_tokens(self, sample: dict[str, Any]) -> float:
        """Return the number of masked words of a batch, or of its classes. Its "ntokens" counts the input."""
        target = sample["target"]
        if "net_input" in sample and target.shape == sample["net_input"]["src_tokens"].shape:
            return float(target.ne(self.padding_idx).sum())
        return float(target.numel())

    def step(self, *sums: float) -> GateStep:
        """Take the step with the gradients of all workers, if there are any and they are finite.

        Args:
            sums: further numbers to add up over the workers.
        """
        sizes = [p.numel() for p in self.gates]
        flat = torch.cat(
            [
                (torch.zeros_like(p) if g is None else g).flatten()
                for p, g in zip(self.gates, self.gradients, strict=True)
            ]
        )
        # The counts are float64, as float32 cannot hold every number of tokens above 2 ** 24.
        counts = torch.tensor([self.sentences, self.tokens, *sums], dtype=torch.float64, device=flat.device)
        if self.trainer.data_parallel_world_size > 1:
            for each in (flat, counts):
                dist.all_reduce(each, group=self.trainer.data_parallel_process_group)
        sentences, tokens, *sums_of_all = counts.tolist()
        self.clear()
        means = list(flat.split(sizes))
        counted = [(sentences if per_sentence else tokens) or 1.0 for per_sentence in self.per_sentence]
        torch._foreach_div_(means, counted)
        norm = flat.norm()
        if not tokens > 0:
            return GateStep(norm, "no batch was left", sums_of_all)
        if not torch.isfinite(norm):
            return GateStep(norm, "the gates' gradient is not finite", sums_of_all)
        steps = [gradient.view_as(p) for p, gradient in zip(self.gates, means, strict=True)]
        gates: list[Tensor] = [*self.gates]
        with torch.no_grad():
            torch._foreach_sub_(gates, steps, alpha=self.settings.lr)
        return GateStep(norm, None, sums_of_all)


def loss_scale_of(trainer: Trainer) -> float:
    """Return the factor by which the trainer's optimizer scales losses now (fp16 and --amp), otherwise 1."""
    scaler = getattr(trainer.optimizer, "scaler", None)
    if scaler is None:
        return 1.0
    return scaler.get_scale() if trainer.cfg.common.amp else scaler.loss_scale


def adapt_loss_scale(trainer: Trainer, norm: Tensor) -> None:
    """Lower the loss scale if the gradient has overflowed, and raise it now and then, as fairseq does.

    fairseq does so in its own step, which --mae-finetune gates does not take. With --amp the scale is only
    lowered.

    Args:
        norm: norm of the gradient.

    Raises:
        FloatingPointError: the norm is not finite, and there is no loss scale, or it would be below
            --min-loss-scale.
    """
    scaler = getattr(trainer.optimizer, "scaler", None)
    is_finite, amp = bool(torch.isfinite(norm)), trainer.cfg.common.amp
    if scaler is None or (amp and not scaler.is_enabled()):
        if not is_finite:
            raise FloatingPointError(
                "gradients are Nan/Inf, namely the gates'; give a smaller --mae-gate-lr, or start from a "
                "checkpoint that has not diverged"
            )
    elif amp:
        if not is_finite:
            scale = trainer.optimizer.next_loss_scale
            if scale <= trainer.cfg.common.min_loss_scale:
                raise FloatingPointError(f"Minimum loss scale reached ({scale}): the loss is not finite")
            scaler.scale(norm.new_zeros(()))  # without a scaled loss the scaler has no scale to update
            scaler.update(scale)
    elif is_finite:
        scaler.update()
    else:
        with suppress(OverflowError):  # by which fairseq says that it has lowered the scale
            scaler.check_overflow(float(norm))
