"""Test scripts/batch_statistics.py, which shows what the statistics of a batch tell the gates of a MAE."""

import pytest
import torch

from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import run_train
from tests.scripts import script

ORDERS = ("target length", "source length", "random")


def losses(capsys, data, path, *words):
    """Return the printed losses (ends, other tokens, both) by the order of sentences and the statistics."""
    capsys.readouterr()
    script("batch_statistics").main([str(data), "--path", str(path), *map(str, words)])
    found = {}
    for line in capsys.readouterr().out.splitlines()[2:]:
        order = next(order for order in ORDERS if line.startswith(order))
        found[order, "of the batch" in line] = [float(word) for word in line.split()[-3:]]
    return found


@pytest.fixture(scope="module", params=["batch", "lagged"])
def trained(request, reversal_data, tmp_path_factory):
    """A NOBCD, and its validation loss."""
    folder = tmp_path_factory.mktemp(request.param)
    words = f"--arch mae_transformer --mae-training joint --mae-gate-norm {request.param} --label-smoothing 0"
    run_train(reversal_data, *words.split(), "--max-epoch", 2, "--save-dir", folder)
    path = folder / "checkpoint_last.pt"
    return path, torch.load(path, weights_only=False)["extra_state"]["val_loss"]


def test_only_the_statistics_of_batches_depend_on_the_order_of_sentences(reversal_data, trained, capsys):
    path, valid_loss = trained
    found = losses(capsys, reversal_data, path, "--batch-size", 3)
    assert set(found) == {(order, of_batch) for order in ORDERS for of_batch in (False, True)}
    for order in ORDERS:
        assert found[order, False][2] == pytest.approx(valid_loss, abs=1e-3)
        assert found[order, True] != found[order, False]
        assert found[order, False] == pytest.approx(found["random", False], abs=1e-4)
    assert found["target length", True] != found["random", True]


def test_the_gates_that_use_the_batch_can_be_chosen(reversal_data, trained, capsys):
    of_gates = [
        losses(capsys, reversal_data, trained[0], "--batch-size", 3, "--gates", gates)
        for gates in ("all", "encoder", "decoder")
    ]
    for first, second in ((0, 1), (0, 2), (1, 2)):
        assert of_gates[first]["random", True] != of_gates[second]["random", True]
        assert of_gates[first]["random", False] == of_gates[second]["random", False]


def test_other_models_and_batches_of_one_sentence_are_refused(reversal_data, tmp_path, capsys):
    run_train(reversal_data, "--arch", "modular_transformer", "--max-update", 1, "--save-dir", tmp_path)
    path = tmp_path / "checkpoint_last.pt"
    with pytest.raises(UsageError, match="no gates with a BatchNorm"):
        losses(capsys, reversal_data, path)
    with pytest.raises(UsageError, match="--batch-size 1: "):
        losses(capsys, reversal_data, path, "--batch-size", 1)
