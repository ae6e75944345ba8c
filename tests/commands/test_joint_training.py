"""Test joint training (NOBCD), in which the gates learn in fairseq's own step by an SGD of their own."""

import logging

import pytest
import torch

from modular_fairseq.models.mae import gate_parameters
from modular_fairseq.training.gate_trainer import gate_trainer_of
from tests.fairseq_commands import differing_weights, going_on, run_train
from tests.watched_trainer import TRAININGS, Watched


@pytest.mark.parametrize("args", TRAININGS)
@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled:UserWarning")
def test_joint_training_changes_everything_in_one_step(reversal_data, monkeypatch, args):
    watched = Watched(reversal_data, "--mae-training", "joint", *args.split())
    watched.watch(monkeypatch)
    watched.trainer.begin_epoch(1)
    watched.trainer.set_num_updates(10)
    for _ in range(3):
        watched.step(watched.batches[: 2 if "update-freq" in args else 1])
    assert watched.changed == [("F", True, True)] * 3
    assert not any(p.requires_grad or p.grad is not None for p in watched.gates)
    if "ema" in args:  # the average was taken after the step of the gates
        averaged = gate_parameters(watched.trainer.ema.get_model())
        assert all(torch.equal(a, p) for a, p in zip(averaged, watched.gates, strict=True))


def gate_changes(reversal_data, *args):
    """Return how the gates change in one update without dropout."""
    watched = Watched(reversal_data, "--dropout", 0, "--mae-gate-dropout", 0, *args)
    watched.trainer.begin_epoch(1)
    before = [p.detach().clone() for p in watched.gates]
    watched.step(watched.batches[:1])
    return torch.cat([(p - b).detach().flatten() for p, b in zip(watched.gates, before, strict=True)])


@pytest.mark.parametrize("precision", ["--memory-efficient-fp16", "--amp"])
@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled:UserWarning")
def test_a_joint_step_depends_on_neither_the_loss_scale_nor_clipping(reversal_data, precision):
    joint = ["--mae-training", "joint"]
    plain = gate_changes(reversal_data, *joint)
    assert plain.abs().max() > 0
    for scale in (2, 128):
        scaled = gate_changes(
            reversal_data, *joint, precision, f"--{precision[-4:].strip('-')}-init-scale", scale,
            "--clip-norm", 1e-3,
        )  # fmt: skip
        assert (scaled - plain).norm() < 0.05 * plain.norm()


def test_an_update_that_overflows_leaves_the_gates_alone(reversal_data, caplog):
    """fairseq skips such an update, and lowers the loss scale."""
    watched = Watched(
        reversal_data, "--mae-training", "joint", "--memory-efficient-fp16", "--fp16-init-scale", 2**40
    )
    watched.trainer.begin_epoch(1)
    before = watched.state()
    caplog.set_level(logging.INFO)
    watched.step(watched.batches[:1])
    assert "gradient overflow detected" in caplog.text
    assert watched.state() == before and watched.trainer.get_num_updates() == 0


def test_a_joint_step_with_a_gradient_that_is_not_finite_is_left_out(reversal_data, caplog, monkeypatch):
    """Everything else learns, and the update counts."""
    watched = Watched(reversal_data, "--mae-training", "joint")
    watched.trainer.begin_epoch(1)
    sgd = gate_trainer_of(watched.trainer).sgd
    add_one = sgd.add_one
    monkeypatch.setattr(sgd, "add_one", lambda number, gradient, scale: add_one(number, gradient / 0, scale))
    caplog.set_level(logging.INFO)
    watched.step(watched.batches[:1])
    assert watched.changed == [("F", False, True)] and watched.trainer.get_num_updates() == 1
    assert "step of the gates skipped: the gates' gradient is not finite" in caplog.text


def running_statistics(watched):
    return {name: b.clone() for name, b in watched.model.named_buffers() if ".norm.running_" in name}


