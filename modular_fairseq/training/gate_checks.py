"""Compare how gates learn with the options of a trainer, before training."""

import logging
import math

from fairseq.trainer import Trainer

from modular_fairseq.models.mae import GateTraining
from modular_fairseq_cli.errors import UsageError

logger = logging.getLogger(__name__)

DDP_BACKENDS = ("c10d", "pytorch_ddp", "legacy_ddp", "no_c10d")


def check_trainer(trainer: Trainer, settings: GateTraining) -> None:
    """Refuse options of fairseq-train that do not fit the way in which gates learn.

    Raises:
        UsageError: gates cannot have an SGD of their own with these options, there is no trained model whose
            gates --mae-finetune could train, or --store-ema would have no effect.
    """
    cfg = trainer.cfg
    what = "the gates' own SGD" if settings.joint else "G steps"
    instead = "train the gates with everything else by --mae-training joint_main"
    backend = cfg.distributed_training.ddp_backend
    if backend not in DDP_BACKENDS:
        raise UsageError(
            f"--ddp-backend {backend} does not work with {what}; use one of {', '.join(DDP_BACKENDS)}, or "
            f"{instead}"
        )
    if cfg.optimization.use_bmuf:
        raise UsageError(f"--use-bmuf does not work with {what}; leave it out, or {instead}")
    files = cfg.checkpoint
    goes_on = trainer.get_num_updates() or trainer._optim_history  # --reset-optimizer counts from 0
    if settings.finetunes and not (
        files.finetune_from_model or files.restore_file != "checkpoint_last.pt" or goes_on
    ):
        raise UsageError(
            "--mae-finetune gates or gates+output trains a part of a trained model; give the model's "
            "checkpoint as --finetune-from-model"
        )
    if settings.gates_only and cfg.ema.store_ema:
        raise UsageError(
            "--store-ema has no effect with --mae-finetune gates, which takes no F steps; leave it out"
        )


def warn_if_gates_never_learn(trainer: Trainer, epoch: int, interval: int) -> None:
    """Warn if training ends before the first epoch with G steps.

    Args:
        epoch: number of the epoch that begins, from 1. Later than the first such epoch, there is no warning.
        interval: number of the first epoch with G steps.
    """
    limits = trainer.cfg.optimization
    if 0 < limits.max_epoch < interval:
        end = f"--max-epoch {limits.max_epoch} is less than"
    elif limits.max_update > 0 and _ends_before(trainer, epoch, interval):
        end = f"--max-update {limits.max_update} ends training before epoch {interval}, the first of"
    else:
        return
    logger.warning(
        f"{end} --mae-gate-interval {interval}: no epoch has G steps, so the gates are not trained"
    )


def warn_of_another_interval(trainer: Trainer, fine_tuned: bool, filename: str) -> None:
    """Warn if a training continues with another default of --mae-gate-interval than it began with.

    The default depends on --finetune-from-model, which fairseq does not need to continue.

    Args:
        trainer: the trainer.
        fine_tuned: whether the training began with --finetune-from-model.
        filename: the path of the checkpoint that the training continues from.
    """
    settings: GateTraining | None = getattr(trainer.get_model(), "gate_training", None)
    if settings is None or settings.joint:
        return
    given = bool(trainer.cfg.checkpoint.finetune_from_model)
    then, now = settings.interval_of(fine_tuned), settings.interval_of(given)
    if then != now:
        logger.warning(
            f"{filename} was trained {'with' if fine_tuned else 'without'} --finetune-from-model, on which "
            f"the default of --mae-gate-interval depends: it was {then}, and is {now} now; to continue as "
            f"before, give --mae-gate-interval {then}"
        )


def _ends_before(trainer: Trainer, epoch: int, first: int) -> bool:
    """Tell whether --max-update is reached before epoch `first`, as far as that is known."""
    updates = _updates_before(trainer, epoch, first)
    return updates is not None and trainer.cfg.optimization.max_update <= trainer.get_num_updates() + updates


def _updates_before(trainer: Trainer, epoch: int, first: int) -> int | None:
    """Return the number of updates from now to the beginning of epoch `first`, where `epoch` begins.

    Returns:
        the number, or None if there is nothing to count: `first` has begun, or the trainer has no iterator
        over its data, as in a program that calls `Trainer.train_step` itself.
    """
    iterator = getattr(trainer, "_epoch_iterator", None)
    if iterator is None or first <= epoch:
        return None
    frequencies = trainer.cfg.optimization.update_freq
    whole = math.floor if trainer.cfg.optimization.skip_remainder_batch else math.ceil
    updates = 0
    for each in range(epoch, first):
        batches = len(iterator) - (iterator.iterations_in_epoch if each == epoch else 0)
        updates += whole(batches / frequencies[min(each, len(frequencies)) - 1])
    return updates
