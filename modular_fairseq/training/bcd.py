"""The training of gates of MAE: block coordinate descent (section 3), and NOBCD (appendix A).

fairseq offers no hook that works with every task and can update other parameters on the same batch. Therefore
`patches/trainer.py` wraps methods of its Trainer.

In an epoch with G steps (Algorithm 3), `train_step(samples)` first takes a G step on the whole update, that
is, on all micro-batches of --update-freq and on all workers. Then it takes fairseq's ordinary step, which is
the F step. The gates are outside the main optimizer (`requires_grad` is False), so no optimizer, weight
decay, gradient clipping or precision mode can change them. The number of updates and the learning-rate
schedule count F steps only. A G step freezes all other parameters in the same way.

With --mae-training joint, fairseq's ordinary step trains gates and experts together
(`training/joint_training.py`).
"""

import logging
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from fairseq import utils
from fairseq.logging import metrics
from fairseq.trainer import Trainer
from torch import Tensor, nn
from torch.profiler import record_function

from modular_fairseq.models.mae import GateTraining, expert_mixtures
from modular_fairseq.modules.gate_statistics import GateStatistics
from modular_fairseq.training.gate_checks import check_trainer, warn_if_gates_never_learn
from modular_fairseq.training.gate_monitor import GateMonitor
from modular_fairseq.training.gate_sgd import GateSgd, GateStep, adapt_loss_scale, loss_scale_of
from modular_fairseq.training.joint_training import JointTraining
from modular_fairseq.training.running_statistics import RunningStatistics

logger = logging.getLogger(__name__)

MANY_SKIPPED = 50  # G steps in a row, after which the log has a warning
G_SEED_OFFSET = 0x9E3779B9  # lets the G and F steps of one update draw different dropout masks


