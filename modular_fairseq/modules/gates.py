"""Gate networks g(.; phi) of a mixture of experts, and their inputs (MAE, section 2.3 and appendix A)."""

from collections.abc import Callable
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modular_fairseq.modules.dropout import Dropout
from modular_fairseq.modules.incremental import IncrementalModule
from modular_fairseq.modules.recomputation import is_recomputation

# `RunningMean` uses a matrix of weights up to this number of entries (rows x columns), and sums above it.
LARGEST_MATRIX = 256 * 256
NORMS = ("batch", "lagged", "layer", "none")


class GateNorm(nn.Module):
    """Normalise the inputs of a gate over the instances of a batch, as BatchNorm1d does, but ignore padding.

    `forward` returns a slope and a shift instead of a normalised input: `norm(x) = x * slope + shift`. The
    caller folds both into its linear layer, which saves a pass over x. The statistics equal those of
    BatchNorm1d on the valid rows alone, which are sentences or positions that are not padding. With fewer
    than two valid rows the running statistics are used and stay unchanged.

    Unlike BatchNorm1d this module has no `num_batches_tracked`. The count has no effect with a fixed
    momentum, and averaging and EMA of checkpoints expect floats.

    Args:
        dim: d, the width of the inputs.
        lagged: normalise by the running statistics in training too, and update them afterwards. No position
            then depends on another one, even in training.
    """

    eps = 1e-5
    momentum = 0.1
    running_mean: Tensor
    running_var: Tensor
    _before: tuple[Tensor, Tensor]  # running mean and variance before the last forward pass in training
    _sums: Tensor | None = None  # see `collect`

    def __init__(self, dim: int, lagged: bool = False):
        super().__init__()
        self.lagged = lagged
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return slope and shift, [d] each, and update the running statistics in training.

        Args:
            x: inputs [..., d].
            valid: bool [...], True = counts; None means that all rows count.
        """
        mean, var = self._before if is_recomputation() else (self.running_mean, self.running_var)
        if self.training:
            self._before = mean, var
            batch_mean, batch_var, n = masked_mean_and_variance(x, valid)
            enough = n > 1
            if not self.lagged:
                mean = torch.where(enough, batch_mean, mean)
                var = torch.where(enough, batch_var, var)
            if not is_recomputation():
                if self._sums is None:
                    self._update(batch_mean, batch_var, n, self.momentum)
                else:
                    self._add(batch_mean, batch_var, n)
        slope = self.weight * torch.rsqrt(var + self.eps)
        return slope, self.bias - mean * slope

    @torch.no_grad()
    def _update(self, mean: Tensor, var: Tensor, n: Tensor, momentum: Tensor | float) -> None:
        unbiased = var * n / (n - 1).clamp(min=1)
        weight = momentum * (n > 1).to(mean.dtype)
        # Not in place, as the backward pass may need the former values of these tensors.
        self.running_mean = self.running_mean.lerp(mean, weight)
        self.running_var = self.running_var.lerp(unbiased, weight)

    @torch.no_grad()
    def _add(self, mean: Tensor, var: Tensor, n: Tensor) -> None:
        assert self._sums is not None
        mean, var, n = mean.double(), var.double(), n.double()
        of_batch = [torch.ones_like(n).view(1), n.view(1), n * mean, n * (var + mean.square())]
        self._sums = self._sums + torch.cat(of_batch)

    def collect(self) -> None:
        """Leave the running statistics alone from now on, and collect sums for `pool` instead.

        Several workers do so, because each sees other inputs. In a pass, all of them have the running
        statistics that the last call of `pool` left.
        """
        self._sums = torch.zeros(
            2 + 2 * self.running_mean.numel(), dtype=torch.float64, device=self.running_mean.device
        )

    def take_sums(self) -> Tensor:
        """Return what was collected since the last call, and begin again.

        Returns:
            the number of forward passes, the number n of valid rows, and the sums over these rows of the
            inputs and of their squares, in float64 [2 + 2 d].
        """
        sums = self._sums
        assert sums is not None
        self.collect()
        return sums

    def pool(self, sums: Tensor, workers: int) -> None:
        """Update the running statistics once, as if one worker had seen the inputs of all.

        With one forward pass on each worker this is what one worker does whose batch has the rows of all. For
        k passes, which are micro-batches or a G step and an F step, all their rows give one mean and one
        variance, and the momentum is 1 - (1 - `momentum`) ** k. One worker takes k steps instead, the later
        ones with more weight.

        Args:
            sums: the sum of `take_sums` over all workers. A dummy batch is a pass without rows.
            workers: number of workers.
        """
        passes = sums[0] / workers
        n = sums[1]
        mean, square = (sums[2:] / n.clamp(min=1)).chunk(2)
        var = (square - mean.square()).clamp(min=0)
        dtype = self.running_mean.dtype
        self._update(
            mean.to(dtype),
            var.to(dtype),
            (n / passes.clamp(min=1)).to(dtype),
            (1 - (1 - self.momentum) ** passes).to(dtype),
        )


def masked_mean_and_variance(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean [d], biased variance [d] and number [] of the valid rows of x [..., d].

    Args:
        valid: bool [...], True = counts; None means that all rows count.
    """
    x = x.flatten(0, -2)
    if valid is None:
        var, mean = torch.var_mean(x, dim=0, correction=0)
        return mean, var, x.new_tensor(float(x.size(0)))
    weight = valid.flatten().to(x.dtype)
    n = weight.sum()
    weight = weight / n.clamp(min=1)
    mean = weight @ x
    return mean, weight @ (x - mean).square(), n


