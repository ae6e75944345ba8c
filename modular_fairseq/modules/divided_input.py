"""Modules that look at the hidden states of a layer, and may have to divide them first."""

import torch
from torch import Tensor, nn


class DividesInput(nn.Module):
    """A base of modules with a softmax over scores of hidden states, such as clusters and competition.

    Where a layer gets a sum of normalised outputs (`models/multistream.py`), hidden states are larger than
    elsewhere, and such a softmax would start almost decided. Divided by the number of outputs, it starts as
    in other layers. Nothing else in the layer is divided.

    Attributes:
        input_divisor: the divisor [], or None if the input is used as it is. It is saved, so a checkpoint
            means the same in every version. A state dict without it, as version 0.1 wrote it, has divisor 1.
    """

    input_divisor: Tensor | None

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("input_divisor", None)

    def divide_input(self, divisor: int) -> None:
        """Divide the input from now on."""
        self.register_buffer("input_divisor", torch.tensor(float(divisor)))

    def divided(self, x: Tensor) -> Tensor:
        """Return x, divided if there is a divisor."""
        return x if self.input_divisor is None else x / self.input_divisor

    def undivided(self, x: Tensor) -> Tensor:
        """Return x, multiplied if there is a divisor."""
        return x if self.input_divisor is None else x * self.input_divisor

    def upgrade_state_dict_named(self, state_dict: dict[str, Tensor], name: str) -> None:
        """Give the state dict of an older version the divisor 1."""
        if self.input_divisor is not None:
            state_dict.setdefault(f"{name}.input_divisor", torch.ones_like(self.input_divisor))
