"""Test that a training with --patience that is continued stops where an uninterrupted one does."""

import pytest
import torch

from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.run import Run
from modular_fairseq.training.checkpoints import training_ended
from tests.fairseq_commands import QUIET, TINY, call, run_train

# With this learning rate no weight changes, so that no validation after the first one brings an improvement.
STILL = ["--arch", "transformer", *TINY, "--optimizer", "sgd", "--lr", "1e-30", "--max-tokens", "150"]
STILL += [*QUIET, "--save-interval", "1", "--no-epoch-checkpoints", "--patience", "3"]


def train(data, folder, *args):
    status, _, err = call("train", data, *STILL, *args, "--save-dir", folder)
    assert status == 0, err[-2000:]
    return torch.load(folder / "checkpoint_last.pt")


def epochs(state):
    """Return the number of epochs that a training has finished."""
    return state["extra_state"]["train_iterator"]["epoch"] - 1


def test_a_continued_training_stops_where_an_uninterrupted_one_does(reversal_data, tmp_path):
    whole = train(reversal_data, tmp_path / "whole", "--max-epoch", "9")
    assert epochs(whole) == 4  # the best epoch is the first
    assert whole["extra_state"]["early_stopping"]["num_runs"] == 3
    part = train(reversal_data, tmp_path / "part", "--max-epoch", "2")
    assert epochs(part) == 2 and part["extra_state"]["early_stopping"]["num_runs"] == 1
    continued = train(reversal_data, tmp_path / "part", "--max-epoch", "9")
    assert epochs(continued) == 4
    assert continued["extra_state"]["early_stopping"] == whole["extra_state"]["early_stopping"]
    assert [training_ended(state, 0, 9, 3) for state in (part, continued)] == [False, True]
    assert not training_ended(continued, 0, 9, 4)

    run = Run("run", str(tmp_path / "part"), Corpus("data"), ["--max-epoch", "9", "--patience", "3"], 1)
    assert run._is_trained()
    assert not run._replace(words=["--max-epoch", "9", "--patience", "5"])._is_trained()
    assert not run._replace(words=["--max-epoch", "9"])._is_trained()


@pytest.mark.parametrize(
    "start",
    [
        [],
        ["--finetune-from-model"],
        ["--reset-meters", "--restore-file"],
        ["--reset-optimizer", "--restore-file"],
    ],
    ids=lambda start: " ".join(start),
)
def test_another_training_of_the_process_counts_afresh(reversal_data, tmp_path, start):
    run_train(reversal_data, *STILL, "--max-epoch", 2, "--save-dir", tmp_path / "first", common=())
    path = [tmp_path / "first/checkpoint_last.pt"] if start else []
    run_train(
        reversal_data, *STILL, "--max-epoch", 4, "--save-dir", tmp_path / "own", *start, *path, common=()
    )
    found = torch.load(tmp_path / "own/checkpoint_last.pt")["extra_state"]["early_stopping"]
    assert found["num_runs"] == (1 if "--restore-file" in start else 3)


def test_without_patience_a_checkpoint_is_as_fairseqs(reversal_data, tmp_path):
    run_train(reversal_data, *STILL, "--patience", -1, "--max-epoch", 1, "--save-dir", tmp_path, common=())
    assert "early_stopping" not in torch.load(tmp_path / "checkpoint_last.pt")["extra_state"]
