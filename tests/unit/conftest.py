"""The tests of this folder start no process and run no command of fairseq."""

import contextlib
import os
import subprocess
from collections.abc import Iterator

import matplotlib.font_manager  # noqa: F401  (its first import on a machine calls fc-list, for its cache of fonts)
import pytest
from fairseq_cli import generate, train

from tests.devices import OnDevice


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("a unit test starts no process and no training: tests/commands is for those that do")


@pytest.fixture(scope="module", autouse=True)
def _() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        for name in ("fork", "posix_spawn", "system"):
            patch.setattr(os, name, refuse)
        patch.setattr(train, "main", refuse)
        patch.setattr(generate, "main", refuse)
        yield


@pytest.fixture(autouse=True)
def device(request: pytest.FixtureRequest) -> Iterator[str]:
    """The device of new tensors, as --device says."""
    name = request.config.getoption("device")
    with contextlib.nullcontext() if name == "cpu" else OnDevice(name):
        yield name
