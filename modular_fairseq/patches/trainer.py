"""Let fairseq's Trainer check the model and the criterion, and call the hooks of mechanisms.

The Trainer offers no hook that works with every task. `training/hooks.py` declares what hooks may do. For a
model without hooks, each method that calls them does the same as before.
"""

import functools
import logging
from collections.abc import Callable
from typing import Any

import torch
from fairseq.distributed import LegacyDistributedDataParallel
from fairseq.tasks.fairseq_task import FairseqTask
from fairseq.trainer import Trainer

from modular_fairseq.models.assembly import trained_outside
from modular_fairseq.patches.registry import replace
from modular_fairseq.training.alignments import return_attention_to_the_criterion
from modular_fairseq.training.compilation import compile_if_asked, without_programs
from modular_fairseq.training.criterion_check import check_command_line
from modular_fairseq.training.hooks import hooks_of, made_hooks_of
from modular_fairseq.training.unused_parameters import show_parameters_of_the_criterion

logger = logging.getLogger(__name__)


@replace("fairseq.trainer.Trainer.begin_epoch")
def check_and_begin_epoch(begin_epoch: Callable, trainer: Trainer, epoch: int) -> None:
    """Compare the model with the criterion before an epoch, and tell the hooks that an epoch begins.

    fairseq builds the model and the criterion independently of each other (fairseq_cli/train.py:86-94), so an
    auxiliary loss of the model could silently be left out. The comparison comes before any thread reads data.
    Before the first epoch, this patch also logs how many parameters learn outside the main optimizer.
    fairseq's "num. trained" does not count them (fairseq_cli/train.py:103-108). With --compile, the layers
    are compiled from here on. With --find-unused-parameters, the model names the parameters that only the
    criterion uses. torch would take them for unused (fairseq/models/distributed_fairseq_model.py:62). For the
    criterion that learns from word alignments, the decoder returns attention weights in training, too.
    """
    check_command_line(trainer)
    for hook in hooks_of(trainer):
        hook.begin_epoch(epoch)
    if not hasattr(trainer, "_has_begun"):
        trainer._has_begun = True
        show_parameters_of_the_criterion(trainer)
        return_attention_to_the_criterion(trainer)
        compile_if_asked(trainer)
        if outside := trained_outside(trainer.get_model()):
            count = sum(parameter.numel() for parameter in outside)
            logger.info(f"num. params trained outside the main optimizer: {count:,}")
    return begin_epoch(trainer, epoch)


@replace("fairseq.trainer.Trainer.train_step")
def let_hooks_make_updates(
    train_step: Callable, trainer: Trainer, samples: list, raise_oom: bool = False
) -> dict[str, Any] | None:
    """Let hooks make an update, such as a step of the gates on the whole batch before fairseq's own step.

    A task of fairseq cannot do so, because it sees one micro-batch at a time and no second optimizer
    (fairseq/trainer.py:816-860). Therefore hooks come before everything else in `Trainer.train_step`
    (fairseq/trainer.py:797).
    """
    step = functools.partial(train_step, trainer)
    for hook in hooks_of(trainer):
        step = functools.partial(hook.train_step, step)
    return step(samples, raise_oom)


@replace("fairseq.trainer.Trainer.train_step")
def put_dummy_batches_first(
    train_step: Callable, trainer: Trainer, samples: list, raise_oom: bool = False
) -> dict[str, Any] | None:
    """Let the last micro-batch of an update be no dummy batch if the worker has another one.

    At the end of an epoch a worker may lack the last micro-batch of --update-freq. fairseq then takes a dummy
    batch for it, and drops the sample size and the logged values of all micro-batches of this worker in the
    update, but not their gradients (fairseq/trainer.py:896-900). So the gradient became too large, and
    `--update-freq 2` on two workers gave another update than `--update-freq 4` on one.
    """
    has_data = [bool(sample) for sample in samples]
    if any(has_data) and not all(has_data):
        samples = sorted(samples, key=bool)
    return train_step(trainer, samples, raise_oom)


@replace("fairseq.tasks.fairseq_task.FairseqTask.train_step")
def let_dummy_batches_count_nothing(
    train_step: Callable,
    task: FairseqTask,
    sample: dict[str, Any],
    model: Any,
    criterion: Any,
    optimizer: Any,
    update_num: int,
    ignore_grad: bool = False,
    **kwargs: Any,
) -> tuple[Any, Any, dict[str, Any]]:
    """Return a sample size and logged values of 0 for a dummy batch, whose gradient is 0.

    fairseq counts a dummy batch as data unless it is the last micro-batch of the update
    (fairseq/tasks/fairseq_task.py:505-544, fairseq/trainer.py:896-900).
    """
    loss, sample_size, logging_output = train_step(
        task, sample, model, criterion, optimizer, update_num, ignore_grad, **kwargs
    )
    if ignore_grad:
        sample_size = sample_size * 0
        logging_output = {name: _zero(value) for name, value in logging_output.items()}
    return loss, sample_size, logging_output


