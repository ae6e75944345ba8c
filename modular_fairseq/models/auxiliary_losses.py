"""The interface by which a mechanism adds losses to the training loss.

The criteria of this package multiply the losses by their weights, add them and log them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from modular_fairseq.models.fairseq_options import Options


class AuxiliaryLosses(ABC):
    """The losses of one mechanism, set up from the options of the criterion.

    A mechanism registers a subclass as its `losses`.

    Attributes:
        options: a FairseqDataclass of further options of the criterion.
        signs: for each loss, by the name under which it is logged, 1 if it is added and -1 if it is
            subtracted.
        left_out_by: the options that train such a model without these losses, as messages name them.
        asked_for: the options that the user has set and that need a model with such losses.
    """

    options: ClassVar[type[FairseqDataclass]]
    signs: ClassVar[dict[str, int]]
    left_out_by: ClassVar[str]
    asked_for: list[str]

    @abstractmethod
    def __init__(self, cfg: Options) -> None:
        """Set up the losses from the options of the criterion.

        Raises:
            UsageError: a value cannot work, or an option would have no effect.
        """

    @staticmethod
    @abstractmethod
    def concerns(model: nn.Module) -> bool:
        """Tell whether the model has these losses, and must be trained with a criterion that adds them."""

    @abstractmethod
    def weights(self, num_updates: int | None) -> dict[str, float]:
        """Return the weight of each loss; a loss of weight 0 need not be computed.

        Args:
            num_updates: number of updates so far, or None outside fairseq's training.
        """

    @contextmanager
    @abstractmethod
    def measuring(self, model: nn.Module, weights: dict[str, float]) -> Iterator[dict[str, Tensor]]:
        """Measure the losses of the forward pass inside the block.

        At the end of the block the dictionary holds the losses of non-zero weight, [B] each, by name.
        """

    @abstractmethod
    def without_gradient(self, model: nn.Module, weights: dict[str, float]) -> list[nn.Parameter]:
        """Return the parameters without a gradient at these weights. Distributed training must know them."""

    def has_effect(self, name: str, model: nn.Module) -> bool:
        """Tell whether option `name` of `options` has an effect with this model and the other options."""
        return self.concerns(model)

    @abstractmethod
    def check_model(self, model: nn.Module) -> None:
        """Raise UsageError if an option in `asked_for` has no effect with this model."""
