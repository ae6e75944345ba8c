"""The tests of this folder run the real commands, started by tests/preloaded."""

import pytest
import torch


@pytest.fixture(scope="session", autouse=True)
def _(fast_commands: None) -> None:
    pass


@pytest.fixture
def flat_fp16_on_cpu(monkeypatch):
    """Let --fp16 train on a CPU, whose tensors have device number None.

    fairseq asks torch for the number of the present GPU, to key its vector of all parameters by it.
    """
    if not torch.cuda.is_available():
        monkeypatch.setattr(torch.cuda, "current_device", lambda: None)
