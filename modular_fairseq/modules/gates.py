"""Gate networks g(.; phi) and the norm of their inputs, of a mixture (MAE, section 2.3, appendix A)."""

from collections.abc import Callable
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from modular_fairseq.modules.dropout import Dropout
from modular_fairseq.modules.inference import Kept
from modular_fairseq.modules.once import once_for
from modular_fairseq.modules.recomputation import is_recomputation

NORMS = ("lagged", "batch", "layer", "none")


class GateNorm(nn.Module):
    """Normalise the inputs of a gate over the instances of a batch, as BatchNorm1d does, but ignore padding.

    `forward` returns a slope and a shift instead of a normalised input: `norm(x) = x * slope + shift`. The
    caller folds both into its linear layer, which saves a pass over x. The statistics equal those of
    BatchNorm1d on the valid rows alone, which are sentences or positions that are not padding. With fewer
    than two valid rows the running statistics are used.

    Unlike BatchNorm1d this module does not update its running statistics. It leaves the statistics of its
    training passes in `seen`, and the trainer updates the running ones once, at the end of a G or F step
    (`training/running_statistics.py`). So all micro-batches of a step use the same ones, and so does the
    second forward pass of activation checkpointing.

    There is no `num_batches_tracked` either. The count has no effect with a fixed momentum, and averaging and
    EMA of checkpoints expect floats.

    Args:
        dim: d, the width of the inputs.
        lagged: normalise by the running statistics in training too. No position then depends on another one,
            even in training. Without it the statistics of a batch are known to every position, and fairseq's
            batches have sentences of about the same length. NOBCD then learns to end sentences by this
            length, which inference does not know (docs/mechanisms/mae.md, "Statistics of the batch").

    Attributes:
        seen: mean [d], biased variance [d] and number [] of the valid rows of each forward pass in training
            since it was last emptied; None collects nothing.
    """

    eps = 1e-5
    momentum = 0.1
    running_mean: Tensor
    running_var: Tensor
    seen: tuple[tuple[Tensor, Tensor, Tensor], ...] | None = None

    def __init__(self, dim: int, *, lagged: bool):
        super().__init__()
        self.lagged = lagged
        self.weight = nn.Parameter(torch.ones(dim))
        self.bias = nn.Parameter(torch.zeros(dim))
        self.register_buffer("running_mean", torch.zeros(dim))
        self.register_buffer("running_var", torch.ones(dim))

    def forward(self, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return slope and shift, [d] each.

        Args:
            x: inputs [..., d].
            valid: bool [...], True = counts; None means that all rows count.
        """
        mean, var = self.running_mean, self.running_var
        if self.training:
            instances = Instances.of(x, valid)
            with torch.set_grad_enabled(torch.is_grad_enabled() and not self.lagged):
                batch_mean, batch_var = instances.mean_and_variance(x)
            if self.seen is not None and not is_recomputation():
                self.seen += ((batch_mean.detach(), batch_var.detach(), instances.number),)
            if not self.lagged:
                are_enough = instances.number > 1
                mean = torch.where(are_enough, batch_mean, mean)
                var = torch.where(are_enough, batch_var, var)
        slope = self.weight * torch.rsqrt(var + self.eps)
        return slope, torch.addcmul(self.bias, mean, slope, value=-1)


class Instances:
    """The rows of a batch that count in the statistics of norms: sentences, or positions without padding.

    All norms with the same rows share one object (`of`).

    Args:
        like: inputs [..., d], for their type, device and number of rows.
        valid: bool [...], True = counts; None means that all rows count.

    Attributes:
        number: number of rows that count, [].
    """

    def __init__(self, like: Tensor, valid: Tensor | None):
        self.shares: Tensor | None = None  # of a row in the mean
        if valid is None:
            self.number = like.new_full((), like.numel() // like.size(-1))
        else:
            counted = valid.flatten().to(like.dtype)
            self.number = counted.sum()
            self.shares = counted / self.number.clamp(min=1)

    @classmethod
    def of(cls, like: Tensor, valid: Tensor | None) -> "Instances":
        """Return the instances of inputs [..., d]; the same ones for all inputs with the same `valid`."""
        if valid is None:
            return cls(like, None)
        return once_for(valid, ("instances", like.dtype), lambda: cls(like, valid))

    def mean_and_variance(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return mean [d] and biased variance [d] of the rows of x [..., d] that count."""
        x = x.flatten(0, -2)
        if self.shares is None:
            var, mean = torch.var_mean(x, dim=0, correction=0)
            return mean, var
        mean = self.shares @ x
        return mean, self.shares @ (x - mean).square()


class GateNetwork(nn.Module):
    """The gate g(.; phi): norm -> Linear -> tanh -> dropout -> Linear (section 2.3, appendix A).

    Its parameters stay in float32 under fp16 and bf16, because the rounding of a half-precision gate would
    lose the updates of plain SGD.

    Args:
        embed_dim: d, the width of the inputs.
        hidden_dim: number of hidden units.
        num_experts: E.
        dropout: dropout probability of the hidden units.
        norm: "lagged" or "batch" (`GateNorm` with and without `lagged`), "layer" (LayerNorm) or "none".
        init: "zero" (the last layer is zero, so the gate starts uniform) or "linear" (the initialisation of
            `nn.Linear`, so the gate depends on its input from the start).
    """

    def __init__(
        self, embed_dim: int, hidden_dim: int, num_experts: int, dropout: float, norm: str, init: str
    ):
        super().__init__()
        self.norm = {
            "batch": lambda: GateNorm(embed_dim, lagged=False),
            "lagged": lambda: GateNorm(embed_dim, lagged=True),
            "layer": lambda: nn.LayerNorm(embed_dim),
            "none": lambda: None,
        }[norm]()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.dropout = Dropout(dropout, module_name=self.__class__.__name__)
        self.fc2 = nn.Linear(hidden_dim, num_experts)
        self.kept: Kept[tuple[Tensor, Tensor]] | None = None  # the first layer with the norm, for inference
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
        norm = self.norm
        if isinstance(norm, GateNorm):
            if self.kept is not None and not self.training:
                fc1 = self.fc1
                used = [fc1.weight, fc1.bias, norm.weight, norm.bias, norm.running_mean, norm.running_var]
                weight, bias = self.kept.get(used, lambda: self._first_layer(norm, x, valid))
            else:
                weight, bias = self._first_layer(norm, x, valid)
            return self._rest(F.linear(x, weight, bias))
        return self._rest(self.fc1(x if norm is None else norm(x)))

    def _first_layer(self, norm: GateNorm, x: Tensor, valid: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the weight and the bias of a first layer that also normalises its input."""
        slope, shift = norm(x, valid)
        weight = self.fc1.weight
        return weight * slope, self.fc1.bias + weight @ shift

    def _rest(self, hidden: Tensor) -> Tensor:
        return self.fc2(self.dropout(torch.tanh(hidden)))

    def make_generation_fast_(self, **kwargs: Any) -> None:
        """Keep the first layer with the norm in it; fairseq calls this before a model translates."""
        self.kept = Kept()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Convert or move the parameters as `nn.Module` does, but keep them in float32."""

        def keep_precision(t: Tensor) -> Tensor:
            moved = fn(t)
            return t.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        return super()._apply(keep_precision, recurse)