class GateNetwork(nn.Module):
    """The gate g(.; phi): norm -> Linear -> tanh -> dropout -> Linear (section 2.3, appendix A).

    Its parameters stay in float32 under fp16 and bf16, because the rounding of a half-precision gate would
    lose the updates of plain SGD.

    Args:
        embed_dim: d, the width of the inputs.
        hidden_dim: number of hidden units.
        num_experts: E.
        dropout: dropout probability of the hidden units.
        norm: "batch" (BatchNorm over valid instances), "lagged" (see `GateNorm`), "layer" (LayerNorm) or
            "none".
        init: "zero" (the last layer is zero, so the gate starts uniform) or "linear" (the initialisation of
            `nn.Linear`, so the gate depends on its input from the start).
    """

    def __init__(
        self, embed_dim: int, hidden_dim: int, num_experts: int, dropout: float, norm: str, init: str
    ):
        super().__init__()
        self.norm = {
            "batch": GateNorm(embed_dim),
            "lagged": GateNorm(embed_dim, lagged=True),
            "layer": nn.LayerNorm(embed_dim),
            "none": None,
        }[norm]
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.dropout = Dropout(dropout)
        self.fc2 = nn.Linear(hidden_dim, num_experts)
        nn.init.xavier_uniform_(self.fc1.weight)
        nn.init.zeros_(self.fc1.bias)
        if init == "zero":
            nn.init.zeros_(self.fc2.weight)
            nn.init.zeros_(self.fc2.bias)

    def forward(self, x: Tensor, valid: Tensor | None) -> Tensor:
        """Compute logits over experts [..., E] in float32.

        Args:
            x: inputs, float32 [..., d].
            valid: bool [...], True = counts in the norm's statistics; None means that all rows count.
        """
        weight, bias = self.fc1.weight, self.fc1.bias
        if isinstance(self.norm, GateNorm):
            slope, shift = self.norm(x, valid)
            weight, bias = weight * slope, bias + weight @ shift
        elif self.norm is not None:
            x = self.norm(x)
        return self.fc2(self.dropout(torch.tanh(F.linear(x, weight, bias))))

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the parameters as `nn.Module` does, but keep them in float32."""

        def keep_precision(t: Tensor) -> Tensor:
            moved = fn(t)
            return t.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        return super()._apply(keep_precision, recurse)


class RunningMean(IncrementalModule):
    """The mean of the inputs so far, which does not depend on future inputs.

    It averages all inputs so far (prefix), or the `window` most recent ones. If few inputs are given at once,
    this is one matrix product with a [T, T] matrix of weights. Longer inputs have cumulative sums in float64,
    whose time and memory are linear in T.

    Appendix A of the MAE paper averages "all the input vectors" for translation. A decoder would then see the
    words that it must predict, so the mean is over the prefix.

    Args:
        window: number of most recent inputs to average; None for all.
    """

    def __init__(self, window: int | None = None):
        super().__init__()
        self.window = window

    def forward(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None) -> Tensor:
        """Compute the mean at every position, float32 [B, T, d], 0 where there is nothing to average.

        Args:
            x: inputs [T, B, d]; in step-by-step decoding only the new ones.
            padding_mask: bool [B, T], True = pad, or None.
            incremental_state: fairseq's dictionary for step-by-step decoding, which keeps the earlier inputs
                or their sum.
        """
        x = _at_least_float32(x)
        counted = None if padding_mask is None else padding_mask.logical_not().to(x.dtype)
        if incremental_state is None:
            return self._means(x, counted)
        if counted is None:
            counted = x.new_ones(x.size(1), x.size(0))
        return self._continue(x, counted, incremental_state)

    def _means(self, x: Tensor, counted: Tensor | None, last: int = 0) -> Tensor:
        """Compute the means of x [S, B, d] at every position, [B, S, d], or only the `last` ones of them.

        Args:
            counted: [B, S], 1 for inputs that count and 0 for padding, or None.
            last: number of last positions to return; 0 for all.
        """
        length = x.size(0)
        rows = last or length
        if rows * length > LARGEST_MATRIX:
            return self._means_by_sums(x, counted, rows)
        # Position t, a row, averages the positions s, columns, with t - window < s <= t.
        column = torch.arange(length, device=x.device)
        row = column[length - rows :].unsqueeze(1)
        seen = column <= row
        if self.window is not None:
            seen = seen & (column > row - self.window)
        weights = seen.to(x.dtype).expand(x.size(1), -1, -1)
        if counted is not None:
            weights = weights * counted.unsqueeze(1)
        weights = weights / weights.sum(dim=2, keepdim=True).clamp(min=1)
        return torch.bmm(weights, x.transpose(0, 1))

    def _means_by_sums(self, x: Tensor, counted: Tensor | None, last: int) -> Tensor:
        """Compute what `_means` does from cumulative sums, which take time and memory linear in S.

        The sums are float64, so that the difference of two of them loses nothing that float32 would show.
        """
        x = x.permute(1, 2, 0)  # [B, d, S], as a sum over the last dimension is the fastest
        if counted is None:
            counts = torch.arange(1, x.size(2) + 1, device=x.device, dtype=torch.float64).view(1, 1, -1)
        else:
            x = x * counted.unsqueeze(1)
            counts = counted.unsqueeze(1).cumsum(dim=2, dtype=torch.float64)
        sums = x.cumsum(dim=2, dtype=torch.float64)
        if self.window is not None and self.window < x.size(2):
            sums, counts = (t - F.pad(t[..., : -self.window], (self.window, 0)) for t in (sums, counts))
        means = sums[..., -last:] / counts[..., -last:].clamp(min=1)
        return means.to(x.dtype).transpose(1, 2)

    def _continue(self, x: Tensor, counted: Tensor, incremental_state: dict) -> Tensor:
        """Compute the means [B, T, d] at the positions of new inputs x [T, B, d], and keep the state.

        The state is the sum of the inputs so far and their number, or the inputs that are still in the
        window. Its first dimension is the batch, so that it can be reordered.
        """
        state = self.get_incremental_state(incremental_state, "mean_state") or {}
        if self.window is None:
            sums = (x.transpose(0, 1) * counted.unsqueeze(-1)).cumsum(dim=1)
            counts = counted.cumsum(dim=1)
            if state:
                sums, counts = sums + state["sum"], counts + state["count"]
            self.set_incremental_state(
                incremental_state, "mean_state", {"sum": sums[:, -1:], "count": counts[:, -1:]}
            )
            return sums / counts.clamp(min=1).unsqueeze(-1)
        new = x.size(0)
        if state:
            x = torch.cat([state["inputs"].transpose(0, 1), x])
            counted = torch.cat([state["counted"], counted], dim=1)
        keep = max(x.size(0) - self.window + 1, 0)
        kept = {"inputs": x[keep:].transpose(0, 1), "counted": counted[:, keep:]}
        self.set_incremental_state(incremental_state, "mean_state", kept)
        return self._means(x, counted, last=new)

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Reorder the state as the beam was reordered."""
        state = self.get_incremental_state(incremental_state, "mean_state")
        if state:
            state = {name: t.index_select(0, new_order) for name, t in state.items()}
            self.set_incremental_state(incremental_state, "mean_state", state)


def sentence_mean(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Average x [T, B, d] over the positions that are not padding: float32 [B, 1, d].

    Args:
        padding_mask: bool [B, T], True = pad, or None.
    """
    x = _at_least_float32(x)
    if padding_mask is None:
        return x.mean(dim=0).unsqueeze(1)
    counted = padding_mask.logical_not().to(x.dtype)
    weights = counted / counted.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.bmm(weights.unsqueeze(1), x.transpose(0, 1))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
