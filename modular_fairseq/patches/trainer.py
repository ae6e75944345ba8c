"""Let fairseq's Trainer check the model and the criterion, take G steps, and log gate statistics.

The Trainer offers no hook for this that works with every task. For a model of fairseq, each patched method
does the same as before.
"""

import logging
from collections.abc import Callable
from typing import Any

from fairseq.trainer import Trainer

from modular_fairseq.models.assembly import trained_outside
from modular_fairseq.patches.registry import replace
from modular_fairseq.training.bcd import bcd_of
from modular_fairseq.training.criterion_check import check_criterion

logger = logging.getLogger(__name__)


@replace("fairseq.trainer.Trainer.begin_epoch")
def check_and_begin_epoch(begin_epoch: Callable, trainer: Trainer, epoch: int) -> None:
    """Compare the model with the criterion before an epoch, and tell block coordinate descent of the epoch.

    fairseq builds the model and the criterion independently of each other (fairseq_cli/train.py:86-94), so an
    auxiliary loss of the model could silently be left out. The comparison comes before any thread reads data.
    Before the first epoch, this patch also logs how many parameters learn outside the main optimizer.
    fairseq's "num. trained" does not count them (fairseq_cli/train.py:103-108).
    """
    check_criterion(trainer)
    is_first = not hasattr(trainer, "_bcd")
    if bcd := bcd_of(trainer):
        bcd.begin_epoch(epoch)
    if is_first and (outside := trained_outside(trainer.get_model())):
        count = sum(parameter.numel() for parameter in outside)
        logger.info(f"num. params trained outside the main optimizer: {count:,}")
    return begin_epoch(trainer, epoch)


@replace("fairseq.trainer.Trainer.train_step")
def take_g_steps(
    train_step: Callable, trainer: Trainer, samples: list, raise_oom: bool = False
) -> dict[str, Any] | None:
    """Take a G step on the whole batch before fairseq's own step, in epochs that have G steps.

    G steps train the gates of a mixture of attentive experts. A task of fairseq cannot take them, because it
    sees one micro-batch at a time and no second optimizer (fairseq/trainer.py:816-860). Therefore a G step
    comes before everything else in `Trainer.train_step` (fairseq/trainer.py:797).
    """
    bcd = bcd_of(trainer)
    return bcd.train_step(train_step, samples, raise_oom) if bcd else train_step(trainer, samples, raise_oom)


@replace("fairseq.trainer.Trainer.begin_valid_epoch")
def reset_gate_statistics(begin_valid_epoch: Callable, trainer: Trainer, epoch: int) -> None:
    """Reset the gate statistics of validation when a validation begins (fairseq/trainer.py:787-791).

    They would otherwise include the batches of earlier validations.
    """
    if bcd := bcd_of(trainer):
        bcd.valid_monitor.reset()
    return begin_valid_epoch(trainer, epoch)


@replace("fairseq.trainer.Trainer.valid_step")
def log_gate_statistics(
    valid_step: Callable, trainer: Trainer, sample: dict, raise_oom: bool = False
) -> dict[str, Any] | None:
    """Log the gate statistics of validation batches beside fairseq's own values.

    fairseq's `Trainer.valid_step` (fairseq/trainer.py:1131-1190) logs only what the criterion returns.
    """
    bcd = bcd_of(trainer)
    return bcd.valid_step(valid_step, sample, raise_oom) if bcd else valid_step(trainer, sample, raise_oom)
