"""Let a training continue as it began, and let fairseq say where it would not."""

import logging
import os
from collections.abc import Callable
from typing import Any

import torch
from fairseq.dataclass.configs import CheckpointConfig
from fairseq.optim import FairseqOptimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer
from torch import Tensor

from modular_fairseq.patches.precision import float32_like
from modular_fairseq.patches.registry import replace
from modular_fairseq.training import checkpoints
from modular_fairseq.training.former_defaults import warn_of_other_defaults
from modular_fairseq.training.optimizer_state import (
    OtherParametersError,
    compare_parameters,
    refusal,
    refuse_another_precision,
)

logger = logging.getLogger(__name__)


@replace("fairseq.optim.fairseq_optimizer.FairseqOptimizer.load_state_dict")
def compare_optimizer_states(
    load_state_dict: Callable,
    optimizer: FairseqOptimizer,
    state_dict: dict[str, Any],
    optimizer_overrides: dict[str, Any] | None = None,
) -> None:
    """Refuse a saved state if the optimizer has another number of parameters, before it is loaded.

    torch's message about parameter groups has no numbers. Under --fp16 nothing notices that the vector of all
    parameters has another length (fairseq/optim/fairseq_optimizer.py:79-93). Each of the optimizers of
    --optimizer composite is compared by itself.
    """
    compare_parameters(optimizer.optimizer, state_dict)
    return load_state_dict(optimizer, state_dict, optimizer_overrides)


