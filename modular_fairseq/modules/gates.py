"""Gate networks g(.; phi) of a mixture of experts, and what they look at (MAE, section 2.3 and appendix
A).
"""

import torch
import torch.nn.functional as F
from fairseq.incremental_decoding_utils import with_incremental_state
from torch import Tensor, nn

from modular_fairseq.modules.dropout import Dropout
from modular_fairseq.modules.recomputation import is_recomputation

NORMS = ("batch", "lagged", "layer", "none")


class GateNorm(nn.Module):
    """Normalises gate inputs x [..., d] over the instances that `valid` [...] marks; returns slope and shift,
    each [d].

    `norm(x) = x * slope + shift`; the caller folds both into its linear layer, which saves a pass over x.
    Statistics are those of BatchNorm1d on the valid rows alone: sentences, or positions that are not padding,
    so padding never counts. With fewer than two valid rows the running statistics are used and left as they
    are. `lagged` normalises by the running statistics in training too, and updates them afterwards: then no
    position sees another one even in training. (No `num_batches_tracked`: it counts for nothing with a fixed
    momentum, and averaging and EMA of checkpoints want floats.)
    """

    eps = 1e-5
    momentum = 0.1

    def __init__(self, dim: int, lagged: bool = False):
        super().__init__()
        self.lagged = lagged
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        mean, var = self._before if is_recomputation() else (self.running_mean, self.running_var)
        if self.training:
            self._before = mean, var
            batch_mean, batch_var, n = masked_mean_and_variance(x, valid)
            enough = n > 1
            if not self.lagged:
                mean = torch.where(enough, batch_mean, mean)
                var = torch.where(enough, batch_var, var)
            if not is_recomputation():
                self._update(batch_mean, batch_var, n)
        slope = self.weight * torch.rsqrt(var + self.eps)
        return slope, self.bias - mean * slope

    @torch.no_grad()
    def _update(self, batch_mean: Tensor, batch_var: Tensor, n: Tensor) -> None:
        unbiased = batch_var * n / (n - 1).clamp(min=1)
        weight = self.momentum * (n > 1).to(batch_mean.dtype)
        # Out of place: the backward pass may need the values that these tensors had.
        self.running_mean = self.running_mean.lerp(batch_mean, weight)
        self.running_var = self.running_var.lerp(unbiased, weight)


def masked_mean_and_variance(x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
    """Mean [d], biased variance [d] and count [] of the valid rows of x [..., d]; `valid` bool [...], None =
    all.
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
    """g(.; phi): norm -> Linear -> tanh -> dropout -> Linear; logits over experts in float32 (section 2.3,
    appendix A).

    Kept in float32 under fp16 and bf16: a plain SGD update of a half-precision gate would be rounded away.

    Args:
        norm: batch (BatchNorm over valid instances), lagged (see `GateNorm`), layer (LayerNorm) or none.
        init: zero (last layer zero: the gate starts uniform) or linear (nn.Linear's own: input-dependent from
            the start).
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
        """x float32 [..., d], valid bool [...] or None -> logits [..., E]."""
        weight, bias = self.fc1.weight, self.fc1.bias
        if isinstance(self.norm, GateNorm):
            slope, shift = self.norm(x, valid)
            weight, bias = weight * slope, bias + weight @ shift
        elif self.norm is not None:
            x = self.norm(x)
        return self.fc2(self.dropout(torch.tanh(F.linear(x, weight, bias))))

    def _apply(self, fn, recurse=True):
        def keep_precision(t: Tensor) -> Tensor:
            moved = fn(t)
            return t.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        return super()._apply(keep_precision, recurse)


@with_incremental_state
class RunningMean(nn.Module):
    """Mean of the inputs so far: all of them (prefix), or the `window` most recent ones. No future input
    enters.

    Both are one matrix product with a [T, T] matrix of weights: exact, and with no drift of a cumulative sum.
    Appendix A averages "all the input vectors" for translation; in a decoder that would show it the words to
    predict, hence the prefix.
    """

    def __init__(self, window: int | None = None):
        super().__init__()
        self.window = window

    def forward(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None) -> Tensor:
        """x [T, B, d] (new inputs only, when decoding step by step), padding_mask [B, T] -> means float32 [B,
        T, d]; 0 where there is nothing to average."""
        x = _at_least_float32(x)
        counted = None if padding_mask is None else padding_mask.logical_not().to(x.dtype)
        if incremental_state is None:
            return self._means(x, counted)
        if counted is None:
            counted = x.new_ones(x.size(1), x.size(0))
        return self._continue(x, counted, incremental_state)

    def _means(self, x: Tensor, counted: Tensor | None, last: int = 0) -> Tensor:
        """Of x [S, B, d], `counted` 0 or 1 [B, S]: the means [B, S, d], or the `last` ones of them."""
        length, sentences = x.shape[:2]
        weights = x.new_ones(length, length).tril_()
        if self.window is not None:
            weights = weights.triu_(1 - self.window)
        weights = weights[-last:].expand(sentences, -1, -1)
        if counted is not None:
            weights = weights * counted.unsqueeze(1)
        weights = weights / weights.sum(dim=2, keepdim=True).clamp(min=1)
        return torch.bmm(weights, x.transpose(0, 1))

    def _continue(self, x: Tensor, counted: Tensor, incremental_state: dict) -> Tensor:
        """The same for the next inputs. State, batch first for reordering: the sum so far, or the inputs
        still in the window.
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
        state = self.get_incremental_state(incremental_state, "mean_state")
        if state:
            state = {name: t.index_select(0, new_order) for name, t in state.items()}
            self.set_incremental_state(incremental_state, "mean_state", state)


def sentence_mean(x: Tensor, padding_mask: Tensor | None) -> Tensor:
    """Mean over the positions that are not padding: x [T, B, d], padding_mask [B, T] -> float32 [B, 1, d]."""
    x = _at_least_float32(x)
    if padding_mask is None:
        return x.mean(dim=0).unsqueeze(1)
    counted = padding_mask.logical_not().to(x.dtype)
    weights = counted / counted.sum(dim=1, keepdim=True).clamp(min=1)
    return torch.bmm(weights.unsqueeze(1), x.transpose(0, 1))


def _at_least_float32(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
