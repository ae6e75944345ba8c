"""Fixtures of all tests, and the markers of the three tiers: a test is marked by the name of its folder.

Tests run on one thread: results do not depend on how a machine splits sums, and two test runs do not
compete for cores.
"""

import logging
import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.logging import metrics

from tests import quick_composition
from tests.places import PYTHON, ROOT
from tests.preloaded import Preloaded
from tests.pretended_gpu import PRETENDED

pytest_plugins = (
    "tests.ablations",
    "tests.masked_language_models",
    "tests.prepared_corpora",
    "tests.trained_tables",
)

TIERS = ("unit", "commands", "system")
SHARED = ("finished_table", "talks", "texts")  # fixtures of a session

torch.set_num_threads(1)
quick_composition.install()


@pytest.fixture(autouse=True)
def _as_in_a_process_of_its_own() -> Iterator[None]:
    """Give a test the same random numbers in any order, and forget what its trainers have logged."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    yield
    metrics.reset()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device",
        default="cpu",
        help=f"where tensors of the unit tests are, for example cuda; {PRETENDED} needs no GPU, and finds "
        "code that mixes up devices (default: cpu)",
    )


def pytest_configure(config: pytest.Config) -> None:
    device = config.getoption("device")
    if device == PRETENDED:
        return
    try:
        torch.zeros(1, device=device)
    except (AssertionError, RuntimeError) as error:
        said = str(error).splitlines()[0]
        raise pytest.UsageError(f"--device {device} cannot be used here ({said}); leave it out") from error


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        item.add_marker(_tier(item))
    if "PYTEST_XDIST_WORKER" not in os.environ:
        return
    # A worker takes whole files, and all files that share what takes long to make.
    shared = {item.path: name for item in items for name in SHARED if name in item.fixturenames}
    for item in items:
        item.add_marker(pytest.mark.xdist_group(shared.get(item.path, item.path.stem)))
    # The last tier, which takes long, comes first, so that the workers end at about the same time.
    items.sort(key=lambda item: -TIERS.index(_tier(item)))


def _tier(item: pytest.Item) -> str:
    return item.path.relative_to(ROOT / "tests").parts[0]


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    """Let tests log that follow a command which has silenced the log of its process."""
    yield
    logging.disable(logging.NOTSET)


@pytest.fixture(scope="session")
def preloaded() -> Iterator[Preloaded]:
    """A Python in which torch and fairseq are imported already; see tests/preloaded."""
    server = Preloaded()
    yield server
    server.close()


@pytest.fixture(scope="session")
def fast_commands(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let `sys.executable` and the commands on PATH be those of tests/preloaded, on Linux.

    A test that needs a fresh interpreter takes `tests.places.PYTHON`.
    """
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        if sys.platform == "linux":
            server = request.getfixturevalue("preloaded")
            patch.setattr(sys, "executable", str(server.python))
            patch.setenv("PATH", f"{server.programs}{os.pathsep}{os.environ['PATH']}")
        yield


@pytest.fixture
def real_commands(fast_commands: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let `sys.executable` and the commands on PATH be the real ones, for tests of kills."""
    monkeypatch.setattr(sys, "executable", PYTHON)
    monkeypatch.setenv("PATH", f"{os.path.dirname(PYTHON)}{os.pathsep}{os.environ['PATH']}")


@pytest.fixture(scope="session")
def reversal_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A binarized corpus of random words and their reversals."""
    from tests.fairseq_commands import binarize, write_reversal_corpus

    folder = tmp_path_factory.mktemp("reversal")
    write_reversal_corpus(folder)
    binarize(folder, folder / "bin")
    return folder / "bin"
