"""What a mechanism adds to the training loss; the criterion `modular_cross_entropy` weighs and logs it."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn


class AuxiliaryLosses(ABC):
    """The losses of one mechanism, as the options of a criterion want them.

    A subclass is the `losses` of a registered mechanism. Its constructor takes the options of the criterion.

    Attributes:
        options: a FairseqDataclass, further options of the criterion.
        signs: for every loss by its logged name 1, or -1 if it is subtracted.
        left_out_by: the options that train such a model without these losses, for messages.
        asked_for: the options that a user set, which need a model with such losses.

    Raises:
        UsageError: the options cannot work, or one of them would be ignored.
    """

    options: ClassVar[type[FairseqDataclass]]
    signs: ClassVar[dict[str, int]]
    left_out_by: ClassVar[str]
    asked_for: list[str]

    @staticmethod
    @abstractmethod
    def concerns(model: nn.Module) -> bool:
        """Tell whether the model has these losses. It must then be trained with a criterion that adds
        them.
        """

    @abstractmethod
    def weights(self, num_updates: int | None) -> dict[str, float]:
        """Return the weight of each loss at an update; 0: it need not be computed. None: outside fairseq's
        training.
        """

    @contextmanager
    @abstractmethod
    def measuring(self, model: nn.Module, weights: dict[str, float]) -> Iterator[dict[str, Tensor]]:
        """Measure the losses of the forward pass inside the block. At its end the dictionary holds those of
        non-zero weight, [B] each.
        """

    @abstractmethod
    def without_gradient(self, model: nn.Module, weights: dict[str, float]) -> list[nn.Parameter]:
        """Return the parameters that these losses give no gradient now, which distributed training must
        know of.
        """

    @abstractmethod
    def check_model(self, model: nn.Module) -> None:
        """Raises UsageError if an option of `asked_for` has no effect with this model."""
