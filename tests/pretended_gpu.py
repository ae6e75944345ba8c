"""Pretend that there is a GPU, so that code which mixes up devices fails on a machine without one.

    with PretendedGpu():
        model.cuda()(tokens.cuda())

Tensors "on the GPU" are tensors of the CPU whose storage is marked. Calls of torch compute as usual, and
results of marked tensors are marked. As on a GPU, a call is refused if it is given tensors of both devices or
a generator of the other device, or if it asks for numpy data of the GPU. Calls inside torch's own functions
and in the backward pass are not watched.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any, ClassVar
from unittest import mock

import torch
import torch._dynamo  # its first import keeps functions of torch.cuda, which must not be pretended ones
import torch.utils.checkpoint
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.overrides import TorchFunctionMode, resolve_name

PRETENDED = "pretended-gpu"  # the --device of pytest
GPU = torch.device("cuda", 0)

# Calls that take tensors of both devices.
MIXING = {
    "Tensor.copy_",
    "Tensor.set_",
    "Tensor.data.__set__",
    "Tensor.view_as",
    "Tensor.reshape_as",
    "Tensor.expand_as",
    "Tensor.__deepcopy__",
    "Tensor.__reduce_ex__",
    "_has_compatible_shallow_copy_type",
    "grad",  # torch.autograd.grad, as gradients have no marks
}
# Calls whose index may be on the CPU if the tensor is on the GPU.
INDEXING = {"Tensor.__getitem__", "Tensor.__setitem__", "Tensor.index_put_", "Tensor.index_put"}
HOOKS = {"Tensor.register_hook", "Tensor.register_post_accumulate_grad_hook"}
# Functions of torch.cuda, and what they return.
FUNCTIONS = {
    "is_available": True,
    "device_count": 1,
    "current_device": 0,
    "get_device_name": "pretended GPU",
    "get_device_capability": (9, 0),
    "get_device_properties": SimpleNamespace(name="pretended GPU", major=9, minor=0, total_memory=2**36),
    "is_bf16_supported": True,
    "max_memory_allocated": 0,
    "memory_allocated": 0,
    "reset_peak_memory_stats": None,
    "empty_cache": None,
    "synchronize": None,
    "set_device": None,
    "get_rng_state": torch.zeros(0),
    "set_rng_state": None,
    "memory_stats": {},
    "memory_summary": "",
    "manual_seed": None,
    "manual_seed_all": None,
}


class WrongDevice(RuntimeError):
    """A call that fails on a GPU."""


class PretendedGpu(TorchFunctionMode):
    """The context in which there is a GPU."""

    # Storages on the GPU. What one context has put there is still there in the next one.
    _marks: ClassVar[dict[int | None, StorageWeakRef]] = {}

    def __init__(self) -> None:
        super().__init__()
        self._patches = ExitStack()
        self._is_in_backward = False

    def __enter__(self) -> "PretendedGpu":
        for name, value in FUNCTIONS.items():
            answer = functools.partial(lambda value, *args, **kwargs: value, value)
            self._patches.enter_context(mock.patch.object(torch.cuda, name, answer))
        run = functools.partial(self._run_backward, torch.autograd._engine_run_backward)
        self._patches.enter_context(mock.patch.object(torch.autograd, "_engine_run_backward", run))
        # Tensors are saved inside torch's own functions, which do not know where they are.
        checks = torch.utils.checkpoint._allowed_determinism_checks_to_fns
        self._patches.enter_context(mock.patch.dict(checks, default=lambda t: (t.shape, t.dtype)))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        self._patches.close()

    def is_there(self, tensor: Tensor) -> bool:
        """Return whether a tensor is on the GPU. Sparse tensors never are."""
        mark = self._marks.get(number_of(tensor))
        return mark is not None and not mark.expired()

    def put_there(self, tensor: Tensor) -> Tensor:
        """Mark a tensor and all that share its storage. A sparse tensor has none, and stays on the CPU."""
        storage = storage_of(tensor)
        if storage is None:
            return tensor
        mark = StorageWeakRef(storage)
        self._marks[mark.cdata] = mark
        if len(self._marks) > 20000:
            for key in [key for key, mark in self._marks.items() if mark.expired()]:
                del self._marks[key]
        return tensor

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        name = (resolve_name(function) or getattr(function, "__name__", "")).removeprefix("torch.")
        if name in ("Tensor.device.__get__", "Tensor.is_cuda.__get__", "Tensor.is_cpu.__get__"):
            there = self.is_there(args[0])
            return (GPU if there else torch.device("cpu")) if "device" in name else there == ("cuda" in name)
        if function is torch._C._nn._parse_to:  # reads the arguments of Module.to
            return function(*args, **kwargs)
        if name == "Tensor.get_device":
            return 0 if self.is_there(args[0]) else -1
        if name in ("Tensor.cuda", "Tensor.cpu"):
            return self._moved(args[0], name == "Tensor.cuda")
        if name in ("Tensor.to", "Tensor.type_as"):
            return self._to(*args, **kwargs)
        if name in ("Tensor.numpy", "Tensor.__array__") and self.is_there(args[0]):
            raise WrongDevice(f"{name} of a tensor on the GPU; call cpu() first")
        if name in HOOKS and self.is_there(args[0]):
            return function(args[0], self._hook_that_gets_the_gpu(args[1]))
        device = type_of(kwargs.get("device"))
        if device == "cuda":
            kwargs["device"] = "cpu"
        given = list(tensors_of((args, kwargs)))
        there = [tensor for tensor in given if self.is_there(tensor)]
        if there and name not in MIXING and not self._is_in_backward:
            here = [t for t in given if t.dim() and t.numel() and not self.is_there(t)]
            if name in INDEXING and self.is_there(args[0]):
                here = [t for t in tensors_of(args[2:]) if t.dim() and not self.is_there(t)]
            if here:
                places = [(tuple(t.shape), "GPU" if self.is_there(t) else "CPU") for t in given]
                raise WrongDevice(f"{name} has tensors of the GPU and of the CPU: {places}")
        result = function(*args, **kwargs)
        on_gpu = device == "cuda" if device is not None else bool(there)
        if on_gpu:
            if kwargs.get("generator") is not None:
                raise WrongDevice(f"{name} has a generator of the CPU and a tensor on the GPU")
            known = {number_of(tensor) for tensor in given}
            for tensor in tensors_of(result):
                if number_of(tensor) not in known:
                    self.put_there(tensor)
        return result

    def _run_backward(self, run: Callable, *args: Any, **kwargs: Any) -> Any:
        """Run the backward pass. Nothing in it is refused, as its gradients have no marks."""
        self._is_in_backward = True
        super().__enter__()  # torch leaves the mode when it calls `__torch_function__`
        try:
            return run(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)
            self._is_in_backward = False

    def _hook_that_gets_the_gpu(self, hook: Callable) -> Callable:
        """Mark the gradient that a hook gets or finds, as the backward pass has not marked it."""

        def marking(tensor: Tensor) -> Any:
            for each in (tensor, tensor.grad if tensor.is_leaf else None):
                if each is not None:
                    self.put_there(each)
            return hook(tensor)

        return marking

    def _moved(self, tensor: Tensor, there: bool) -> Tensor:
        if self.is_there(tensor) == there:
            return tensor
        copy = tensor.clone()
        return self.put_there(copy) if there else copy

    def _to(self, tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        device = kwargs.pop("device", None)
        if args and isinstance(args[0], Tensor):
            device = GPU if self.is_there(args[0]) else torch.device("cpu")
            args = (args[0].dtype, *args[1:])
        elif args and (args[0] is None or isinstance(args[0], str | torch.device | int)):
            device, *rest = args
            kwargs |= dict(zip(("dtype", "non_blocking", "copy"), rest, strict=False))
            args = ()
        place = type_of(device)
        if place not in (None, "cpu", "cuda"):
            return tensor.to(device, *args, **kwargs)
        result = tensor.to(*args, **kwargs) if args or kwargs else tensor
        if result is not tensor and self.is_there(tensor):
            self.put_there(result)
        return result if place is None else self._moved(result, place == "cuda")


def type_of(device: str | torch.device | int | None) -> str | None:
    """Return the type of a device. A number alone is a GPU."""
    if device is None:
        return None
    return "cuda" if isinstance(device, int) else torch.device(device).type


def storage_of(tensor: Tensor) -> torch.UntypedStorage | None:
    """Return the storage of a tensor, or None for a sparse tensor, which has none."""
    with torch._C.DisableTorchFunction():
        while torch._C._functorch.is_functorch_wrapped_tensor(tensor):  # inside torch.vmap
            tensor = torch._C._functorch.get_unwrapped(tensor)
        return tensor.untyped_storage() if tensor.layout == torch.strided else None


def number_of(tensor: Tensor) -> int | None:
    """Return what identifies the storage of a tensor."""
    storage = storage_of(tensor)
    return None if storage is None else storage._cdata


def tensors_of(value: Any) -> Iterator[Tensor]:
    """Yield all tensors of nested lists, tuples and dictionaries."""
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from tensors_of(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from tensors_of(item)
