"""Fine-tune the gates alone (--mae-finetune gates, FTG of section 5.2): each update is a G step."""

from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from modular_fairseq.training.g_steps import GSteps
from modular_fairseq.training.gate_sgd import adapt_loss_scale, loss_scale_of


class GatesOnlyTraining:
    """Make updates that are G steps, and count and log them as fairseq's `train_step` does."""

    def __init__(self, trainer: Trainer, g_steps: GSteps):
        self.trainer = trainer
        self.g_steps = g_steps
        self.last_logging_output: dict[str, Any] | None = None

    def update(self, samples: list) -> dict[str, Any] | None:
        """Make an update.

        Args:
            samples: the micro-batches of the update.

        Returns:
            the logging output, or None if the step was skipped. Such an update does not count.

        Raises:
            FloatingPointError: the gradient is not finite, and there is no loss scale that could be lowered.
            RuntimeError: this worker, one of several, has run out of memory in all batches of its first
                update.
        """
        trainer = self.trainer
        metrics.log_start_time("train_wall", priority=800, round=0)
        logging_outputs, sample_size, step = self.g_steps.take(samples)
        adapt_loss_scale(trainer, step.norm)
        if step.skipped:
            metrics.log_stop_time("train_wall")
            return None
        logging_outputs = self._with_keys(logging_outputs)
        if trainer._sync_stats():
            logging_outputs, (sample_size, seconds) = trainer._aggregate_logging_outputs(
                logging_outputs,
                sample_size,
                trainer._local_cumulative_training_time(),
                ignore=sample_size == 0,
            )
            trainer._cumulative_training_time = seconds / trainer.data_parallel_world_size
        trainer.set_num_updates(trainer.get_num_updates() + 1)
        logging_output = trainer._reduce_and_log_stats(logging_outputs, sample_size, step.norm)
        if trainer.cfg.common.fp16 or trainer.cfg.common.amp:
            metrics.log_scalar("loss_scale", loss_scale_of(trainer), priority=700, round=4, weight=0)
        every = trainer.cfg.common.empty_cache_freq
        if trainer.cuda and every > 0 and (trainer.get_num_updates() - 1) % every == 0:
            torch.cuda.empty_cache()
        metrics.log_stop_time("train_wall")
        return logging_output

    def _with_keys(self, logging_outputs: list[dict]) -> list[dict]:
        """Return an earlier logging output if there is none now.

        Workers must agree on the keys of their outputs. The values of a worker without batches are ignored.
        """
        if logging_outputs:
            self.last_logging_output = logging_outputs[0]
            return logging_outputs
        if self.last_logging_output is None:
            raise RuntimeError(
                "out of memory in the first G step; give a smaller --max-tokens or --batch-size"
            )
        return [self.last_logging_output]
