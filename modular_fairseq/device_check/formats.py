"""Train a model in every number format for some updates, and compare the losses with those in float32."""

import math
import tempfile
from dataclasses import dataclass, field

from fairseq.tasks.translation import TranslationTask
from omegaconf import DictConfig

from modular_fairseq.benchmark.jobs import build, random_batch, start_training
from modular_fairseq.training.gate_trainer import gate_trainer_of

BATCHES = 8
LAST = 20  # losses are means over this number of last updates


@dataclass(frozen=True)
class Training:
    """A short training.

    Attributes:
        losses: the cross-entropy of every update, in nats per token; NaN where the update was left out.
        gate_norms: the norm of the gates' gradient in every G step, which was left out if this is not finite.
    """

    losses: list[float]
    gate_norms: list[float] = field(default_factory=list)

    @property
    def is_finite(self) -> bool:
        """Whether no loss is infinite, and at most a tenth of the updates, and of the G steps, left out."""
        left_out = sum(math.isnan(loss) for loss in self.losses)
        without_gates = sum(not math.isfinite(norm) for norm in self.gate_norms)
        return (
            not any(map(math.isinf, self.losses))
            and left_out <= len(self.losses) / 10
            and without_gates <= len(self.gate_norms) / 10
        )

    @property
    def left_out(self) -> str:
        """A phrase about how many updates and G steps were left out, and how many losses are infinite."""
        updates, steps = sum(map(math.isnan, self.losses)), sum(not math.isfinite(n) for n in self.gate_norms)
        return (
            f"{updates} of {len(self.losses)} updates and {steps} of {len(self.gate_norms)} G steps were "
            f"left out, and {sum(map(math.isinf, self.losses))} losses are infinite"
        )

    @property
    def last(self) -> float:
        """The mean loss of the last updates."""
        known = [loss for loss in self.losses[-LAST:] if not math.isnan(loss)]
        return sum(known) / len(known) if known else math.nan


def train(
    model: str, cfg: DictConfig, task: TranslationTask, updates: int, sentences: int, length: int
) -> Training:
    """Train a model on random batches, which come again and again.

    If its gates learn in G steps, the last fifth of the updates have such steps.

    Raises:
        FloatingPointError: a loss or gradient is not finite (fairseq).
        torch.cuda.OutOfMemoryError: the device has too little memory.
    """
    with tempfile.TemporaryDirectory() as folder:
        cfg.checkpoint.save_dir = folder  # fairseq saves a model there whose gradient is not finite
        return _train(model, cfg, task, updates, sentences, length)


def _train(
    model: str, cfg: DictConfig, task: TranslationTask, updates: int, sentences: int, length: int
) -> Training:
    trainer = start_training(build(model, cfg, task), cfg, task)
    gates = gate_trainer_of(trainer)
    if gates is not None:
        gates.paused = True
    batches = [random_batch(task, sentences, length, cfg.common.seed + i) for i in range(BATCHES)]
    training = Training([])
    for update in range(updates):
        batch = batches[update % BATCHES]
        if gates is not None and gates.alternates and update >= updates * 4 // 5:
            *_, step = gates.g_step([batch])
            training.gate_norms.append(float(step.norm))
        logged = trainer.train_step([batch], raise_oom=True)
        training.losses.append(math.nan if logged is None else float(logged["nll_loss"]) * math.log(2))
    return training
