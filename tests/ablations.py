"""Provide small ablations, and write the files of their finished runs."""

import json
import os
from pathlib import Path

import pytest
import torch

from modular_fairseq.runs import execution
from modular_fairseq.runs.greedy.ablation import Ablation
from modular_fairseq.runs.greedy.protocol import Switch, switches_for
from modular_fairseq.runs.greedy.settings import write_settings
from modular_fairseq_cli import main as cli
from tests.fairseq_commands import OPTIMIZE, TINY

SWITCHES = switches_for()
BASE = [
    "--arch",
    "modular_transformer",
    *TINY[:-4],
    *OPTIMIZE[:-4],
    "--max-tokens",
    "150",
    "--num-workers",
    "0",
    "--max-epoch",
    "10",
]

TWO = [
    Switch("hidden dropout", ["--dropout", "0"], ["--dropout", "0.1"]),
    Switch("multihead", ["--encoder-attention-heads", "1"], ["--encoder-attention-heads", "4"]),
]

TWO_YAML = """
- name: hidden dropout
  off: --dropout 0
  on: --dropout 0.1
- {name: multihead, off: --encoder-attention-heads 1, on: --encoder-attention-heads 4}
"""


def result(valid, test=None, train=1.0, diverged=False):
    return {"valid": valid, "test": valid if test is None else test, "train": train, "diverged": diverged}


@pytest.fixture
def ablation_data(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data/test.de-en.de.idx").touch()
    return tmp_path / "data"


def ablation(folder, switches=SWITCHES, seeds=(1,), data="DATA"):
    folder.mkdir(exist_ok=True)
    return Ablation(
        str(folder), {"data": str(data), "options": BASE, "switches": list(switches)}, list(seeds)
    )


def settle(ablation, results):
    """Write the files that `results` would leave if these runs had been trained.

    `results` maps a model to its results, or to its results by seed. The files are result.json and
    protocol.json.
    """
    for model, found in results.items():
        for run in [trial.run for trial in ablation.trials(model)]:
            os.makedirs(run.path(""), exist_ok=True)
            Path(run.path("result.json")).write_text(json.dumps(found.get(run.seed, found)))
    write_settings(ablation.folder, ablation.settings, ablation.seeds)


def ablate(*args):
    cli.main(["ablate", *map(str, args)])


def words(text):
    """Return the lines of a table, with single spaces between words."""
    return [" ".join(line.split()) for line in text.splitlines()]


def write_checkpoint(path, epoch=3, updates=12, val_loss=5.0, **losses):
    """Write a checkpoint with the parts that an ablation reads.

    Args:
        path: its file.
        epoch, updates, val_loss: what it says of the training and the validation.
        losses: the mean of each training loss, by the name of the loss, such as nll_loss.
    """
    meters = [
        (10, name, "AverageMeter", {"val": 0, "sum": torch.tensor(10 * loss), "count": 10, "round": 3})
        for name, loss in (losses or {"loss": 4.0}).items()
    ]
    extra = {
        "train_iterator": {"epoch": epoch},
        "val_loss": val_loss,
        "metrics": {"train": meters},
    }
    torch.save({"model": {}, "optimizer_history": [{"num_updates": updates}], "extra_state": extra}, path)


def fairseq(monkeypatch, train=None, validation=("valid", "test")):
    """Replace fairseq's commands by a fake, and return the list of commands that it was called with.

    `train` makes checkpoints in a folder. It may return an exit status and the last lines of output.
    """
    called = []

    def fake(command, log, show):
        called.append(command[3].removeprefix("fairseq_cli."))
        if called[-1] == "train":
            return train(Path(log).parent) or (0, [])
        return 0, [
            f'2030-01-01 | INFO | {subset} | {{"{subset}_ppl": "{5 + i}.25"}}'
            for i, subset in enumerate(validation)
        ]

    monkeypatch.setattr(execution, "call", fake)
    return called


def checkpoints(best=True, **kwargs):
    def train(folder):
        write_checkpoint(folder / "checkpoint_last.pt", **kwargs)
        if best:
            write_checkpoint(folder / "checkpoint_best.pt", **kwargs)

    return train
