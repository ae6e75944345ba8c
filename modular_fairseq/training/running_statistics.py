"""The running statistics of the gates' norms: once in a G or F step, from the inputs of all workers."""

import functools
from collections import defaultdict
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from modular_fairseq.modules.gates import GateNorm


class Pass(NamedTuple):
    """What a norm has seen in a forward pass (`GateNorm.seen`)."""

    norm: GateNorm
    mean: Tensor
    var: Tensor
    number: Tensor


class RunningStatistics:
    """Collect what the norms of gates see in a G step or an F step, and update the statistics at its end.

    The running statistics stay as they are while a step lasts, so all of its forward passes use the same
    ones. At its end they move towards the mean and the variance of all valid rows that the norm has seen in
    it: in all micro-batches and on all workers, where every row counts the same. So they depend on neither
    --update-freq nor the number of workers. With one forward pass this is what BatchNorm1d does.

    If a variance of a width is not finite, because a forward pass has overflowed, no norm of this width is
    updated. Nor is a norm that has seen fewer than two valid rows.

    Args:
        model: the model whose norms these are.
        workers: number of workers.
        group: the process group of several workers.
    """

    def __init__(self, model: nn.Module, workers: int = 1, group: Any = None):
        self.workers, self.group = workers, group
        self.by_width: dict[int, list[GateNorm]] = defaultdict(list)
        for module in model.modules():
            if isinstance(module, GateNorm):
                self.by_width[module.running_mean.numel()].append(module)
                module.seen = ()
        self.passes: list[Pass] = []

    def end_pass(self) -> int:
        """Collect what the norms have seen since the last call, and return how much there is by now."""
        for norms in self.by_width.values():
            for norm in norms:
                self.passes += [Pass(norm, *seen) for seen in norm.seen or ()]
                norm.seen = ()
        return len(self.passes)

    def forget(self, kept: int = 0) -> None:
        """Forget the passes after the first `kept`, a number that `end_pass` returned."""
        self.end_pass()
        del self.passes[kept:]

    @torch.no_grad()
    def update(self) -> None:
        """Update the running statistics at the end of a step that counts. All workers must call it."""
        self.end_pass()
        for norms in self.by_width.values():
            self._update(norms)
        self.passes.clear()

    def _update(self, norms: list[GateNorm]) -> None:
        """Update norms of one width d. Shapes: N norms, P passes of all of them."""
        passes = [each for each in self.passes if each.norm in norms]
        if not passes:
            if self.workers == 1:
                return
            nothing = torch.zeros_like(norms[0].running_mean)
            passes = [Pass(norms[0], nothing, nothing, nothing[0])]  # the other workers wait for this one
        means = torch.stack([each.mean for each in passes])  # P x d
        variances = torch.stack([each.var for each in passes])
        numbers = torch.stack([each.number for each in passes])
        numbers_of_norms = tuple(norms.index(each.norm) for each in passes)
        owners, is_owner = _ownership(numbers_of_norms, len(norms), means.device)
        rows = is_owner * numbers  # N x P, 0 for passes of other norms
        number = self._sum(rows.sum(dim=1, keepdim=True))
        shares = rows / number.clamp(min=1)
        mean = self._sum(shares @ means)
        var = self._sum(shares @ (variances + (means - mean[owners]).square()))
        unbiased = var * (number / (number - 1).clamp(min=1))
        counts = (number > 1) & var.isfinite().all()  # a mean that is not finite has no finite variance
        for running, new in (
            ([norm.running_mean for norm in norms], mean),
            ([norm.running_var for norm in norms], unbiased),
        ):
            old = torch.stack(running)
            torch._foreach_copy_(
                running, list(torch.where(counts, old.lerp(new, GateNorm.momentum), old).unbind())
            )

    def _sum(self, x: Tensor) -> Tensor:
        """Return the sum of x over the workers."""
        if self.workers > 1:
            dist.all_reduce(x, group=self.group)
        return x


@functools.lru_cache(maxsize=16)
def _ownership(owners: tuple[int, ...], number: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the norm of each pass, int64 [P], and whether it is each of `number` norms, bool [number, P]."""
    of_passes = torch.tensor(owners, device=device)
    return of_passes, of_passes == torch.arange(number, device=device).unsqueeze(1)
