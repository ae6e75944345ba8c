"""Adam in a few kernels for all parameters together: --optimizer torch_adam.

fairseq's Adam takes eight small operations for each parameter, which are 2,000 kernels in each update of a
Transformer of six layers. A GPU spends more time on launching them than on their arithmetic.
"""

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from fairseq.dataclass import FairseqDataclass
from fairseq.optim import FairseqOptimizer, register_optimizer
from fairseq.optim.adam import FairseqAdam
from omegaconf import II
from torch import Tensor
from torch.optim.adamw import adamw

from modular_fairseq_cli.errors import UsageError

FUSED = ("cpu", "cuda", "mps", "xpu")  # devices for which torch has a fused Adam
CHUNK = 1 << 24  # parameters in half precision are converted in chunks of this many elements


@dataclass
class TorchAdamConfig(FairseqDataclass):
    """Options of `TorchAdam`. fairseq's adam has options of the same names and meanings."""

    adam_betas: Any = field(default=(0.9, 0.999), metadata={"help": "betas of Adam (default: (0.9, 0.999))"})
    adam_eps: float = field(
        default=1e-8, metadata={"help": "epsilon of Adam, for numerical stability (default: 1e-08)"}
    )
    weight_decay: float = field(
        default=0.0, metadata={"help": "decoupled weight decay, as in AdamW (default: 0)"}
    )
    lr: list[float] = II("optimization.lr")


