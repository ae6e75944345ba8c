"""Test that the plugin refuses a torch that is too old, and no other version."""

import subprocess
import sys

import pytest
import torch
from torch.torch_version import TorchVersion

from modular_fairseq.versions import check_torch
from modular_fairseq_cli.errors import UsageError


@pytest.mark.parametrize("version", ["1.13.1", "2.5.1", "2.5.1+cpu"])
def test_an_old_torch_is_refused(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    with pytest.raises(UsageError, match="too old for modular_fairseq, which needs torch 2.6 or newer"):
        check_torch()


@pytest.mark.parametrize("version", ["2.6.0", "2.6.0+cu124", "2.10.0", "2.13.0+cpu", "3.0.1"])
def test_a_newer_torch_is_accepted(version, monkeypatch):
    monkeypatch.setattr(torch, "__version__", TorchVersion(version))
    check_torch()


def test_importing_the_plugin_with_an_old_torch_is_one_sentence():
    command = "import torch; torch.__version__ = type(torch.__version__)('2.5.1'); import modular_fairseq"
    done = subprocess.run([sys.executable, "-c", command], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr.startswith("modular_fairseq: error: torch 2.5.1 is too old")
    assert done.stderr.count("\n") == 1
