"""The training of gates of MAE: block coordinate descent (section 3), and NOBCD (appendix A).

`GateTrainer` is a hook of fairseq's Trainer (`training/hooks.py`).

In an epoch with G steps (Algorithm 3), `train_step(samples)` first takes a G step on the whole update
(`training/g_steps.py`). Then it takes fairseq's ordinary step, which is the F step. The gates are outside
the main optimizer (`requires_grad` is False), so no optimizer, weight decay, gradient clipping or precision
mode can change them. The number of updates and the learning-rate schedule count F steps only.

With --mae-training joint, fairseq's ordinary step trains gates and experts together
(`training/joint_training.py`). With --mae-finetune gates, the G step is the whole update
(`training/gates_only.py`).
"""

import logging
from typing import Any

from fairseq.trainer import Trainer

from modular_fairseq.models.mae import GateTraining, expert_mixtures
from modular_fairseq.modules.gate_statistics import GateStatistics
from modular_fairseq.training.g_steps import GStepResult, GSteps
from modular_fairseq.training.gate_checks import check_trainer, warn_if_gates_never_learn
from modular_fairseq.training.gate_monitor import GateMonitor
from modular_fairseq.training.gate_sgd import GateSgd
from modular_fairseq.training.gates_only import GatesOnlyTraining
from modular_fairseq.training.hooks import Step, TrainerHook, hooks_of, register_trainer_hook
from modular_fairseq.training.joint_training import JointTraining
from modular_fairseq.training.running_statistics import RunningStatistics

logger = logging.getLogger(__name__)


class GateTrainer(TrainerHook):
    """Train the gates of one trainer's model, log gate statistics and keep gate buffers equal.

    Attributes:
        settings: how the gates learn, or None if the main optimizer trains them (--mae-training joint_main).
        sgd: the SGD of the gates, or None as above.
        joint: joint training by that SGD, or None with another --mae-training.
        g_steps: the G steps by that SGD, or None if there are none.
        gates_only: the fine-tuning of the gates alone by G steps, or None with another --mae-finetune.
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
        self.g_steps: GSteps | None = None
        self.joint: JointTraining | None = None
        self.gates_only: GatesOnlyTraining | None = None
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
        for mixture in self.mixtures:
            mixture.statistics = GateStatistics()
            mixture.step = "F"
        if self.settings is not None:
            check_trainer(trainer, self.settings)
            self.interval = self.settings.interval_of(bool(trainer.cfg.checkpoint.finetune_from_model))
            self.sgd = GateSgd(trainer, self.mixtures, self.settings)
            if self.settings.joint:
                self.joint = JointTraining(trainer, self.sgd)
            else:
                self.g_steps = GSteps(
                    trainer, self.sgd, self.mixtures, self.running_statistics, self.settings
                )
                if self.settings.gates_only:
                    self.gates_only = GatesOnlyTraining(trainer, self.g_steps)

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

    def train_step(self, f_step: Step, samples: list, raise_oom: bool) -> dict[str, Any] | None:
        """Make one update: a G step if this epoch has them, then `f_step`, the F step.

        With --mae-finetune gates (FTG), a G step is the whole update. With --mae-training joint, there is no
        G step, and the gates learn in fairseq's own step.
        """
        # fairseq's train_step calls itself to try a batch again after an AMP overflow. The G step of that
        # update has been taken by then. Joint training begins again with `zero_grad`.
        if self.in_update:
            return f_step(samples, raise_oom)
        self.in_update = True
        self.has_data = False
        logging_output: dict[str, Any] | None
        try:
            if self.gates_only:
                logging_output = self.gates_only.update(samples)
            elif self.joint:
                with self.joint.learning():
                    logging_output = f_step(samples, raise_oom)
            else:
                if not self.paused and self.is_g_epoch(self.epoch):
                    self.g_step(samples)
                elif self.g_steps:
                    self.g_steps.log_last_loss()
                logging_output = f_step(samples, raise_oom)
        finally:
            self.in_update = False
        self.train_monitor.collect(self.mixtures, self.has_data)
        self.train_monitor.log()
        return logging_output

    def begin_validation(self) -> None:
        """Reset the gate statistics of validation, which would otherwise include earlier validations."""
        self.valid_monitor.reset()

    def valid_step(self, step: Step, sample: dict, raise_oom: bool) -> dict[str, Any] | None:
        """Validate on one batch by `step`, and log the gate statistics."""
        self.has_data = False
        logging_output = step(sample, raise_oom)
        self.valid_monitor.collect(self.mixtures, self.has_data)
        self.valid_monitor.log()
        return logging_output

    def g_step(self, samples: list) -> GStepResult:
        """Take a G step on all micro-batches of an update. The model must have gate settings."""
        assert self.g_steps is not None
        return self.g_steps.take(samples)

    def zero_grad(self) -> None:
        """Forget the gradients of jointly trained gates, and the statistics of the gates' inputs."""
        self.running_statistics.forget()
        if self.joint:
            self.joint.zero_grad()

    def update_succeeded(self) -> None:
        """End the F step before EMA looks at the model.

        Gates that learn jointly take their step, and the running statistics of gates are updated.
        """
        if self.in_update and not self.gates_only:
            self.running_statistics.update()
        if self.joint:
            self.joint.update_succeeded()

    def begin_batch(self, sample: dict[str, Any], is_dummy: bool) -> None:
        """Note the batch that comes next. A dummy batch enters no statistics."""
        self.has_data = self.has_data or not is_dummy
        self.running_statistics.end_pass()
        for mixture in self.mixtures:
            mixture.is_discarded = is_dummy
        if self.joint:
            self.joint.begin_batch(sample, is_dummy)


@register_trainer_hook
def train_gates(trainer: Trainer) -> GateTrainer | None:
    """Make the GateTrainer of a trainer, or return None if its model has no gates."""
    model = trainer.get_model()
    return GateTrainer(trainer) if hasattr(model, "gate_training") and expert_mixtures(model) else None


def gate_trainer_of(trainer: Trainer) -> GateTrainer | None:
    """Return the GateTrainer of a trainer, or None if its model has no gates."""
    return next((hook for hook in hooks_of(trainer) if isinstance(hook, GateTrainer)), None)