class Adam(torch.optim.Optimizer):
    """fairseq's Adam, computed by torch's AdamW for all parameters at once.

    For gradient g, step t, m = b1 m + (1 - b1) g and v = b2 v + (1 - b2) g^2 it computes

        p = p - lr weight_decay p - lr sqrt(1 - b2^t) / (1 - b1^t) m / (sqrt(v) + eps)

    torch divides v by 1 - b2^t before it adds eps, and fairseq does not. torch therefore gets the eps of the
    present step, eps / sqrt(1 - b2^t). The state of a parameter is fairseq's: the number of its steps, m
    ("exp_avg") and v ("exp_avg_sq"), so either optimizer continues a training of the other one.

    Parameters in half precision, as in --memory-efficient-fp16, have a state in float32. Their updates are
    computed in float32, and then rounded.

    Args:
        params: parameters, or groups of parameters as in torch.
        lr: learning rate.
        betas: b1 and b2.
        eps, weight_decay: see above.

    Raises:
        UsageError: a number is out of its range.
    """

    supports_memory_efficient_fp16 = True
    supports_flat_params = True

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.0,
    ):
        if not (
            isinstance(betas, tuple | list)
            and len(betas) == 2
            and all(isinstance(each, int | float) and 0 <= each < 1 for each in betas)
        ):
            raise UsageError(
                f"--adam-betas {betas} must be two numbers from 0 to less than 1, such as (0.9,0.98)"
            )
        for option, value in (("--lr", lr), ("--adam-eps", eps), ("--weight-decay", weight_decay)):
            if not 0 <= value < math.inf:
                raise UsageError(f"{option} {value} must be at least 0, and finite")
        defaults = {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay, "amsgrad": False}
        super().__init__(params, defaults)

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Update all parameters that have a gradient.

        Args:
            closure: computes the loss again and returns it.

        Raises:
            RuntimeError: a gradient is sparse.
        """
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            alike: dict[tuple[int, torch.device, torch.dtype], list[Tensor]] = defaultdict(list)
            for p in group["params"]:
                if p.grad is not None:
                    alike[self._count_step(p), p.device, p.dtype].append(p)
            for (step, _, dtype), params in alike.items():
                if dtype in (torch.float16, torch.bfloat16):
                    for chunk in _chunks(params):
                        self._update_in_float32(group, chunk, step)
                else:
                    self._update(group, params, _gradients(params), params, step)
        return loss

    def _count_step(self, p: Tensor) -> int:
        """Count a step of a parameter, and return its number, from 1."""
        if p.grad is not None and p.grad.is_sparse:
            raise RuntimeError("--optimizer torch_adam does not support sparse gradients; use another one")
        state = self.state[p]
        dtype = torch.promote_types(p.dtype, torch.float32)
        if not state:
            state["step"] = 0
            for name in ("exp_avg", "exp_avg_sq"):
                state[name] = torch.zeros_like(p, dtype=dtype)
        for name in ("exp_avg", "exp_avg_sq"):  # torch converts a loaded state to the type of p
            state[name] = state[name].to(device=p.device, dtype=dtype)
        state["step"] += 1
        return state["step"]

    def _update_in_float32(self, group: dict[str, Any], params: list[Tensor], step: int) -> None:
        """Update parameters in half precision by way of copies in float32."""
        weights, gradients = (_float_like(params) for _ in range(2))
        torch._foreach_copy_(weights, params)
        torch._foreach_copy_(gradients, _gradients(params))
        self._update(group, weights, gradients, params, step)
        torch._foreach_copy_(params, weights)

    def _update(
        self,
        group: dict[str, Any],
        weights: list[Tensor],
        gradients: list[Tensor],
        params: list[Tensor],
        step: int,
    ) -> None:
        """Take step number `step` of `weights`, which have the states of `params`."""
        beta1, beta2 = group["betas"]
        device = weights[0].device
        fused = device.type in FUSED
        # torch counts the step itself, in a number for each parameter.
        before = torch.full((len(weights),), step - 1.0, device=device if fused else "cpu").unbind()
        states = [self.state[p] for p in params]
        adamw(
            weights,
            gradients,
            [state["exp_avg"] for state in states],
            [state["exp_avg_sq"] for state in states],
            [],
            list(before),
            foreach=not fused,
            fused=fused,
            amsgrad=False,
            beta1=beta1,
            beta2=beta2,
            lr=group["lr"],
            weight_decay=group["weight_decay"],
            eps=group["eps"] / (1 - beta2**step) ** 0.5,
            maximize=False,
        )


def _gradients(params: list[Tensor]) -> list[Tensor]:
    return [p.grad for p in params if p.grad is not None]


def _chunks(params: list[Tensor]) -> Iterator[list[Tensor]]:
    """Divide parameters into lists of at most `CHUNK` elements, or of one parameter."""
    chunk: list[Tensor] = []
    for p in params:
        if chunk and sum(each.numel() for each in chunk) + p.numel() > CHUNK:
            yield chunk
            chunk = []
        chunk.append(p)
    yield chunk


def _float_like(params: list[Tensor]) -> list[Tensor]:
    """Return uninitialised float32 tensors in the shapes of `params`, in one piece of memory."""
    sizes = [p.numel() for p in params]
    flat = torch.empty(sum(sizes), dtype=torch.float32, device=params[0].device)
    return [part.view(p.shape) for part, p in zip(flat.split(sizes), params, strict=True)]


@register_optimizer("torch_adam", dataclass=TorchAdamConfig)
class TorchAdam(FairseqAdam):
    """fairseq's Adam in a few kernels. It also computes the norm of the gradient in a few kernels.

    A training can change between --optimizer adam and torch_adam when it is continued.
    """

    def __init__(self, cfg: TorchAdamConfig, params: Iterable[Any]):
        FairseqOptimizer.__init__(self, cfg)
        try:
            options = self.optimizer_config
        except UsageError as error:  # fairseq evaluates one option of text here
            raise UsageError(f"--adam-betas {cfg.adam_betas}: {error}") from None
        self._optimizer = Adam(params, **options)

    def clip_grad_norm(
        self, max_norm: float, aggregate_norm_fn: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """Scale all gradients so that their norm is at most `max_norm`, and return the norm before.

        Args:
            max_norm: 0 leaves the gradients as they are.
            aggregate_norm_fn: joins the norms of workers that have different parameters. As in fairseq, a
                parameter with the attribute `expert` does not enter the norm.
        """
        with_gradient = [p for p in self.params if p.grad is not None]
        counted = [p.grad.detach() for p in with_gradient if not hasattr(p, "expert")]
        if not counted:
            return torch.tensor(0.0)
        norms = torch._foreach_norm(counted, 2.0, dtype=torch.float32)
        norm = torch.linalg.vector_norm(torch.stack(norms)) if len(norms) > 1 else norms[0]
        if aggregate_norm_fn is not None:
            norm = aggregate_norm_fn(norm)
        if max_norm > 0:
            factor = (float(max_norm) / (norm + 1e-6)).clamp_(max=1)
            torch._foreach_mul_([p.grad.detach() for p in with_gradient], factor)
        return norm
