"""Let gates learn in fairseq's own step, by an SGD of their own (--mae-training joint, NOBCD of appendix A).

The gates require gradients inside that step only, so they are neither in the main optimizer nor in the
buckets of DistributedDataParallel. Their gradients are collected as the backward pass makes them, and no gate
keeps a `.grad`. When fairseq counts the update, `GateSgd` takes its step.
"""

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from fairseq.trainer import Trainer
from torch import Tensor

from modular_fairseq.training.gate_sgd import GateSgd, loss_scale_of

logger = logging.getLogger(__name__)


class JointTraining:
    """Collect the gradients of the gates in an update, and take their step.

    Outside `learning`, the other methods do nothing.
    """

    def __init__(self, trainer: Trainer, sgd: GateSgd):
        self.trainer = trainer
        self.sgd = sgd
        self.in_update = False
        self.loss_scale = 1.0  # of the present update

    @contextmanager
    def learning(self) -> Iterator[None]:
        """Let the gates require gradients, and collect them, inside the block.

        The main optimizer and DistributedDataParallel do not see the gates, as fairseq has built them when an
        epoch begins. `patches/trainer.py` hides the gates from LegacyDistributedDataParallel.
        """
        self.in_update = True
        hooks = [
            parameter.requires_grad_(True).register_post_accumulate_grad_hook(self._collector(number))
            for number, parameter in enumerate(self.sgd.gates)
        ]
        try:
            yield
        finally:
            self.in_update = False
            for hook in hooks:
                hook.remove()
            for parameter in self.sgd.gates:
                parameter.requires_grad_(False)
            self.sgd.clear()

    def _collector(self, number: int) -> Callable[[Tensor], None]:
        """Return a hook that moves the gradient of gate parameter `number` into the SGD of the gates."""

        def collect(parameter: Tensor) -> None:
            gradient, parameter.grad = parameter.grad, None
            self.sgd.add_one(number, gradient, self.loss_scale)

        return collect

    def zero_grad(self) -> None:
        """Forget the gates' gradients where fairseq forgets the others: before each try of an update."""
        if self.in_update:
            self.sgd.clear()
            self.loss_scale = loss_scale_of(self.trainer)  # a retry under --amp has another one

    def begin_batch(self, sample: dict[str, Any], is_dummy: bool) -> None:
        """Count the batch that comes next, unless it is a dummy batch, whose loss counts nothing."""
        if self.in_update and not is_dummy:
            self.sgd.add_count(sample)

    def update_succeeded(self) -> None:
        """Take the step of the gates, now that fairseq counts the update.

        fairseq counts no update whose gradient overflowed. EMA comes after this call, so it sees new gates.
        """
        if self.in_update and (reason := self.sgd.step().skipped):
            logger.info(f"step of the gates skipped: {reason}")
