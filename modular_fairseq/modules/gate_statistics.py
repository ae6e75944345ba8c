"""Measure the entropy of gates, and which expert has the largest gate (MAE, section 5.1).

The sums stay on the device until somebody reads them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

import torch
from torch import Tensor

MOST_PASSES = 64  # the forward passes whose gates a module keeps before it sums them up
RARE = 0.01  # an expert that fewer than this share of instances choose counts as rare


class GateStatistics:
    """Sums of gate statistics over the instances since the last `take`.

    An instance is a sentence, or a position for gates that average a prefix or a window.
    """

    def __init__(self) -> None:
        self._passes: list[tuple[Tensor, Tensor | None]] = []  # not in the sums yet
        self._sums: Tensor | None = None

    def add(self, log_gates: Tensor, valid: Tensor | None) -> None:
        """Add the instances of one forward pass.

        Args:
            log_gates: log-probabilities of the experts, [B, T or 1, E].
            valid: bool [B, T or 1], False = padding. None means that all instances count.
        """
        if torch.compiler.is_compiling():  # a list that grows would be another program in every pass
            new = _sum_up(log_gates.detach().unsqueeze(0), valid)[0]
            self._sums = new if self._sums is None else self._sums + new
            return
        self._passes.append((log_gates.detach(), valid))
        if len(self._passes) == MOST_PASSES:
            self._sums = self.take()

    def take(self) -> Tensor | None:
        """Return the sums [1 + E] and reset them; None if no instance was added.

        The first number is the summed entropy of the gates in nats. The others are, for each expert, the
        number of instances whose largest gate it is.
        """
        return take_all([self])[0]


def take_all(statistics: list[GateStatistics]) -> list[Tensor | None]:
    """Take the sums of several modules (see `GateStatistics.take`).

    Gates of the same shape over the same instances are summed up together, in a few kernels for all of them.
    """
    alike: dict[tuple[torch.Size, int | None], list[tuple[int, Tensor, Tensor | None]]] = {}
    sums = []
    for number, each in enumerate(statistics):
        for log_gates, valid in each._passes:
            key = log_gates.shape, None if valid is None else id(valid)
            alike.setdefault(key, []).append((number, log_gates, valid))
        sums.append(each._sums)
        each._passes, each._sums = [], None
    for passes in alike.values():
        numbers, gates, valids = zip(*passes, strict=True)
        for number, new in zip(numbers, _sum_up(torch.stack(gates), valids[0]), strict=True):
            old = sums[number]
            sums[number] = new if old is None else old + new
    return sums


def _sum_up(log_gates: Tensor, valid: Tensor | None) -> Tensor:
    """Return the sums [M, 1 + E] of the gates of M modules (see `GateStatistics.take`), in float64.

    A sum of many float32 numbers would drift. Instances whose gates are NaN do not count.

    Args:
        log_gates: [M, B, T or 1, E].
        valid: bool [B, T or 1], or None.
    """
    gates = log_gates.flatten(1, 2).double().exp()
    entropy = torch.special.entr(gates).sum(dim=-1, keepdim=True)
    # After an overflow gates are NaN, and so is all that is computed of them: their numbers become zeros.
    chosen = (gates * 0.0).scatter_(-1, gates.argmax(dim=-1, keepdim=True), 1.0, reduce="add")
    both = torch.cat([entropy, chosen], dim=-1).nan_to_num_(0.0)  # M x instances x (1 + E)
    return both.sum(dim=1) if valid is None else valid.flatten().double() @ both


def entropy_and_shares(sums: Tensor) -> tuple[float, Tensor]:
    """Return the mean entropy in nats, and the share of instances whose largest gate is each expert's [E].

    Args:
        sums: what `GateStatistics.take` returned, or a sum of such tensors.
    """
    instances = sums[1:].sum()
    return float(sums[0] / instances), sums[1:] / instances


@dataclass(frozen=True)
class GateSummary:
    """The gates of all attention modules of a model.

    Attributes:
        entropy: mean of the modules' entropies, in nats.
        max_share, min_share: largest and smallest share of an expert in any module. They show whether few
            experts get most of the instances.
        rare_experts: number of experts of all modules whose share is less than `RARE`.
        experts: number of experts of all modules.
    """

    entropy: float
    max_share: float
    min_share: float
    rare_experts: int
    experts: int

    @classmethod
    def of(cls, entropies: Sequence[float], shares: Sequence[Sequence[float]]) -> "GateSummary":
        """Summarise the entropy and the shares of each module; there must be at least one."""
        every = [share for module in shares for share in module]
        return cls(mean(entropies), max(every), min(every), sum(share < RARE for share in every), len(every))