@pytest.mark.parametrize("training", ["joint", "joint_main", "bcd"])
@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled:UserWarning")
def test_a_batch_that_amp_skips_stays_out_of_the_running_statistics(reversal_data, training):
    """After some tries fairseq gives the batch up. The values of its forward passes are finite."""
    watched = Watched(reversal_data, "--mae-training", training, "--amp", "--amp-init-scale", 2**20)
    watched.trainer.begin_epoch(1)
    before = running_statistics(watched)
    criterion = watched.trainer.get_criterion()
    forward = criterion.forward
    criterion.forward = lambda *args, **kwargs: (
        forward(*args, **kwargs)[0] * float("inf"),
        *forward(*args, **kwargs)[1:],
    )
    assert watched.step(watched.batches[:1]) is None and watched.trainer.get_num_updates() == 0
    assert all(torch.equal(b, before[name]) for name, b in running_statistics(watched).items())
    criterion.forward = forward
    assert watched.step(watched.batches[:1]) is not None
    assert all(not torch.equal(b, before[name]) for name, b in running_statistics(watched).items())


@pytest.mark.parametrize("training", ["joint", "bcd"])
def test_ema_has_the_running_statistics_of_the_update(reversal_data, training):
    watched = Watched(reversal_data, "--mae-training", training, "--store-ema", "--ema-decay", 0)
    watched.trainer.begin_epoch(1)
    watched.step(watched.batches[:1])
    averaged = watched.trainer.ema.get_model().state_dict()
    for name, value in running_statistics(watched).items():
        torch.testing.assert_close(averaged[name], value)
        assert not torch.equal(value, torch.zeros_like(value))


def test_a_batch_that_is_tried_again_gives_one_joint_step(reversal_data):
    """fairseq's train_step calls itself after an overflow under --amp, and drops the gradients so far."""

    def gates_after(tries):
        words = "--mae-training joint --dropout 0 --mae-gate-dropout 0"
        watched = Watched(reversal_data, *words.split())
        watched.trainer.begin_epoch(1)
        criterion, samples = watched.trainer.get_criterion(), watched.batches[:1]
        if tries > 1:  # the first try has another gradient, and ends without a step of the main optimizer
            forward, optimizer_step = criterion.forward, watched.trainer.task.optimizer_step

            def three_times(*args, **kwargs):
                loss, *rest = forward(*args, **kwargs)
                return 3 * loss, *rest

            def try_again(*args, **kwargs):
                criterion.forward, watched.trainer.task.optimizer_step = forward, optimizer_step
                watched.trainer.train_step(samples)

            criterion.forward, watched.trainer.task.optimizer_step = three_times, try_again
        watched.step(samples)
        buffers = [b for name, b in watched.trainer.get_model().named_buffers() if "running" in name]
        return [value.detach().clone() for value in (*watched.gates, *buffers)]

    for a, b in zip(gates_after(1), gates_after(2), strict=True):
        torch.testing.assert_close(a, b)


def test_stopping_and_resuming_a_joint_training_equals_training_on(reversal_data, tmp_path):
    common = ["--arch", "mae_transformer", "--mae-training", "joint", "--max-epoch", 4]
    run_train(reversal_data, *common, "--save-dir", tmp_path / "whole")
    run_train(reversal_data, *common, "--max-epoch", 2, "--save-dir", tmp_path / "parts")
    with going_on(tmp_path / "parts"):
        run_train(reversal_data, *common, "--save-dir", tmp_path / "parts")
    whole, parts = (tmp_path / folder / "checkpoint_last.pt" for folder in ("whole", "parts"))
    assert differing_weights(whole, parts) == []


def test_the_main_optimizer_has_the_gates_in_joint_main_only(reversal_data, monkeypatch):
    for training, has_gates in (("joint", False), ("joint_main", True)):
        watched = Watched(reversal_data, "--mae-training", training)
        watched.watch(monkeypatch)
        watched.trainer.begin_epoch(5)
        watched.trainer.set_num_updates(10)
        watched.step(watched.batches[:1])
        watched.step(watched.batches[1:2])
        assert watched.changed == [("F", True, True)] * 2  # no G steps
        optimized = {id(p) for p in watched.trainer.optimizer.params}
        assert all((id(p) in optimized) == has_gates for p in watched.gates)
