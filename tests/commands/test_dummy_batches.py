"""Test that the dummy batches of a worker without data enter neither steps nor statistics of gates."""

import logging

import pytest
import torch
from fairseq.logging import metrics
from fairseq.tasks.fairseq_task import FairseqTask

from modular_fairseq.training.gate_trainer import gate_trainer_of
from tests.watched_trainer import Watched


@pytest.mark.parametrize(
    "args",
    [
        "--mae-training joint",
        "--mae-gate-interval 1",
        "--mae-gate-interval 5",
        "--mae-finetune gates --finetune-from-model a.pt",
    ],
)
@pytest.mark.parametrize("step", ["train", "valid"])
def test_dummy_batches_enter_no_statistics(reversal_data, caplog, args, step):
    """A worker that has run out of batches gets an empty one, and takes part with its first batch instead."""
    watched = Watched(reversal_data, *args.split())
    trainer = watched.trainer
    trainer.begin_epoch(1)
    trainer.begin_valid_epoch(1)
    trainer._dummy_batch = watched.batches[3]
    hook = gate_trainer_of(trainer)
    monitor = hook.train_monitor if step == "train" else hook.valid_monitor

    def take(samples):
        with metrics.aggregate(new_root=True) as log:
            for sample in samples if step == "valid" else [samples]:
                (trainer.valid_step if step == "valid" else trainer.train_step)(sample)
        return log

    def sums():
        return {mixture: total.clone() for mixture, total in monitor.sums.items()}

    def norms():
        found = [b.clone() for name, b in watched.model.named_buffers() if ".norm.running_" in name]
        assert found
        return found

    gates, running = watched.state()[0], norms()
    caplog.set_level(logging.INFO)
    log = take([{}])
    takes_a_step = step == "train" and "interval 5" not in args
    assert ("skipped: no batch was left" in caplog.text) == takes_a_step
    assert "finite" not in caplog.text
    assert "gate_entropy" not in log
    assert not any(total.any() for total in sums().values())
    assert all(torch.equal(a, b) for a, b in zip(running, norms(), strict=True))
    assert watched.state()[0] == gates
    take([watched.batches[0]])
    counted = sums()
    assert len(counted) == len(hook.mixtures) > 0
    assert all(total[1:].sum() > 0 for total in counted.values())
    take([{}])
    assert all(torch.equal(total, counted[mixture]) for mixture, total in sums().items())


@pytest.mark.parametrize("samples", [[None, 0, 1], [0, None, 1], [0, 1, None]])
@pytest.mark.parametrize(
    "arch",
    [
        "modular_transformer",
        "mae_transformer --mae-training joint --mae-gate-dropout 0",
        "dma_transformer --criterion modular_cross_entropy",
    ],
)
def test_an_update_with_a_dummy_batch_is_that_of_the_other_batches(reversal_data, arch, samples):
    """Neither the gradient, the loss nor the number of words depends on a dummy batch, wherever it comes."""

    def after(samples):
        name, *options = arch.split()
        options += ["--update-freq", "3", "--dropout", "0", "--clip-norm", "0"]
        watched = Watched(reversal_data, *options, arch=name)
        trainer = watched.trainer
        trainer.begin_epoch(1)
        trainer._dummy_batch = watched.batches[3]
        with metrics.aggregate(new_root=True) as log:
            trainer.train_step([watched.batches[i] if i is not None else {} for i in samples])
        return log, [p.detach().clone() for p in watched.model.parameters()]

    expected, wanted = after([0, 1])
    log, found = after(samples)
    for name in ("loss", "nll_loss", "gnorm", "wpb", "bsz"):
        assert float(log[name].avg) == pytest.approx(float(expected[name].avg), rel=1e-5), name
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("ignored", [False, True])
def test_a_task_may_call_its_own_step_by_position(reversal_data, ignored):
    """fairseq's tasks speech_to_text and speech_to_speech do."""
    watched = Watched(reversal_data, arch="modular_transformer")
    trainer, sample = watched.trainer, watched.batches[0]
    words = (sample, watched.model, trainer.criterion, trainer.optimizer, 0, ignored)
    _, sample_size, logged = FairseqTask.train_step(trainer.task, *words)
    assert (sample_size, logged["ntokens"]) == ((0, 0) if ignored else (sample["ntokens"],) * 2)


def test_a_dummy_batch_does_not_count_in_a_joint_step(reversal_data):
    """Neither its gradient nor its tokens do."""

    def gates_after(samples):
        watched = Watched(
            reversal_data,
            *["--mae-training", "joint", "--update-freq", "2", "--dropout", "0", "--mae-gate-dropout", "0"],
        )
        watched.trainer.begin_epoch(1)
        watched.trainer._dummy_batch = watched.batches[3]
        watched.step([watched.batches[i] if i is not None else {} for i in samples])
        return [p.detach().clone() for p in watched.gates]

    for a, b in zip(gates_after([None, 0]), gates_after([0]), strict=True):
        torch.testing.assert_close(a, b)
