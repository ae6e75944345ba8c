"""Test that --best-checkpoint-metric is compared with what validation measures, before the training."""

import re

import pytest
import torch
from fairseq.trainer import Trainer

from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import run_train, weights

SHORT = ["--max-epoch", 2, "--no-epoch-checkpoints", "--arch", "mae_transformer"]


@pytest.mark.parametrize(
    "metric, message",
    [
        ("accurracy", "gate_entropy, .*, loss, nll_loss, ppl; give one of these$"),
        (
            "bleu",
            "gate_entropy, .*, loss, nll_loss, ppl; give one of these, or add --eval-bleu$",
        ),
    ],
)
def test_a_metric_that_is_not_measured_is_refused_before_the_first_epoch(
    reversal_data, tmp_path, metric, message
):
    with pytest.raises(
        UsageError, match=f"^--best-checkpoint-metric {metric}: validation measures {message}"
    ):
        run_train(reversal_data, *SHORT, "--best-checkpoint-metric", metric, "--save-dir", tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_the_comparison_leaves_no_trace(reversal_data, tmp_path, monkeypatch, caplog):
    """The training validates a batch more, and is the same. Its gates have running statistics."""
    train_step, dummies, losses = Trainer.train_step, [], []
    subsets = ["--valid-subset", "valid,test"]  # the dummy batch is of the last one

    def first_step(trainer, *args, **kwargs):
        dummies.append(trainer._dummy_batch["target"].tolist())
        monkeypatch.setattr(Trainer, "train_step", train_step)
        return train_step(trainer, *args, **kwargs)

    for name, options in (("plain", []), ("ppl", ["--best-checkpoint-metric", "ppl"])):
        monkeypatch.setattr(Trainer, "train_step", first_step)
        caplog.clear()
        run_train(reversal_data, *SHORT, *subsets, *options, "--save-dir", tmp_path / name)
        lines = [
            record.getMessage() for record in caplog.records if record.name in ("train", "valid", "test")
        ]
        losses.append([re.findall(r"(?<!best_)(?:loss|entropy) \S+", line) for line in lines])
        assert (tmp_path / name / "checkpoint_best.pt").exists()
    assert dummies[0] == dummies[1]
    assert losses[0] == losses[1] and len(losses[0]) == 6
    plain, ppl = (weights(tmp_path / name / "checkpoint_last.pt") for name in ("plain", "ppl"))
    assert any("running" in name for name in plain)
    assert plain.keys() == ppl.keys() and all(torch.equal(plain[name], ppl[name]) for name in plain)


def test_a_score_that_an_option_measures_is_not_looked_for(reversal_data, tmp_path):
    bleu = ["--eval-bleu", "--best-checkpoint-metric", "bleu", "--maximize-best-checkpoint-metric"]
    run_train(reversal_data, *SHORT, *bleu, "--save-dir", tmp_path)
    assert (tmp_path / "checkpoint_best.pt").exists()


def test_a_training_that_goes_on_knows_nothing_of_the_best_loss_of_another(reversal_data, tmp_path):
    """The first part of the training did not validate, so its checkpoint has no best loss."""
    words = ["--arch", "modular_transformer", "--no-epoch-checkpoints", "--dropout", 0]
    own = [*words, "--save-dir", tmp_path / "own"]
    run_train(reversal_data, *own, "--max-epoch", 1, "--disable-validation")
    run_train(reversal_data, *words, "--save-dir", tmp_path / "other", "--max-epoch", 6)
    run_train(reversal_data, *own, "--max-epoch", 2)
    best = load_checkpoint(tmp_path / "own/checkpoint_best.pt")["extra_state"]
    assert best["best"] == best["val_loss"]
    assert best["best"] > load_checkpoint(tmp_path / "other/checkpoint_best.pt")["extra_state"]["best"]
