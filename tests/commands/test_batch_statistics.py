"""Test scripts/batch_statistics.py, which shows what the statistics of a batch tell the gates of a MAE."""

import pytest
import torch

from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import run_train
from tests.scripts import script


@pytest.fixture
def module(monkeypatch):
    module = script("batch_statistics")
    monkeypatch.setattr(module, "SENTENCES", 3)
    return module


def losses(module, data, path, capsys):
    """Return the printed losses (ends, other tokens, both) by the order of sentences and the statistics."""
    capsys.readouterr()
    module.main([str(data), "--path", str(path)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()[2:]]
    return {
        (words[0], "batch" in words[1:-3]): [float(word) for word in words[-3:]] for words in lines if words
    }


@pytest.mark.parametrize("norm", ["batch", "lagged"])
def test_only_the_statistics_of_batches_depend_on_the_order_of_sentences(
    module, reversal_data, tmp_path, capsys, norm
):
    words = f"--arch mae_transformer --mae-training joint --mae-gate-norm {norm} --label-smoothing 0"
    run_train(reversal_data, *words.split(), "--max-epoch", 2, "--save-dir", tmp_path)
    path = tmp_path / "checkpoint_last.pt"
    valid_loss = torch.load(path, weights_only=False)["extra_state"]["val_loss"]
    found = losses(module, reversal_data, path, capsys)
    assert set(found) == {(order, batch) for order in ("of", "random") for batch in (False, True)}
    for order in ("of", "random"):
        assert found[order, False][2] == pytest.approx(valid_loss, abs=1e-3)
        assert found[order, True] != found[order, False]
    assert found["of", False] == pytest.approx(found["random", False], abs=1e-4)
    assert found["of", True] != found["random", True]


def test_a_model_without_such_gates_is_refused(module, reversal_data, tmp_path, capsys):
    run_train(reversal_data, "--arch", "modular_transformer", "--max-update", 1, "--save-dir", tmp_path)
    with pytest.raises(UsageError, match="no gates with a BatchNorm"):
        losses(module, reversal_data, tmp_path / "checkpoint_last.pt", capsys)
