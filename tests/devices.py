"""Let the unit tests run on a GPU without a change of each test: `pytest tests/unit --device cuda`."""

from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import _device_constructors


class OnDevice(TorchFunctionMode):
    """New tensors are on `device` unless the call names another one.

    A call with a generator of the CPU draws there and moves the result, so that all devices get the same
    numbers. `numpy()` and `numpy.asarray` copy from the device.
    """

    def __init__(self, device: str) -> None:
        super().__init__()
        self.device = torch.device(device)

    def __torch_function__(
        self, function: Callable, types: Any, args: tuple = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        if function in _device_constructors() and kwargs.get("device") is None:
            if kwargs.get("generator") is not None:
                return function(*args, **kwargs | {"device": "cpu"}).to(self.device)
            kwargs["device"] = self.device
        elif function in (torch.Tensor.numpy, torch.Tensor.__array__):
            return function(args[0].cpu(), *args[1:], **kwargs)
        return function(*args, **kwargs)
