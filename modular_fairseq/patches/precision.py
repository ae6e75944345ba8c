"""Mend fairseq's options for number formats: each of them on any device, and --amp as its options ask."""

import copy
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from typing import Any
from unittest import mock

import fairseq.trainer
import torch
from fairseq.dataclass.configs import CommonConfig
from fairseq.optim.amp_optimizer import AMPOptimizer
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from omegaconf import DictConfig
from torch import Tensor, nn

from modular_fairseq.models.options import flag
from modular_fairseq.optim.torch_adam import TorchAdam
from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def bf16_on_any_device(
    parse: Callable, parser: ArgumentParser, input_args: list[str] | None = None, *args: Any, **kwargs: Any
) -> Namespace | tuple[Namespace, list[str]]:
    """Let --bf16 and --memory-efficient-bf16 select bfloat16 on any device, and only --tpu select a TPU.

    On a command line, fairseq lets --bf16 turn on --tpu (fairseq/options.py:200-203, fairseq issue 4696),
    which needs torch_xla. Through hydra it does not. The help text of --bf16 also claimed that it implies
    --tpu (fairseq/dataclass/configs.py:148).
    """
    for action in parser._actions:
        if action.dest == "bf16":
            action.help = "train in bfloat16, on any device"

    def given(option: str) -> bool:
        return getattr(parser.parse_known_args(input_args)[0], option, False)

    try:
        parsed = parse(parser, input_args, *args, **kwargs)
    except ValueError as error:
        if str(error).startswith("Cannot combine --fp16 and --tpu") and not given("tpu"):
            raise UsageError("--fp16 and --bf16 cannot be combined; leave one of them out") from None
        raise
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(options, "bf16", False) and getattr(options, "tpu", False):
        options.tpu = given("tpu")
    return parsed


@replace("fairseq.trainer.Trainer.__init__")
def amp_in_bfloat16(
    init: Callable, trainer: Trainer, cfg: DictConfig | Namespace, *args: Any, **kwargs: Any
) -> None:
    """Let --amp --bf16 train by automatic mixed precision in bfloat16, and refuse what cannot be combined.

    fairseq has no option for the number format of --amp. With both options it would convert the weights to
    bfloat16 and scale the losses all the same (fairseq/trainer.py:104-106 and 334-335). Here the weights stay
    in float32, autocast computes in bfloat16, and losses are not scaled, as bfloat16 has the range of
    float32. --amp with --fp16 ended in an AssertionError (fairseq/trainer.py:101), and --amp with one of the
    memory-efficient options in an AttributeError at the first update.
    """
    trainer.autocast_dtype = None
    common = cfg.common if isinstance(cfg, DictConfig) else cfg
    if common.amp:
        for name in ("memory_efficient_fp16", "memory_efficient_bf16", "fp16"):
            if getattr(common, name):
                raise UsageError(f"--amp and {flag(name)} cannot be combined; leave one of them out")
        if common.bf16:
            trainer.autocast_dtype = torch.bfloat16
            cfg = copy.deepcopy(cfg)  # the caller's options stay as they are
            (cfg.common if isinstance(cfg, DictConfig) else cfg).bf16 = False
    init(trainer, cfg, *args, **kwargs)


@replace("fairseq.trainer.Trainer.state_dict")
def save_the_options_of_amp_in_bfloat16(state_dict: Callable, trainer: Trainer) -> dict[str, Any]:
    """Note --bf16 in the checkpoints of --amp --bf16, whose Trainer has a copy of the options without it.

    `amp_in_bfloat16` makes this copy, because fairseq would convert the weights (fairseq/trainer.py:104-106).
    """
    state = state_dict(trainer)
    if trainer.autocast_dtype is not None:
        state["cfg"]["common"]["bf16"] = True
    return state


