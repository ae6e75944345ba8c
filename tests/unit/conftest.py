"""The tests of this folder start no process and run no command of fairseq."""

import os
import subprocess
from collections.abc import Iterator

import pytest
from fairseq_cli import generate, train


def refuse(*args: object, **kwargs: object) -> None:
    raise AssertionError("a unit test starts no process and no training: tests/commands is for those that do")


@pytest.fixture(scope="module", autouse=True)
def _() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(subprocess, "Popen", refuse)
        patch.setattr(os, "fork", refuse)
        patch.setattr(train, "main", refuse)
        patch.setattr(generate, "main", refuse)
        yield
