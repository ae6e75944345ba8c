"""Fine-tune the gates alone (--mae-finetune gates, FTG of section 5.2): each update is a G step."""

from typing import Any

import torch
from fairseq.logging import metrics
from fairseq.trainer import Trainer

from modular_fairseq.training.g_steps import GSteps
from modular_fairseq.training.gate_sgd import adapt_loss_scale, loss_scale_of


class GatesOnlyTraining:
    """Make updates that are G steps, and count and log them as fairseq's `train_step` does.

    Args:
        trainer: fairseq's trainer.
        g_steps: takes the G steps of its model.

    Attributes:
        last_logging_output: what the criterion logged for the last batch that fitted into the memory.
    """

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
            RuntimeError: this worker, one of several, has run out of memory in all of its batches so far.
        """
        trainer = self.trainer
        metrics.log_start_time("train_wall", priority=800, round=0)
        logging_outputs, sample_size, step = self.g_steps.take(samples)
        if logging_outputs:
            self.last_logging_output = logging_outputs[0]
        adapt_loss_scale(trainer, step.norm)
        if step.skipped:
            metrics.log_stop_time("train_wall")
            return None
        logging_outputs = logging_outputs or [self._earlier_logging_output()]
        if trainer._sync_stats():
            logging_outputs, (sample_size, seconds) = trainer._aggregate_logging_outputs(
                logging_outputs,
                sample_size,
                trainer._local_cumulative_training_time(),
                ignore=sample_size == 0,
            )
            trainer._cumulative_training_time = seconds / trainer.data_parallel_world_size
        trainer.set_num_updates(trainer.get_num_updates() + 1)
        # With the norm, fairseq would also log that --clip-norm has clipped it. Gates learn without clipping.
        logging_output = trainer._reduce_and_log_stats(logging_outputs, sample_size, None)
        metrics.log_speed("ups", 1.0, priority=100, round=2)
        metrics.log_scalar("gnorm", step.norm, priority=400, round=3)
        if trainer.cfg.common.fp16 or trainer.cfg.common.amp:
            metrics.log_scalar("loss_scale", loss_scale_of(trainer), priority=700, round=4, weight=0)
        every = trainer.cfg.common.empty_cache_freq
        if trainer.cuda and every > 0 and (trainer.get_num_updates() - 1) % every == 0:
            torch.cuda.empty_cache()
        metrics.log_stop_time("train_wall")
        return logging_output

    def _earlier_logging_output(self) -> dict[str, Any]:
        """Return the last logging output of this worker, for an update in which it has none.

        Workers must agree on the keys of their outputs. The values of a worker without batches are ignored.
        """
        if self.last_logging_output is None:
            raise RuntimeError("out of memory in all batches; give a smaller --max-tokens or --batch-size")
        return self.last_logging_output