@replace("fairseq.trainer.Trainer._build_optimizer")
def scale_the_losses_of_amp_on_any_device(build_optimizer: Callable, trainer: Trainer) -> None:
    """Give --amp a scaler of losses for the device of the model, and none with --bf16.

    fairseq asks for the scaler of a GPU, which is turned off on a CPU (fairseq/optim/amp_optimizer.py:26).
    It also starts with --fp16-init-scale instead of --amp-init-scale, and if --amp-scale-window is given, it
    lets the scale grow after --amp-init-scale updates (fairseq/optim/amp_optimizer.py:23-25). Here
    --amp-init-scale is the initial scale, and --amp-scale-window the number of updates after which the scale
    grows. If --amp-init-scale has its default value, --fp16-init-scale still sets the initial scale.
    """
    build_optimizer(trainer)
    optimizer = trainer._optimizer
    if not isinstance(optimizer, AMPOptimizer):
        return
    common = trainer.cfg.common
    is_default = common.amp_init_scale == CommonConfig.amp_init_scale
    initial = common.fp16_init_scale if is_default else common.amp_init_scale
    settings: dict[str, Any] = {"init_scale": float(initial)}
    if common.amp_scale_window is not None:
        settings["growth_interval"] = common.amp_scale_window
    optimizer._grad_scaler = torch.amp.GradScaler(
        trainer.device.type, enabled=trainer.autocast_dtype is None, **settings
    )
    optimizer.autocast_dtype = trainer.autocast_dtype


@replace("fairseq.optim.amp_optimizer.AMPOptimizer.clip_grad_norm")
def refuse_gradients_that_are_not_finite(
    clip_grad_norm: Callable, optimizer: AMPOptimizer, *args: Any, **kwargs: Any
) -> Tensor:
    """Let --amp --bf16 end as float32 does if a gradient is not finite, with crash.pt and the module's name.

    There is no loss scale that could be lowered. fairseq would ask the scaler, which is turned off, by how
    much, and end with an AttributeError (fairseq/optim/amp_optimizer.py:54-75).
    """
    if optimizer.scaler.is_enabled():
        return clip_grad_norm(optimizer, *args, **kwargs)
    norm = optimizer.fp32_optimizer.clip_grad_norm(*args, **kwargs)
    if not torch.isfinite(norm).all():
        raise FloatingPointError("gradients are Nan/Inf")
    return norm


@replace("fairseq.optim.amp_optimizer.AMPOptimizer.step")
def unscale_gradients_once(step: Callable, optimizer: AMPOptimizer) -> None:
    """Divide the gradients by the loss scale once with --amp, not twice.

    torch's scaler notes for which optimizer it has divided the gradients. To clip them, fairseq names torch's
    optimizer, and for the step its own wrapper (fairseq/optim/amp_optimizer.py:47-52), so the scaler divides
    them again. Adam hardly depends on the scale of gradients, but the loss scale grows. With a scale of 2^20
    the root of Adam's v is as small as its epsilon, and updates shrink.
    """
    optimizer.scaler.step(optimizer.optimizer)
    optimizer.scaler.update()


@replace("fairseq.tasks.fairseq_task.FairseqTask.train_step")
def autocast_on_any_device(
    train_step: Callable,
    task: FairseqTask,
    sample: dict[str, Any],
    model: nn.Module,
    criterion: nn.Module,
    optimizer: Any,
    *args: Any,
    **kwargs: Any,
) -> tuple[Tensor, int, dict[str, Any]]:
    """Let --amp compute in lower precision on any device, and with --bf16 in bfloat16.

    fairseq turns autocast on for GPUs only (fairseq/tasks/fairseq_task.py:531), so --amp had no effect on a
    CPU.
    """
    if not isinstance(optimizer, AMPOptimizer):
        return train_step(task, sample, model, criterion, optimizer, *args, **kwargs)
    device = next(parameter.device.type for parameter in model.parameters())

    def autocast_criterion(*arguments: Any) -> Any:
        with torch.autocast(device, optimizer.autocast_dtype):
            return criterion(*arguments)

    return train_step(task, sample, model, autocast_criterion, optimizer, *args, **kwargs)


@replace("fairseq.optim.fp16_optimizer._FP16OptimizerMixin.build_fp32_params")
def flat_weights_on_any_device(
    build: Callable, args: Any, params: Iterable[nn.Parameter], flatten: bool = True
) -> Any:
    """Let --fp16 keep its float32 weights as one vector on a CPU, too.

    fairseq asks for the number of the present GPU (fairseq/optim/fp16_optimizer.py:38), which a CPU does not
    have. The vector of a device is found by `Tensor.device.index`, which is None on a CPU.
    """
    params = list(params)
    if not flatten or params[0].device.type != "cpu":
        return build(args, params, flatten=flatten)
    with mock.patch.object(torch.cuda, "current_device", lambda: None):
        return build(args, params, flatten=flatten)


