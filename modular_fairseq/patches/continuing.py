"""Let a training continue as it began, and let fairseq say where it would not."""

from collections.abc import Callable
from typing import Any

from fairseq.dataclass.configs import CheckpointConfig
from fairseq.optim import FairseqOptimizer
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.optim.lr_scheduler.reduce_lr_on_plateau import ReduceLROnPlateauLRSchedule
from fairseq.trainer import Trainer

from modular_fairseq.patches.registry import replace
from modular_fairseq.training.former_defaults import warn_of_other_defaults
from modular_fairseq.training.optimizer_state import OtherParametersError, compare_parameters, refusal


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
    load_checkpoint: Callable, trainer: Trainer, filename: str, *args: Any, **kwargs: Any
) -> Any:
    """Say how a training can go on from a checkpoint whose optimizer trained other parameters.

    fairseq would end with a traceback of torch, or crash in the first update under --fp16
    (fairseq/trainer.py:588-632).
    """
    try:
        return load_checkpoint(trainer, filename, *args, **kwargs)
    except OtherParametersError as error:
        raise refusal(trainer.get_model(), filename, error) from error


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