def _zero(value: Any) -> Any:
    return torch.zeros_like(value) if isinstance(value, torch.Tensor) else 0


@replace("fairseq.trainer.Trainer.begin_valid_epoch")
def tell_hooks_of_validations(begin_valid_epoch: Callable, trainer: Trainer, epoch: int) -> None:
    """Tell the hooks that a validation begins, where fairseq tells the task (fairseq/trainer.py:787-791).

    What they log of a validation would otherwise include the batches of earlier ones.
    """
    for hook in hooks_of(trainer):
        hook.begin_validation()
    return begin_valid_epoch(trainer, epoch)


@replace("fairseq.trainer.Trainer.valid_step")
def let_hooks_validate(
    valid_step: Callable, trainer: Trainer, sample: dict, raise_oom: bool = False
) -> dict[str, Any] | None:
    """Let hooks log values of validation batches beside fairseq's own, such as statistics of gates.

    fairseq's `Trainer.valid_step` (fairseq/trainer.py:1131-1190) logs only what the criterion returns. A
    validation does not use the programs of --compile, which would not fit the steps of a search.
    """
    step = functools.partial(valid_step, trainer)
    for hook in hooks_of(trainer):
        step = functools.partial(hook.valid_step, step)
    with without_programs(trainer):
        return step(sample, raise_oom)


@replace("fairseq.trainer.Trainer.zero_grad")
def let_hooks_zero_gradients(zero_grad: Callable, trainer: Trainer) -> None:
    """Let hooks forget an update whenever fairseq clears the gradients that its optimizer uses.

    These are, for example, gradients of jointly trained gates. fairseq clears its own before an update,
    before it tries a batch again, after an overflow, and when memory has run out
    (fairseq/trainer.py:1192-1193).
    """
    zero_grad(trainer)
    for hook in made_hooks_of(trainer):
        hook.zero_grad()


@replace("fairseq.trainer.Trainer._prepare_sample")
def tell_hooks_of_batches(
    prepare_sample: Callable, trainer: Trainer, sample: Any, is_dummy: bool = False
) -> tuple[Any, bool]:
    """Tell the hooks of each batch that comes next, and whether it is a dummy batch.

    A worker that has run out of batches takes part with a dummy batch (fairseq/trainer.py:1329-1369). A
    hook that gathers statistics must leave this batch out.
    """
    sample, is_dummy_batch = prepare_sample(trainer, sample, is_dummy)
    for hook in () if is_dummy else made_hooks_of(trainer):
        hook.begin_batch(sample, is_dummy_batch)
    return sample, is_dummy_batch


@replace("fairseq.trainer.Trainer.set_num_updates")
def tell_hooks_of_updates(set_num_updates: Callable, trainer: Trainer, num_updates: int) -> None:
    """Tell the hooks when fairseq counts an update, after its optimizer's step.

    Then, for example, gates that learn jointly take their step. fairseq does not count an update whose
    gradient overflowed (fairseq/trainer.py:1046-1047).
    """
    for hook in made_hooks_of(trainer):
        hook.update_succeeded()
    return set_num_updates(trainer, num_updates)


@replace(
    "fairseq.distributed.legacy_distributed_data_parallel.LegacyDistributedDataParallel.all_reduce_grads"
)
def reduce_what_the_main_optimizer_trains(
    all_reduce_grads: Callable, wrapped: LegacyDistributedDataParallel
) -> None:
    """Leave gates out of the gradients that --ddp-backend legacy_ddp and no_c10d add up over the workers.

    It looks for parameters that require gradients at this moment, and gives each a gradient
    (fairseq/distributed/legacy_distributed_data_parallel.py:133-140). Gates that learn jointly require
    gradients too, but their own SGD adds these up.
    """
    hidden = [parameter for parameter in trained_outside(wrapped.module) if parameter.requires_grad]
    for parameter in hidden:
        parameter.requires_grad_(False)
    try:
        return all_reduce_grads(wrapped)
    finally:
        for parameter in hidden:
            parameter.requires_grad_(True)


@replace("fairseq.trainer.Trainer.get_train_iterator")
def keep_train_iterator(get_train_iterator: Callable, trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
    """Keep the iterator over the training data, which knows the length of an epoch.

    The Trainer only returns it (fairseq/trainer.py:684-726). A warning about gates that never learn needs it.
    """
    trainer._epoch_iterator = get_train_iterator(trainer, *args, **kwargs)
    return trainer._epoch_iterator