@replace("fairseq.trainer.Trainer.train_step")
def overflow_on_any_device(train_step: Callable, trainer: Trainer, *args: Any, **kwargs: Any) -> Any:
    """Let --fp16 leave out an update on a CPU whose gradient overflowed.

    fairseq then makes a number on the GPU (fairseq/trainer.py:1023), and crashes if there is none. Only what
    the module of the trainer calls `torch` is replaced, and no method of `Tensor`: `torch.compile` may look
    at these methods in this step, and keeps what it has found.
    """
    if trainer.device.type != "cpu":
        return train_step(trainer, *args, **kwargs)
    with mock.patch.object(fairseq.trainer, "torch", _TorchWhoseTensorsStay()):
        return train_step(trainer, *args, **kwargs)


class _TorchWhoseTensorsStay:
    """torch, but `cuda()` of a tensor made by `tensor` returns it as it is."""

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def tensor(self, *args: Any, **kwargs: Any) -> Any:
        made: Any = torch.tensor(*args, **kwargs)
        made.cuda = lambda: made
        return made


@replace("fairseq.optim.fp16_optimizer._FP16OptimizerMixin._sync_fp16_grads_to_fp32")
def copy_gradients_at_once(sync: Callable, optimizer: Any) -> None:
    """Copy all gradients to float32 in one call, with --fp16 or --bf16 and --optimizer torch_adam.

    fairseq copies them one by one (fairseq/optim/fp16_optimizer.py:111-148), which launches 250 kernels for a
    Transformer of six layers. The numbers are the same. If a parameter has no gradient, and for any other
    optimizer, fairseq's own method runs.
    """
    halves = optimizer.fp16_params
    if not (_is_quick(optimizer) and optimizer._needs_sync and all(p.grad is not None for p in halves)):
        return sync(optimizer)
    for p in () if optimizer.has_flat_params else optimizer.fp32_params:
        p.grad = torch.empty_like(p) if p.grad is None else p.grad
    torch._foreach_copy_(float32_like(optimizer, gradients=True), [p.grad for p in halves])
    optimizer._needs_sync = False


@replace("fairseq.optim.fp16_optimizer._FP16OptimizerMixin._sync_fp32_params_to_fp16")
def copy_weights_at_once(sync: Callable, optimizer: Any) -> None:
    """Copy all weights from float32 in one call, with --fp16 or --bf16 and --optimizer torch_adam.

    fairseq copies them one by one (fairseq/optim/fp16_optimizer.py:152-174), which launches 250 kernels for a
    Transformer of six layers. With --bf16, the gradients in float32 are also dropped, as fairseq would
    otherwise set each of them to 0 before the next update (fairseq/optim/fp16_optimizer.py:232-235).
    """
    if not _is_quick(optimizer):
        return sync(optimizer)
    with torch.no_grad():
        torch._foreach_copy_(list(optimizer.fp16_params), float32_like(optimizer, gradients=False))
    for p in () if optimizer.has_flat_params else optimizer.fp32_params:
        p.grad = None


def _is_quick(optimizer: Any) -> bool:
    """Tell whether an optimizer of weights in half precision may copy all of them at once."""
    return isinstance(optimizer.fp32_optimizer, TorchAdam) and all(
        p.requires_grad for p in optimizer.fp16_params
    )


def float32_like(optimizer: Any, gradients: bool) -> list[Tensor]:
    """Return the float32 weights of an optimizer, or their gradients, in the shapes of its parameters."""
    halves, fulls = optimizer.fp16_params, optimizer.fp32_params
    if not optimizer.has_flat_params:
        return [p.grad if gradients else p.detach() for p in fulls]
    by_device: dict[Any, list[Tensor]] = {}
    for p in halves:
        by_device.setdefault(p.device.index, []).append(p)
    parts: dict[Tensor, Tensor] = {}
    for device, params in by_device.items():
        flat = fulls[device].grad if gradients else fulls[device].detach()
        pieces = flat.split([p.numel() for p in params])
        parts |= {p: piece.view(p.shape) for p, piece in zip(params, pieces, strict=True)}
    return [parts[p] for p in halves]