@replace("fairseq.trainer.Trainer.load_checkpoint")
def refuse_other_optimizers(
    load_checkpoint: Callable,
    trainer: Trainer,
    filename: str,
    reset_optimizer: bool = False,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """Say how a training can go on from a checkpoint whose optimizer trained other parameters.

    fairseq would end with a traceback of torch, or crash in the first update under --fp16. If the checkpoint
    is one of another precision, it ends in an AssertionError about classes (fairseq/trainer.py:588-632).
    """
    try:
        return load_checkpoint(trainer, filename, reset_optimizer, *args, **kwargs)
    except (OtherParametersError, AssertionError) as error:
        if not reset_optimizer:
            refuse_another_precision(trainer.cfg, filename)
        if isinstance(error, AssertionError):
            raise
        raise refusal(trainer.get_model(), filename, error) from error


ADAMS = ("FairseqAdam", "TorchAdam")  # classes of optimizers that load each other's state


@replace("fairseq.trainer.Trainer._build_optimizer")
def continue_with_another_adam(build_optimizer: Callable, trainer: Trainer) -> None:
    """Let --optimizer torch_adam continue a training of adam, and adam one of torch_adam.

    fairseq compares the names of the classes and advises --reset-optimizer, which would lose the moments
    (fairseq/trainer.py:605-614).
    """
    build_optimizer(trainer)
    last = (trainer._optim_history or [{}])[-1]
    present = type(trainer._optimizer).__name__
    if present in ADAMS and last.get("optimizer_name") in ADAMS:
        last["optimizer_name"] = present


@replace("fairseq.trainer.Trainer.load_checkpoint")
def name_former_defaults(
    load_checkpoint: Callable, trainer: Trainer, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """Warn if a training continues with other defaults of options than those of its checkpoint.

    fairseq takes the options of a training from the command line only, also when it continues
    (fairseq/trainer.py:467-640). The first worker warns. A training that starts from the weights of
    --finetune-from-model is a new one.
    """
    extra_state = load_checkpoint(trainer, filename, *args, **kwargs)
    continues = extra_state is not None and filename != trainer.cfg.checkpoint.finetune_from_model
    if continues and trainer.data_parallel_rank == 0:
        warn_of_other_defaults(trainer, filename)
    return extra_state


@replace("fairseq.trainer.Trainer.load_checkpoint")
def begin_ema_with_the_weights_of_a_checkpoint(
    load_checkpoint: Callable, trainer: Trainer, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """Let --store-ema begin with the weights of a checkpoint that has no EMA.

    fairseq means to do so, but has deleted these weights when it reads them, and ends in a KeyError, for
    example with --finetune-from-model (fairseq/trainer.py:585-589 and 659-667).
    """
    ema = trainer.cfg.ema
    if not (ema.store_ema and os.path.isfile(filename)) or "ema" in extra_state_of(filename):
        return load_checkpoint(trainer, filename, *args, **kwargs)
    ema.store_ema = False
    try:
        extra_state = load_checkpoint(trainer, filename, *args, **kwargs)
    finally:
        ema.store_ema = True
    logger.warning(
        f"the checkpoint {filename} has no moving average of the weights (EMA); the average of this training "
        "begins with the weights of the checkpoint"
    )
    trainer.ema.restore(trainer.get_model().state_dict(), build_fp32_params=ema.ema_fp32)
    return extra_state


def extra_state_of(filename: str) -> dict[str, Any]:
    """Return what a checkpoint has of the state of its training."""
    return checkpoints.load_checkpoint(filename).get("extra_state") or {}


WAITS = ("num_bad_epochs", "cooldown_counter")  # of torch's ReduceLROnPlateau
HOW_THE_SCALE_CHANGES = ("growth_factor", "backoff_factor", "growth_interval")  # of torch's GradScaler


@replace("fairseq.optim.lr_scheduler.reduce_lr_on_plateau.ReduceLROnPlateauLRSchedule.state_dict")
def save_how_long_a_plateau_lasts(state_dict: Callable, schedule: ReduceLROnPlateauLRSchedule) -> dict:
    """Save for how many epochs --lr-scheduler reduce_lr_on_plateau has waited.

    fairseq saves the best loss alone (fairseq/optim/lr_scheduler/reduce_lr_on_plateau.py:107-112), so a
    training that continues waits anew.
    """
    return {**state_dict(schedule), **{name: getattr(schedule.lr_scheduler, name) for name in WAITS}}


@replace("fairseq.optim.lr_scheduler.reduce_lr_on_plateau.ReduceLROnPlateauLRSchedule.load_state_dict")
def load_how_long_a_plateau_lasts(
    load_state_dict: Callable, schedule: ReduceLROnPlateauLRSchedule, state_dict: dict[str, Any]
) -> None:
    """Go on with the epochs that --lr-scheduler reduce_lr_on_plateau has waited.

    See `save_how_long_a_plateau_lasts` (fairseq/optim/lr_scheduler/reduce_lr_on_plateau.py:114-118).
    """
    load_state_dict(schedule, state_dict)
    for name in WAITS:
        if name in state_dict:  # checkpoints that this plugin did not save have neither
            setattr(schedule.lr_scheduler, name, state_dict[name])


AMP_SCALER = "amp_scaler"  # the key of an optimizer's state with the state of the scaler of --amp


@replace("fairseq.optim.amp_optimizer.AMPOptimizer.state_dict")
def save_the_loss_scale_of_amp(state_dict: Callable, optimizer: AMPOptimizer) -> dict[str, Any]:
    """Save the loss scale of --amp, and for how many updates it has not changed.

    fairseq saves the loss scale of --fp16 only (fairseq/optim/fp16_optimizer.py:80-86). With --amp it saves
    the state of the optimizer (fairseq/optim/fairseq_optimizer.py:75-77), so a training that continues begins
    with the initial scale again.
    """
    return {**state_dict(optimizer), AMP_SCALER: optimizer.scaler.state_dict()}


@replace("fairseq.optim.amp_optimizer.AMPOptimizer.load_state_dict")
def load_the_loss_scale_of_amp(
    load_state_dict: Callable, optimizer: AMPOptimizer, state_dict: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """Go on with the loss scale of --amp, which --amp-scale-window changes as it is given now.

    See `save_the_loss_scale_of_amp` (fairseq/optim/fairseq_optimizer.py:79-93).
    """
    load_state_dict(optimizer, state_dict, *args, **kwargs)
    scaler = state_dict.get(AMP_SCALER)  # checkpoints that this plugin did not save have none
    if scaler and optimizer.scaler.is_enabled():
        own = {name: optimizer.scaler.state_dict()[name] for name in HOW_THE_SCALE_CHANGES}
        optimizer.scaler.load_state_dict({**scaler, **own})


FLOAT32_WEIGHTS = "float32_weights"  # the key of an optimizer's state with the weights that it trains


@replace("fairseq.optim.fp16_optimizer._FP16OptimizerMixin.state_dict")
def save_the_float32_weights(state_dict: Callable, optimizer: Any) -> dict[str, Any]:
    """Save the float32 weights of --fp16 and --bf16 with the state of the optimizer.

    The optimizer trains copies of the weights in float32. fairseq saves the weights of the model, which are
    rounded to half precision, and makes new copies of these when a training continues
    (fairseq/optim/fp16_optimizer.py:79-99). So a training that continues differs from an uninterrupted one.
    A checkpoint becomes larger by the size of its weights in float32.
    """
    weights = [weight.to("cpu", copy=True) for weight in float32_like(optimizer, gradients=False)]
    return {**state_dict(optimizer), FLOAT32_WEIGHTS: weights}


@replace("fairseq.optim.fp16_optimizer._FP16OptimizerMixin.load_state_dict")
def load_the_float32_weights(
    load_state_dict: Callable, optimizer: Any, state_dict: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """Continue a training in --fp16 or --bf16 with the float32 weights that its checkpoint has.

    Weights that the model has in float32, such as gates, are loaded with the model. The others are used only
    if they round to the weights of the model. They do not if somebody has changed the weights in the
    checkpoint, or if a training with --fp16-no-flatten-grads continues with --bf16. A warning then says that
    the training goes on from the rounded weights, as it always does in fairseq
    (fairseq/optim/fp16_optimizer.py:86-99).
    """
    load_state_dict(optimizer, state_dict, *args, **kwargs)
    saved = state_dict.get(FLOAT32_WEIGHTS)  # checkpoints that this plugin did not save have none
    if not saved:
        return
    halves, fulls = list(optimizer.fp16_params), float32_like(optimizer, gradients=False)
    both = zip(saved, halves, fulls, strict=False)
    rounded = [each for each in both if each[1].dtype != torch.float32]
    if len(saved) == len(halves) and all(_rounds_to(weight, half) for weight, half, _ in rounded):
        for weight, _, full in rounded:
            full.copy_(weight)
    else:
        logger.warning(
            "the training goes on from weights that are rounded to half precision, because the float32 "
            "weights in the checkpoint do not round to those of the model; this is so if the precision has "
            "changed"
        )


def _rounds_to(full: Tensor, half: Tensor) -> bool:
    """Tell whether a float32 weight has the shape of another in half precision, and rounds to it."""
    return full.shape == half.shape and torch.equal(full.to(half.device, half.dtype), half.detach())


LOSS_SCALER = "loss_scaler"  # the key of an optimizer's state with what decides when the loss scale changes
COUNTS = ("_iter", "_last_overflow_iter", "_last_rescale_iter", "_overflows_since_rescale")


@replace(
    "fairseq.optim.fp16_optimizer._FP16OptimizerMixin.state_dict",
    "fairseq.optim.fp16_optimizer._MemoryEfficientFP16OptimizerMixin.state_dict",
)
def save_when_the_loss_scale_changes(state_dict: Callable, optimizer: Any) -> dict[str, Any]:
    """Save for how many updates no gradient has overflowed, with --fp16 and --memory-efficient-fp16.

    After enough of them the loss scale grows. fairseq saves the loss scale alone
    (fairseq/optim/fp16_optimizer.py:79-84 and 349-354), so in a training that continues it grows later.
    """
    state = state_dict(optimizer)
    if optimizer.scaler is not None:
        state[LOSS_SCALER] = {name: getattr(optimizer.scaler, name) for name in COUNTS}
    return state


@replace(
    "fairseq.optim.fp16_optimizer._FP16OptimizerMixin.load_state_dict",
    "fairseq.optim.fp16_optimizer._MemoryEfficientFP16OptimizerMixin.load_state_dict",
)
def load_when_the_loss_scale_changes(
    load_state_dict: Callable, optimizer: Any, state_dict: dict[str, Any], *args: Any, **kwargs: Any
) -> None:
    """Continue to count the updates in which no gradient has overflowed.

    See `save_when_the_loss_scale_changes` (fairseq/optim/fp16_optimizer.py:86-99 and 356-385).
    """
    load_state_dict(optimizer, state_dict, *args, **kwargs)
    saved = state_dict.get(LOSS_SCALER, {})  # checkpoints that this plugin did not save have none
    if optimizer.scaler is not None:
        vars(optimizer.scaler).update({name: saved[name] for name in COUNTS if name in saved})


@replace("fairseq.checkpoint_utils.load_checkpoint")
def take_the_step_that_follows_a_checkpoint(
    load_checkpoint: Callable, cfg: CheckpointConfig, trainer: Trainer, **kwargs: Any
) -> Any:
    """Let --lr-scheduler reduce_lr_on_plateau know the loss of the epoch whose checkpoint is loaded.

    fairseq saves a checkpoint before the schedule sees the loss of the epoch (fairseq_cli/train.py:205-210),
    and does not show it the loss afterwards (fairseq/checkpoint_utils.py:301). So a training that continues
    forgets that this epoch was bad, or that the learning rate falls after it.
    """
    extra_state, epoch_itr = load_checkpoint(cfg, trainer, **kwargs)
    schedule = trainer.lr_scheduler
    if isinstance(schedule, ReduceLROnPlateauLRSchedule) and extra_state and not cfg.reset_lr_scheduler:
        at, loss = extra_state["train_iterator"], extra_state["val_loss"]
        ended = at["iterations_in_epoch"] == 0 and at["epoch"] == epoch_itr.next_epoch_idx > 1
        if ended and loss is not None:
            trainer.lr_step(at["epoch"] - 1, loss)
    return extra_state, epoch_itr