class BlockCoordinateDescent:
    """Train the gates of one trainer's model, log gate statistics and keep gate buffers equal.

    Attributes:
        settings: how the gates learn, or None if the main optimizer trains them (--mae-training joint_main).
        sgd: the SGD of the gates, or None as above.
        joint: joint training by that SGD, or None with another --mae-training.
        interval: G steps are taken in the epochs (from 1) that are a multiple of it.
        paused: if True, no epoch has G steps, whatever `settings` say.

    Raises:
        UsageError: gates cannot be trained with the options of the trainer.
    """

    def __init__(self, trainer: Trainer):
        model = trainer.get_model()
        self.trainer = trainer
        self.settings: GateTraining | None = model.gate_training
        self.sgd: GateSgd | None = None
        self.joint: JointTraining | None = None
        self.interval = 0
        self.mixtures = list(expert_mixtures(model).values())
        self.running_statistics = RunningStatistics(
            model, trainer.data_parallel_world_size, trainer.data_parallel_process_group
        )
        self.train_monitor = GateMonitor()
        self.valid_monitor = GateMonitor()
        self.epoch = 0
        self.in_update = False
        self.has_data = False  # whether a batch of this step is no dummy batch
        self.paused = False
        self.g_loss: float | None = None  # loss of the last G step, in bits
        self.skipped_in_a_row = 0  # G steps
        self.last_logging_output: dict[str, Any] | None = None  # of a G step that is the whole update
        for mixture in self.mixtures:
            mixture.statistics = GateStatistics()
            mixture.step = "F"
        if self.settings is not None:
            check_trainer(trainer, self.settings)
            self.interval = self.settings.interval_of(bool(trainer.cfg.checkpoint.finetune_from_model))
            self.sgd = GateSgd(trainer, self.mixtures, self.settings)
            if self.settings.joint:
                self.joint = JointTraining(trainer, self.sgd)

    @property
    def alternates(self) -> bool:
        """Whether training takes both G steps and F steps."""
        return self.settings is not None and not self.settings.gates_only and not self.settings.joint

    def is_g_epoch(self, epoch: int) -> bool:
        """Tell whether G steps are taken in `epoch`, counted from 1."""
        takes_g_steps = self.settings is not None and not self.settings.joint
        return takes_g_steps and epoch % self.interval == 0

    def begin_epoch(self, epoch: int) -> None:
        """Note which epoch begins (1 is the first), and reset the statistics of training."""
        if self.epoch == 0 and self.alternates:
            logger.info(f"G steps are taken in the epochs that are a multiple of {self.interval}")
            warn_if_gates_never_learn(self.trainer, epoch, self.interval)
        self.epoch = epoch
        self.train_monitor.reset()

    def train_step(
        self, f_step: Callable[..., dict[str, Any] | None], samples: list, raise_oom: bool
    ) -> dict[str, Any] | None:
        """Make one update: a G step if this epoch has them, then the F step.

        With --mae-finetune gates (FTG), a G step is the whole update. With --mae-training joint, there is no
        G step, and the gates learn in fairseq's own step.

        Args:
            f_step: fairseq's own `Trainer.train_step`, as a function of the trainer and its arguments.
            samples: the micro-batches of the update.

        Returns:
            what `Trainer.train_step` returns.
        """
        # fairseq's train_step calls itself to try a batch again after an AMP overflow. The G step of that
        # update has been taken by then. Joint training begins again with `zero_grad`.
        if self.in_update:
            return f_step(self.trainer, samples, raise_oom)
        self.in_update = True
        self.has_data = False
        settings = self.settings
        logging_output: dict[str, Any] | None
        try:
            if settings is not None and settings.gates_only:
                logging_output = self._gates_only_step(samples)
            elif self.joint:
                with self.joint.learning():
                    logging_output = f_step(self.trainer, samples, raise_oom)
            else:
                if not self.paused and self.is_g_epoch(self.epoch):
                    self.g_step(samples)
                elif self.g_loss is not None:
                    # Without a new value, the log would show None; the last value is shown instead.
                    metrics.log_scalar("g_loss", self.g_loss, weight=0, priority=299, round=3)
                logging_output = f_step(self.trainer, samples, raise_oom)
        finally:
            self.in_update = False
        self.train_monitor.collect(self.mixtures, self.has_data)
        self.train_monitor.log()
        return logging_output

    def valid_step(
        self, valid_step: Callable[..., dict[str, Any] | None], sample: dict, raise_oom: bool
    ) -> dict[str, Any] | None:
        """Take a validation step by `valid_step`, fairseq's own method, and log the gate statistics."""
        self.has_data = False
        logging_output = valid_step(self.trainer, sample, raise_oom)
        self.valid_monitor.collect(self.mixtures, self.has_data)
        self.valid_monitor.log()
        return logging_output

    def g_step(self, samples: list) -> tuple[list[dict], float, GateStep]:
        """Take a G step (Algorithm 1) on all micro-batches of an update.

        Only gates change, and only if their gradient is finite. The model must have gate settings
        (`alternates`, or --mae-finetune gates).

        Returns:
            the criterion's logging outputs on this worker, the sum of their sample sizes without dummy
            batches, and the result of the step. If this worker has dummy batches only, the logging output of
            one of them is returned, because workers must agree on its keys.
        """
        sgd = self.sgd
        assert sgd is not None
        trainer, cfg = self.trainer, self.trainer.cfg
        loss_scale = loss_scale_of(trainer)
        utils.set_torch_seed(cfg.common.seed + trainer.get_num_updates() + G_SEED_OFFSET)
        trainer.get_model().set_num_updates(trainer.get_num_updates())
        trainer.model.train()
        trainer.criterion.train()
        logging_outputs: list[dict] = []
        loss_sum, sample_size = 0.0, 0.0
        sgd.clear()
        self.running_statistics.forget()
        with self._only_gates_learn(sgd.gates):
            for sample in samples:
                sample, is_dummy = trainer._prepare_sample(sample)
                passes = self.running_statistics.end_pass()
                try:
                    found = self._gradients_of(sample, is_dummy, loss_scale)
                except RuntimeError as error:
                    if "out of memory" not in str(error):
                        raise
                    found = None
                if found is None:  # here, where the graph of the failed pass is gone
                    # The other workers wait for this one in the all-reduce. It takes part with the gradients
                    # that it has.
                    logger.warning("ran out of memory in a G step; this batch is left out of the step")
                    self.running_statistics.forget(passes)
                    torch.cuda.empty_cache()
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
            loss_sum, total_size = step.sums
            self.g_loss = loss_sum / total_size / math.log(2)
            metrics.log_scalar("g_loss", self.g_loss, weight=total_size, priority=299, round=3)
        return logging_outputs, sample_size, step

    def _gradients_of(
        self, sample: dict[str, Any], is_dummy: bool, loss_scale: float
    ) -> tuple[Sequence[Tensor | None], float, float, dict]:
        """Compute the gradients of the gates on a micro-batch; a dummy batch has none.

        Returns:
            the gradients of the summed loss times `loss_scale`, None where a gate has none; the loss; the
            sample size; and the criterion's logging output.
        """
        assert self.sgd is not None
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
    def _only_gates_learn(self, gates: list[nn.Parameter]) -> Iterator[None]:
        """Freeze all parameters but the gates, and put the mixtures into their G step, inside the block."""
        assert self.settings is not None
        learning = set(gates)
        frozen = [p for p in self.trainer.get_model().parameters() if p.requires_grad and p not in learning]
        frozen += [p for p in self.trainer.get_criterion().parameters() if p.requires_grad]
        gates_frozen_in_f = not self.settings.gates_only
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
                parameter.requires_grad_(not gates_frozen_in_f)
            for mixture in self.mixtures:
                mixture.step = "F"

    def zero_grad(self) -> None:
        """Forget what the F step has passed so far, where fairseq forgets its gradients.

        It does so before each try of an update, after an overflow, and when memory has run out.
        """
        self.running_statistics.forget()
        if self.joint:
            self.joint.zero_grad()

    def update_succeeded(self) -> None:
        """End the F step, now that fairseq counts the update, and before EMA looks at the model.

        fairseq counts no update whose gradient overflowed.
        """
        if self.in_update and not (self.settings is not None and self.settings.gates_only):
            self.running_statistics.update()
        if self.joint:
            self.joint.update_succeeded()

    def begin_batch(self, sample: dict[str, Any], is_dummy: bool) -> None:
        """Note the batch that comes next.

        A dummy batch takes part on a worker that has run out of data. Its loss counts nothing, and it enters
        no statistics.
        """
        self.has_data = self.has_data or not is_dummy
        self.running_statistics.end_pass()
        for mixture in self.mixtures:
            mixture.is_discarded = is_dummy
        if self.joint:
            self.joint.begin_batch(sample, is_dummy)

    def _gates_only_step(self, samples: list) -> dict | None:
        """Take a G step that counts as the whole update (FTG), and log it as fairseq's `train_step` does.

        Returns:
            the logging output, or None if the step was skipped. Such an update does not count.

        Raises:
            FloatingPointError: the gradient is not finite, and there is no loss scale that could be lowered.
            RuntimeError: this worker, one of several, has run out of memory in all batches of its first
                update.
        """
        trainer = self.trainer
        metrics.log_start_time("train_wall", priority=800, round=0)
        logging_outputs, sample_size, step = self.g_step(samples)
        adapt_loss_scale(trainer, step.norm)
        if step.skipped:
            metrics.log_stop_time("train_wall")
            return None
        if logging_outputs:
            self.last_logging_output = logging_outputs[0]
        elif self.last_logging_output:  # workers must agree on its keys; its values are ignored
            logging_outputs = [self.last_logging_output]
        else:
            raise RuntimeError(
                "out of memory in the first G step; give a smaller --max-tokens or --batch-size"
            )
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


def bcd_of(trainer: Trainer) -> BlockCoordinateDescent | None:
    """Return the BlockCoordinateDescent of a trainer, or None if its model has no gates.

    The first call makes it.
    """
    if not hasattr(trainer, "_bcd"):
        model = trainer.get_model()
        trainer._bcd = (
            BlockCoordinateDescent(trainer)
            if hasattr(model, "gate_training") and expert_mixtures(model)
            else None
        )
    return trainer._bcd
