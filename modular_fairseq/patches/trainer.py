"""fairseq's Trainer: checks of model and criterion, G steps and gate statistics.

The Trainer has no place for them that works with every task. For a model of fairseq, each method does what it
did.
"""

import logging
from collections.abc import Callable

from fairseq.trainer import Trainer

from modular_fairseq.models.assembly import trained_outside
from modular_fairseq.patches.registry import replace
from modular_fairseq.training.bcd import bcd_of
from modular_fairseq.training.criterion_check import check_criterion

logger = logging.getLogger(__name__)


@replace("fairseq.trainer.Trainer.begin_epoch")
def check_and_begin_epoch(begin_epoch: Callable, trainer: Trainer, epoch: int) -> None:
    """Before an epoch, when no thread reads data yet, model and criterion are compared, and the BCD hook is
    told.

    fairseq builds model and criterion without telling one of the other (fairseq_cli/train.py:86-94). Before
    the first epoch, the number of parameters is logged that learn outside the main optimizer, which fairseq's
    "num. trained" leaves out (fairseq_cli/train.py:103-108).
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
def take_g_steps(train_step: Callable, trainer: Trainer, samples: list, raise_oom: bool = False):
    """An update is a G step on the whole batch, in epochs that have them, and then fairseq's own step.

    fairseq's tasks see one micro-batch at a time and no optimizer of other parameters
    (fairseq/trainer.py:816-860), so a G step must come before (fairseq/trainer.py:797).
    """
    bcd = bcd_of(trainer)
    return bcd.train_step(train_step, samples, raise_oom) if bcd else train_step(trainer, samples, raise_oom)


@replace("fairseq.trainer.Trainer.begin_valid_epoch")
def reset_gate_statistics(begin_valid_epoch: Callable, trainer: Trainer, epoch: int) -> None:
    """Gate statistics of a validation begin anew (fairseq/trainer.py:787-791)."""
    if bcd := bcd_of(trainer):
        bcd.valid_monitor.reset()
    return begin_valid_epoch(trainer, epoch)


@replace("fairseq.trainer.Trainer.valid_step")
def log_gate_statistics(valid_step: Callable, trainer: Trainer, sample: dict, raise_oom: bool = False):
    """Gate statistics of validation batches are logged beside fairseq's own
    (fairseq/trainer.py:1131-1190)."""
    bcd = bcd_of(trainer)
    return bcd.valid_step(valid_step, sample, raise_oom) if bcd else valid_step(trainer, sample, raise_oom)
