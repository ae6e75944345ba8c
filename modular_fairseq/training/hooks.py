"""The seam of fairseq's Trainer: what mechanisms do while a model is trained.

fairseq's Trainer offers no hook that works with every task. `patches/trainer.py` wraps its methods, and calls
the hooks of the trainer there. A plugin adds one with `register_trainer_hook`.
"""

from collections.abc import Callable
from typing import Any

from fairseq.trainer import Trainer

Step = Callable[[Any, bool], dict[str, Any] | None]


class TrainerHook:
    """What happens while one trainer works. A method does nothing of its own unless it is overridden.

    Inside of fairseq's own update, the `step` of `train_step`, methods are called in this order: `zero_grad`,
    then `begin_batch` for each micro-batch, and `update_succeeded` after the optimizer's step.
    """

    def begin_epoch(self, epoch: int) -> None:
        """Note that an epoch of training begins, before any batch is read. The first one is 1."""

    def train_step(self, step: Step, samples: list, raise_oom: bool) -> dict[str, Any] | None:
        """Make one update, by one call of `step` as a rule.

        fairseq calls `Trainer.train_step`, and so this method, inside of itself to try a batch again after an
        overflow of --amp. A hook that has a step of its own must not take it again then.

        Args:
            step: makes the update; it takes `samples` and `raise_oom`.
            samples: the micro-batches of the update.
            raise_oom: whether an error for lack of memory is raised.

        Returns:
            what `Trainer.train_step` returns.
        """
        return step(samples, raise_oom)

    def begin_validation(self) -> None:
        """Note that a validation begins."""

    def valid_step(self, step: Step, sample: dict, raise_oom: bool) -> dict[str, Any] | None:
        """Validate on one batch by `step`, which takes `sample` and `raise_oom`."""
        return step(sample, raise_oom)

    def zero_grad(self) -> None:
        """Forget what the update has computed so far, where fairseq clears its gradients.

        It does so before each try of an update, after an overflow, and when memory has run out.
        """

    def begin_batch(self, sample: dict[str, Any], is_dummy: bool) -> None:
        """Note the batch that comes next.

        A worker that has run out of data takes part with a dummy batch. Its loss counts nothing.
        """

    def update_succeeded(self) -> None:
        """Note that fairseq counts the update, after its optimizer's step.

        It counts no update whose gradient overflowed. Outside of `train_step`, this is also called when
        fairseq sets the number of updates, as it does when it loads a checkpoint.
        """


Make = Callable[[Trainer], TrainerHook | None]
_MAKERS: list[Make] = []


def register_trainer_hook(make: Make) -> Make:
    """Register a function that makes the hook of a trainer, by decorating it.

    It is called once for each trainer, before its first update or validation, and returns None if the model
    needs no hook. It may raise UsageError if the model cannot be trained with the options of the trainer.
    Hooks are told of an event in the order in which their functions were registered. The `step` that a hook's
    `train_step` or `valid_step` takes is the method of the hook before it, and fairseq's for the first hook.
    """
    _MAKERS.append(make)
    return make


def hooks_of(trainer: Trainer) -> list[TrainerHook]:
    """Return the hooks of a trainer. The first call makes them."""
    if not hasattr(trainer, "_hooks"):
        made = [make(trainer) for make in _MAKERS]
        trainer._hooks = [hook for hook in made if hook is not None]
    return trainer._hooks


def made_hooks_of(trainer: Trainer) -> list[TrainerHook]:
    """Return the hooks of a trainer if they have been made, and none while fairseq is still building it."""
    return getattr(trainer, "_hooks", [])
