"""The tests of this folder start no process and run no command of fairseq."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from unittest import mock

import matplotlib.font_manager  # noqa: F401  (its first import on a machine calls fc-list, for its cache of fonts)
import pytest
import torch
from fairseq_cli import generate, train

from tests.devices import OnDevice
from tests.pretended_gpu import PRETENDED, PretendedGpu


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("a unit test starts no process and no training: tests/commands is for those that do")


@pytest.fixture(scope="module", autouse=True)
def _no_process() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        for name in ("fork", "posix_spawn", "system"):
            patch.setattr(os, name, refuse)
        patch.setattr(train, "main", refuse)
        patch.setattr(generate, "main", refuse)
        yield


def move_given_tensors(test: pytest.Item, device: str, stack: contextlib.ExitStack) -> None:
    """Move tensors that were made when a test was collected: its parameters, and constants of its module."""
    if isinstance(test, pytest.Function):
        parameters = test.callspec.params if hasattr(test, "callspec") else {}
        for values in (vars(test.module), parameters):
            moved = {
                name: value.to(device) for name, value in values.items() if isinstance(value, torch.Tensor)
            }
            stack.enter_context(mock.patch.dict(values, moved))


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of new tensors, as --device says."""
    name = request.config.getoption("device")
    mark = request.node.get_closest_marker("cpu_only")
    if mark is not None and name != "cpu":
        pytest.skip(f"not on another device than the CPU: {mark.args[0]}")
    with contextlib.ExitStack() as stack:
        if name == PRETENDED:
            stack.enter_context(PretendedGpu())
            name = "cuda"
        if name != "cpu":
            stack.enter_context(OnDevice(name))
            move_given_tensors(request.node, name, stack)
        yield name
