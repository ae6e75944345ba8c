"""The inputs of gate networks: means of the vectors of a sentence, a prefix or a window (MAE, appendix A)."""

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from modular_fairseq.modules.incremental import IncrementalModule
from modular_fairseq.modules.once import once_for

# `RunningMean` uses a matrix of weights up to this number of entries (rows x columns), and sums above it.
LARGEST_MATRIX = 256 * 256


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
                or their mean.
        """
        x = _at_least_float32(x)
        length = x.size(0)
        known = None if padding_mask is None else _counted(padding_mask, x.dtype)
        if incremental_state is not None:
            return self._continue(x, known, incremental_state)
        if length * length > LARGEST_MATRIX:
            return self._means_by_sums(x, known, length)
        if known is None:
            weights = mean_weights(length, length, self.window, x.dtype, x.device).expand(x.size(1), -1, -1)
        else:
            name = ("running mean", self.window)
            weights = once_for(known, name, lambda: self._weights(x, known, length))
        return torch.bmm(weights, x.transpose(0, 1))

    def _weights(self, x: Tensor, counted: Tensor, rows: int) -> Tensor:
        """Return the weights [B, rows, S] of inputs x [S, B, d] in the means at the last `rows` positions."""
        seen = mean_weights(rows, x.size(0), self.window, x.dtype, x.device) > 0
        weights = counted.unsqueeze(1) * seen
        return weights / weights.sum(dim=2, keepdim=True).clamp(min=1)

    def _means(self, x: Tensor, counted: Tensor, last: int) -> Tensor:
        """Compute the means of x [S, B, d] at the `last` positions, [B, last, d].

        Args:
            counted: [B, S], 1 for inputs that count and 0 for padding.
        """
        if last * x.size(0) > LARGEST_MATRIX:
            return self._means_by_sums(x, counted, last)
        return torch.bmm(self._weights(x, counted, last), x.transpose(0, 1))

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

    def _continue(self, x: Tensor, counted: Tensor | None, incremental_state: dict) -> Tensor:
        """Compute the means [B, T, d] at the positions of new inputs x [T, B, d], and keep the state.

        The state is the mean of the inputs so far and their number, or the inputs that are still in the
        window. Its tensors have the batch as first dimension, so that they can be reordered. The number is
        no tensor as long as there is no padding.

        Args:
            counted: [B, T], 1 for inputs that count and 0 for padding, or None.
        """
        state = self.get_incremental_state(incremental_state, "mean_state") or {}
        if self.window is None:
            return self._continue_prefix(x, counted, state, incremental_state)
        if counted is None:
            counted = x.new_ones(x.size(1), x.size(0))
        new = x.size(0)
        if state:
            x = torch.cat([state["inputs"].transpose(0, 1), x])
            counted = torch.cat([state["counted"], counted], dim=1)
        keep = max(x.size(0) - self.window + 1, 0)
        kept = {"inputs": x[keep:].transpose(0, 1), "counted": counted[:, keep:]}
        self.set_incremental_state(incremental_state, "mean_state", kept)
        return self._means(x, counted, last=new)

    def _continue_prefix(
        self, x: Tensor, counted: Tensor | None, state: dict[str, Any], incremental_state: dict
    ) -> Tensor:
        """Do what `_continue` does for a mean of all inputs so far.

        A single new input moves the mean by its share, which is one operation.
        """
        before, new = state.get("count", 0), x.size(0)
        x = x.transpose(0, 1)
        if counted is None and new == 1:
            count: Any = before + 1
            means = torch.lerp(state["mean"], x, 1 / count) if state else x
        else:
            if counted is None:
                numbers = before + torch.arange(1, new + 1, device=x.device).view(1, -1, 1)
                count = before + new
            else:
                x = x * counted.unsqueeze(-1)
                numbers = before + counted.cumsum(dim=1).unsqueeze(-1)
                count = numbers[:, -1:]
            sums = x.cumsum(dim=1, dtype=torch.float64)
            if state:
                sums = sums + state["mean"].double() * before
            means = (sums / numbers.clamp(min=1)).to(x.dtype)
        self.set_incremental_state(incremental_state, "mean_state", {"mean": means[:, -1:], "count": count})
        return means

    def reorder_incremental_state(self, incremental_state: dict, new_order: Tensor) -> None:
        """Reorder the state as the beam was reordered."""
        state = self.get_incremental_state(incremental_state, "mean_state")
        if state:
            state = {
                name: value.index_select(0, new_order) if torch.is_tensor(value) else value
                for name, value in state.items()
            }
            self.set_incremental_state(incremental_state, "mean_state", state)


def sentence_mean(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Average x [T, B, d] over the positions that are not padding: float32 [B, 1, d].

    Args:
        padding_mask: bool [B, T], True = pad, or None.
    """
    x = _at_least_float32(x)
    if padding_mask is None:
        return x.mean(dim=0).unsqueeze(1)

    def weights() -> Tensor:
        counted = _counted(padding_mask, x.dtype)
        return (counted / counted.sum(dim=1, keepdim=True).clamp(min=1)).unsqueeze(1)

    return torch.bmm(once_for(padding_mask, ("sentence mean", x.dtype), weights), x.transpose(0, 1))


def valid_positions(padding_mask: Tensor) -> Tensor:
    """Return which positions are not padding, bool [B, T]; the same tensor in every call."""
    return once_for(padding_mask, "valid", padding_mask.logical_not)


def _counted(padding_mask: Tensor, dtype: torch.dtype) -> Tensor:
    """Return 1 for positions that count and 0 for padding, [B, T]; the same tensor in every call."""
    return once_for(padding_mask, ("counted", dtype), lambda: valid_positions(padding_mask).to(dtype))


@functools.lru_cache(maxsize=4)
@torch.inference_mode(False)  # the backward pass of a training cannot use a tensor of the inference mode
def mean_weights(
    rows: int, length: int, window: int | None, dtype: torch.dtype, device: torch.device
) -> Tensor:
    """Return the weights [rows, length] of `length` inputs in the running means at the last `rows` positions.

    Position t, a row, averages the positions s, columns, with t - window < s <= t.
    """
    column = torch.arange(length, device=device)
    row = column[length - rows :].unsqueeze(1)
    seen = column <= row
    if window is not None:
        seen = seen & (column > row - window)
    seen = seen.to(dtype)
    return seen / seen.sum(dim=1, keepdim=True)


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
