"""Write checkpoints that run a function when they are unpickled, and say what loading them must report."""

import errno
import os
from argparse import Namespace
from collections import OrderedDict

import pytest
import torch

from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError

FORMATS = pytest.mark.parametrize("zipped", [True, False], ids=["zip", "legacy"])


def full_disk(state, file):
    """Write as `torch.save` does on a disk that becomes full."""
    file.write(b"half of it")
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Pickled:
    """Pickle as a hostile author chooses: as a call, and a state for the result of the call."""

    def __init__(self, *reduced):
        self.reduced = reduced

    def __reduce__(self):
        return self.reduced


def checkpoint(**extra):
    """Return the parts of a small checkpoint, as the Trainer writes them."""
    model = OrderedDict(weight=torch.arange(6.0).reshape(2, 3), steps=torch.tensor(7))
    cfg = {
        "_name": None,
        "model": Namespace(_name="some_arch", arch="some_arch", encoder_layers=2),
        "task": {"_name": "translation", "data": "data", "source_lang": None},
        "optimization": {"lr": [0.1, 0.05], "update_freq": [1]},
    }
    history = [
        {"criterion_name": "C", "optimizer_name": "O", "lr_scheduler_state": {"best": None}, "num_updates": 3}
    ]
    return {
        "args": None,
        "cfg": cfg,
        "model": model,
        "optimizer_history": history,
        "task_state": {},
        "extra_state": {},
        **extra,
    }


def refusal(path):
    with pytest.raises(UsageError) as caught:
        load_checkpoint(path)
    sentence = str(caught.value)
    assert str(path) in sentence and "\n" not in sentence and "weights_only" not in sentence
    return sentence
