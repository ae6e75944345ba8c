"""Take the G steps of MAE (Algorithm 1): the gates alone follow the gradient of the mixture's loss.

A G step freezes all other parameters, and it never touches the main optimizer.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from fairseq import utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor, nn
from torch.profiler import record_function

from modular_fairseq.models.mae import GateTraining
from modular_fairseq.modules.expert_mixture import ExpertMixture
from modular_fairseq.training.gate_sgd import GateSgd, GateStep, loss_scale_of
from modular_fairseq.training.running_statistics import RunningStatistics

logger = logging.getLogger(__name__)

MANY_SKIPPED = 50  # G steps in a row, after which the log has a warning
SEED_OFFSET = 0x9E3779B9  # lets the G and F steps of one update draw different dropout masks


class GStepResult(NamedTuple):
    """The result of a G step.

    Attributes:
        logging_outputs: the criterion's logging outputs on this worker. If it has dummy batches only, this is
            the output of one of them, because workers must agree on its keys.
        sample_size: the sum of their sample sizes on this worker, without dummy batches.
        step: the step of the gates, which is the same on all workers.
    """

    logging_outputs: list[dict]
    sample_size: float
    step: GateStep


class GSteps:
    """Take G steps on whole updates, that is, on all micro-batches of --update-freq and on all workers.

    Args:
        trainer: fairseq's trainer, whose model has gates.
        sgd: the SGD of the gates.
        mixtures: all mixtures of experts of the model.
        running_statistics: the running statistics of the gates' inputs.
        settings: how the gates learn.
    """

    def __init__(
        self,
        trainer: Trainer,
        sgd: GateSgd,
        mixtures: list[ExpertMixture],
        running_statistics: RunningStatistics,
        settings: GateTraining,
    ):
        self.trainer = trainer
        self.sgd = sgd
        self.mixtures = mixtures
        self.running_statistics = running_statistics
        self.settings = settings
        self.last_loss: float | None = None  # in bits; None before the first step
        self.skipped_in_a_row = 0

    def take(self, samples: list) -> GStepResult:
        """Take a G step on all micro-batches of an update.

        Only gates change, and only if their gradient is finite.
        """
        sgd = self.sgd
        self._begin()
        loss_scale = loss_scale_of(self.trainer)
        logging_outputs: list[dict] = []
        loss_sum, sample_size = 0.0, 0.0
        with self._only_gates_learn():
            for sample in samples:
                sample, is_dummy = self.trainer._prepare_sample(sample)
                found = self._try_gradients_of(sample, is_dummy, loss_scale)
                if found is None:
                    continue
                gradients, loss, size, logging_output = found
                if is_dummy:
                    logging_outputs = logging_outputs or [logging_output]
                    continue
                for number, gradient in enumerate(gradients):
                    sgd.add_one(number, gradient, loss_scale)
                sgd.add_count(sample)
                logging_outputs.append(logging_output)
                loss_sum += loss
                sample_size += size
        self.running_statistics.update()
        step = sgd.step(loss_sum, sample_size)
        self._log(step)
        return GStepResult(logging_outputs, sample_size, step)

    def log_last_loss(self) -> None:
        """Log the loss of the last G step again, as the log of an update without a G step would show None."""
        if self.last_loss is not None:
            metrics.log_scalar("g_loss", self.last_loss, weight=0, priority=299, round=3)

    def _begin(self) -> None:
        """Seed the dropout, put the model into training mode, and clear what is left of a step."""
        trainer, updates = self.trainer, self.trainer.get_num_updates()
        utils.set_torch_seed(trainer.cfg.common.seed + updates + SEED_OFFSET)
        trainer.get_model().set_num_updates(updates)
        trainer.model.train()
        trainer.criterion.train()
        self.sgd.clear()
        self.running_statistics.forget()

    def _try_gradients_of(
        self, sample: dict[str, Any], is_dummy: bool, loss_scale: float
    ) -> tuple[Sequence[Tensor | None], float, float, dict] | None:
        """Compute what `_gradients_of` returns, or None if the memory has run out.

        The other workers wait for this one in the all-reduce. It takes part with the gradients that it has.
        """
        passes = self.running_statistics.end_pass()
        try:
            return self._gradients_of(sample, is_dummy, loss_scale)
        except RuntimeError as error:
            if "out of memory" not in str(error):
                raise
        # The graph of the failed pass is gone only after the `except` block.
        logger.warning("ran out of memory in a G step; this batch is left out of the step")
        self.running_statistics.forget(passes)
        torch.cuda.empty_cache()
        return None

    def _gradients_of(
        self, sample: dict[str, Any], is_dummy: bool, loss_scale: float
    ) -> tuple[Sequence[Tensor | None], float, float, dict]:
        """Compute the gradients of the gates on a micro-batch; a dummy batch has none.

        Returns:
            the gradients of the summed loss times `loss_scale`, None where a gate has none; the loss; the
            sample size; and the criterion's logging output.
        """
        trainer, gates = self.trainer, self.sgd.gates
        with (
            record_function("forward"),
            torch.autocast(trainer.device.type, trainer.autocast_dtype, enabled=trainer.cfg.common.amp),
        ):
            loss, size, logging_output = trainer.get_criterion()(trainer.get_model(), sample)
        gradients: Sequence[Tensor | None] = [None] * len(gates)
        # If LayerDrop skipped every layer with a gate, the loss has no gradient.
        if not is_dummy and loss.requires_grad:
            with record_function("backward"):
                gradients = torch.autograd.grad(loss * loss_scale, gates, allow_unused=True)
        return gradients, float(loss.detach()), float(size), logging_output

    @contextmanager
    def _only_gates_learn(self) -> Iterator[None]:
        """Freeze all parameters but the gates, and put the mixtures into their G step, inside the block."""
        gates = set(self.sgd.gates)
        frozen: list[nn.Parameter] = [
            parameter
            for module in (self.trainer.get_model(), self.trainer.get_criterion())
            for parameter in module.parameters()
            if parameter.requires_grad and parameter not in gates
        ]
        for parameter in frozen:
            parameter.requires_grad_(False)
        for parameter in gates:
            parameter.requires_grad_(True)
        for mixture in self.mixtures:
            mixture.step = "G"
        try:
            yield
        finally:
            for parameter in frozen:
                parameter.requires_grad_(True)
            for parameter in gates:
                parameter.requires_grad_(self.settings.gates_only)  # in other trainings an F step follows
            for mixture in self.mixtures:
                mixture.step = "F"

    def _log(self, step: GateStep) -> None:
        """Log the loss of a step that was taken, or why it was not; warn if many in a row were not."""
        if step.skipped:
            logger.info(f"G step skipped: {step.skipped}")
            self.skipped_in_a_row += 1
            if self.skipped_in_a_row == MANY_SKIPPED:
                logger.warning(
                    f"{MANY_SKIPPED} G steps in a row were skipped, the last one because {step.skipped}; the "
                    "gates do not learn"
                )
        else:
            self.skipped_in_a_row = 0
            loss_sum, sample_size = step.sums
            self.last_loss = loss_sum / sample_size / math.log(2)
            metrics.log_scalar("g_loss", self.last_loss, weight=sample_size, priority=299, round=3)
