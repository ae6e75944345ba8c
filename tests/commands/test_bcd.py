"""Tests of gate_trainer.py, g_steps.py and gates_only.py: G steps change gates only, and F steps never do.

This holds for every way to optimise. The tests also cover the schedule, losses, fine-tuning and resuming.
"""

import itertools
import logging
import math
import weakref

import pytest
import torch
from fairseq.logging import metrics

from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.dropout import GrowingDropout
from modular_fairseq.modules.gates import GateNorm
from modular_fairseq.runs.execution import DIVERGED
from modular_fairseq.training import g_steps
from modular_fairseq.training.g_steps import GStepResult
from modular_fairseq.training.gate_trainer import gate_trainer_of
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import (
    differing_weights,
    going_on,
    run_generate,
    run_train,
    train_config,
    weights,
)
from tests.watched_trainer import TRAININGS, Watched


@pytest.mark.parametrize("args", TRAININGS)
@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled:UserWarning")
def test_g_steps_change_gates_only_and_f_steps_the_rest_only(reversal_data, monkeypatch, args):
    watched = Watched(reversal_data, "--mae-gate-interval", 1, *args.split())
    watched.watch(monkeypatch)
    watched.trainer.begin_epoch(1)
    watched.trainer.set_num_updates(10)
    for i in range(3):
        watched.step(watched.batches[: 2 if "update-freq" in args else 1] if i else watched.batches[2:3])
    assert watched.changed == [("G", True, False), ("F", False, True)] * 3
    assert watched.trainer.get_num_updates() == 13  # F steps only
    assert not any(p.requires_grad for p in watched.gates)
    assert all(p.requires_grad for p in watched.rest)


@pytest.mark.parametrize(("interval", "expected"), [(1, [1, 2, 3, 4, 5, 6]), (2, [2, 4, 6]), (5, [5])])
def test_g_steps_are_taken_in_every_intervalth_epoch(reversal_data, monkeypatch, interval, expected):
    watched = Watched(reversal_data, "--mae-gate-interval", interval)
    watched.watch(monkeypatch)
    epochs = []
    for epoch in range(1, 7):
        watched.changed.clear()
        watched.trainer.begin_epoch(epoch)
        watched.step(watched.batches[:1])
        if ("G", True, False) in watched.changed:
            epochs.append(epoch)
    assert epochs == expected


@pytest.mark.parametrize("training", ["bcd", "joint"])
@pytest.mark.parametrize("loss", ["instance", "token", "sentence"])
def test_a_step_is_sgd_on_the_mean_loss_of_the_mixture(reversal_data, training, loss):
    """The step of the gates is compared with autograd on the whole update: two micro-batches, constant
    learning rate, no dropout. In joint training everything else learns as by a main optimizer that has no
    gates, from the same gradient.
    """
    args = (
        f"--mae-training {training} --dropout 0 --mae-gate-dropout 0 --mae-gate-lr 0.5 "
        f"--update-freq 2 --sentence-avg --clip-norm 1e-3 --mae-gate-loss {loss} "
        f"--optimizer sgd --lr 0.1 --lr-scheduler fixed --warmup-updates 0 --weight-decay 0.01"
    )
    if training == "bcd":
        args += " --mae-gate-interval 1"
    watched = Watched(reversal_data, *args.split())
    model, samples = watched.model.train(), watched.batches[:2]
    watched.trainer.begin_epoch(1)
    trainer_bcd = gate_trainer_of(watched.trainer)
    for p in watched.gates:
        p.requires_grad_(True)
    for mixture in expert_mixtures(model).values():
        mixture.step = "G"
    total = sum(watched.trainer.get_criterion()(model, sample)[0] for sample in samples)
    gradients = torch.autograd.grad(total, [*watched.gates, *watched.rest])
    sentences, tokens = (sum(sample[key] for sample in samples) for key in ("nsentences", "ntokens"))
    expected, position = [], 0
    for mixture in expert_mixtures(model).values():
        per_sentence = loss == "sentence" or (loss == "instance" and mixture.running_mean is None)
        for p in mixture.gate_network.parameters():
            gradient = gradients[position] / (sentences if per_sentence else tokens)
            expected.append(p.detach() - 0.5 * gradient)
            position += 1
    for p in watched.gates:
        p.requires_grad_(False)
    if training == "joint":
        rest = [gradient / sentences for gradient in gradients[position:]]
        norm = torch.cat([gradient.flatten() for gradient in rest]).norm()
        clip = 1e-3 / (norm + 1e-6)  # of the main optimizer's own parameters
        rest = [
            p.detach() - 0.1 * (clip * gradient + 0.01 * p.detach())
            for p, gradient in zip(watched.rest, rest, strict=True)
        ]
        watched.step(samples)
        for p, e in zip(watched.rest, rest, strict=True):
            torch.testing.assert_close(p.detach(), e, atol=1e-6, rtol=1e-5)
        assert all(p.grad is None and not p.requires_grad for p in watched.gates)
    else:
        with metrics.aggregate("train") as log:
            trainer_bcd.g_step(samples)
        assert log["g_loss"].avg == pytest.approx(total.item() / sentences / math.log(2), rel=1e-5)
    for p, e in zip(watched.gates, expected, strict=True):
        torch.testing.assert_close(p.detach(), e, atol=1e-6, rtol=1e-5)


def test_the_g_and_the_f_step_of_an_update_draw_different_dropout_masks(reversal_data, monkeypatch):
    watched = Watched(reversal_data, "--mae-gate-interval", 1, "--dropout", 0.5)
    masks = []
    dropout = watched.model.encoder.dropout_module
    dropout.register_forward_hook(lambda module, inputs, output: masks.append(output.eq(0)) and None)
    watched.trainer.begin_epoch(1)
    for _ in range(2):
        watched.trainer.train_step(watched.batches[:1])
    assert len(masks) == 4 and all(0 < mask.sum() < mask.numel() for mask in masks)
    assert not any(torch.equal(a, b) for a, b in itertools.combinations(masks, 2))


def test_a_g_step_with_a_gradient_that_is_not_finite_is_left_out(reversal_data, caplog):
    watched = Watched(reversal_data, "--mae-gate-interval", 1)
    before = watched.state()
    watched.trainer.begin_epoch(1)
    caplog.set_level(logging.INFO, logger=g_steps.__name__)
    criterion = watched.trainer.get_criterion()
    forward = criterion.forward
    criterion.forward = lambda *args, **kwargs: (
        forward(*args, **kwargs)[0] * float("nan"),
        *forward(*args, **kwargs)[1:],
    )
    gate_trainer_of(watched.trainer).g_step(watched.batches[:1])
    assert watched.state() == before
    assert "G step skipped" in caplog.text
    assert "the gates do not learn" not in caplog.text
    with_nan, criterion.forward = criterion.forward, forward
    for expected in (0, 1):
        criterion.forward = forward
        gate_trainer_of(watched.trainer).g_step(watched.batches[:1])  # the row ends
        criterion.forward = with_nan
        for _ in range(g_steps.MANY_SKIPPED - 1 + 2 * expected):
            gate_trainer_of(watched.trainer).g_step(watched.batches[:1])
        assert caplog.text.count("the gates do not learn") == expected
        says = "50 G steps in a row were skipped, the last one because the gates' gradient"
        assert caplog.text.count(says) == expected


@pytest.mark.filterwarnings("ignore:.*GradScaler is enabled:UserWarning")
@pytest.mark.parametrize(
    ("precision", "error"),
    [
        ("", "gradients are Nan/Inf"),
        ("--memory-efficient-fp16 --fp16-init-scale 4", "Minimum loss scale reached"),
        ("--amp --amp-init-scale 4", "Minimum loss scale reached"),
    ],
)
def test_training_the_gates_alone_ends_with_a_loss_that_is_never_finite(reversal_data, precision, error):
    """Skipped updates do not count. The run engine knows these messages."""
    args = ["--mae-finetune", "gates", "--finetune-from-model", "a.pt", *precision.split()]
    watched = Watched(reversal_data, *args)
    watched.trainer.begin_epoch(1)
    before = watched.state()
    criterion = watched.trainer.get_criterion()
    forward = criterion.forward
    criterion.forward = lambda *args, **kwargs: (
        forward(*args, **kwargs)[0] * float("nan"),
        *forward(*args, **kwargs)[1:],
    )
    with pytest.raises(FloatingPointError, match=error) as caught:
        for _ in range(30):
            assert watched.trainer.train_step(watched.batches[:1]) is None
    assert DIVERGED.search(f"FloatingPointError: {caught.value}")
    assert watched.state() == before and watched.trainer.get_num_updates() == 0
    criterion.forward = forward
    watched.trainer.train_step(watched.batches[:1])
    assert watched.state() != before and watched.trainer.get_num_updates() == 1


def test_a_g_step_forgets_passes_of_before(reversal_data):
    """A validation in training mode, for example, is no part of a step."""
    watched = Watched(reversal_data, "--mae-gate-interval", 1, "--dropout", 0, "--mae-gate-dropout", 0)
    hook = gate_trainer_of(watched.trainer)
    norms = [module for module in watched.model.modules() if isinstance(module, GateNorm)]
    watched.trainer.begin_epoch(1)
    watched.model.train()
    seen = []
    for stale in (0, 1):
        for norm in norms:
            norm.running_mean.zero_()
            norm.running_var.fill_(1)
            norm.seen = ((torch.full_like(norm.bias, 9), norm.weight.detach(), torch.tensor(9.0)),) * stale
        gates = [p.detach().clone() for p in watched.gates]
        hook.g_step(watched.batches[:1])
        seen.append([norm.running_mean.clone() for norm in norms])
        for p, before in zip(watched.gates, gates, strict=True):
            p.data.copy_(before)
    assert seen[0] and all(torch.equal(a, b) for a, b in zip(*seen, strict=True))


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_running_out_of_memory_in_a_g_step_leaves_the_batch_out(reversal_data, caplog, where):
    """The gates learn as if the update had only the other batch, whose forward pass gets all memory again."""
    losses = []

    def fail(*_):
        raise RuntimeError("CUDA out of memory")

    def gates_after(fails):
        watched = Watched(
            reversal_data,
            "--mae-gate-interval",
            1,
            "--update-freq",
            2,
            "--dropout",
            0,
            "--mae-gate-dropout",
            0,
        )
        watched.trainer.begin_epoch(1)
        criterion, hooks = watched.trainer.get_criterion(), []
        forward = criterion.forward

        def forward_that_may_fail(model, sample, reduce=True):
            while hooks:
                hooks.pop().remove()
            assert not any(loss() is not None for loss in losses)
            result = forward(model, sample, reduce)
            if sample is watched.batches[0] and fails:
                losses.append(weakref.ref(result[0]))
                fail() if where == "forward" else hooks.append(result[0].register_hook(fail))
            return result

        criterion.forward = forward_that_may_fail
        outputs, size, _ = gate_trainer_of(watched.trainer).g_step(watched.batches[0 if fails else 1 : 2])
        assert len(outputs) == 1 and size == watched.batches[1]["ntokens"]
        buffers = [b for name, b in watched.trainer.get_model().named_buffers() if "running" in name]
        return [*watched.gates, *buffers]

    for a, b in zip(gates_after(fails=True), gates_after(fails=False), strict=True):
        torch.testing.assert_close(a.detach(), b.detach(), atol=1e-6, rtol=1e-4)
    assert "out of memory in a G step" in caplog.text


def test_a_worker_without_memory_takes_part_with_what_others_expect(reversal_data, monkeypatch):
    """FTG: workers add up the values of a log by its keys, and the time of training for --stop-time-hours."""
    watched = Watched(reversal_data, "--mae-finetune", "gates", "--finetune-from-model", "a.pt")
    trainer, sent = watched.trainer, []
    trainer.begin_epoch(1)

    def aggregate(outputs, *sums, ignore):
        sent.append((*map(dict.keys, outputs), ignore))
        return outputs, sums

    def g_step_without_memory(samples):
        return GStepResult([], 0.0, take(samples).step)

    monkeypatch.setattr(trainer, "_sync_stats", lambda: True)
    monkeypatch.setattr(trainer, "_aggregate_logging_outputs", aggregate)
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "_local_cumulative_training_time", lambda: 5.0)
        trainer.train_step(watched.batches[:1])
    assert trainer.cumulative_training_time() == 5.0
    worker = gate_trainer_of(trainer).gates_only
    take = worker.g_steps.take
    monkeypatch.setattr(worker.g_steps, "take", g_step_without_memory)
    trainer.train_step(watched.batches[:1])
    assert sent == [(sent[0][0], False), (sent[0][0], True)] and "ntokens" in sent[0][0]
    worker.last_logging_output = None
    with pytest.raises(RuntimeError, match="out of memory in all batches; give a smaller --max-tokens"):
        trainer.train_step(watched.batches[:1])
    result = take(watched.batches[:1])
    skipped = result._replace(step=result.step._replace(skipped="overflow"))
    monkeypatch.setattr(worker.g_steps, "take", lambda samples: skipped)
    assert trainer.train_step(watched.batches[:1]) is None
    monkeypatch.setattr(worker.g_steps, "take", g_step_without_memory)
    trainer.train_step(watched.batches[:1])
    assert sent[2:] == [(sent[0][0], True)]


def test_finetuning_gates_empties_the_cache_as_often_as_asked_for(reversal_data, monkeypatch):
    args = ["--mae-finetune", "gates", "--finetune-from-model", "a.pt", "--empty-cache-freq", 2]
    watched = Watched(reversal_data, *args)
    trainer, emptied = watched.trainer, []
    trainer.begin_epoch(1)
    worker = gate_trainer_of(trainer).gates_only
    result = worker.g_steps.take(watched.batches[:1])
    monkeypatch.setattr(worker.g_steps, "take", lambda samples: result)
    monkeypatch.setattr(trainer, "cuda", True)
    monkeypatch.setattr("torch.cuda.empty_cache", lambda: emptied.append(trainer.get_num_updates()))
    for _ in range(4):
        worker.update(watched.batches[:1])
    assert emptied == [1, 3]


def test_gate_statistics_are_logged_for_training_and_validation(reversal_data):
    watched = Watched(
        reversal_data, "--mae-gate-interval", 1, "--mae-gate-init", "zero", "--mae-gate-lr", 1e-9
    )
    watched.trainer.begin_epoch(1)
    with metrics.aggregate() as log:
        watched.trainer.train_step(watched.batches[:1])
    assert log.get_smoothed_value("gate_entropy") == pytest.approx(math.log(4), abs=1e-3)
    assert log["g_loss"].smoothed_value > 0
    watched.trainer.begin_valid_epoch(1)
    for mixture in expert_mixtures(watched.model).values():
        mixture.gate_network.fc2.bias.data[2] = 50.0
    with metrics.aggregate(new_root=True) as log:
        watched.trainer.valid_step(watched.batches[0])
    found = {
        key: log.get_smoothed_value(key)
        for key in ("gate_entropy", "gate_max_share", "gate_min_share", "gate_rare_experts")
    }
    assert found == {
        "gate_entropy": 0.0,
        "gate_max_share": 1.0,
        "gate_min_share": 0.0,
        "gate_rare_experts": 3 * len(expert_mixtures(watched.model)),
    }


def test_the_statistics_of_gates_begin_anew_in_every_epoch(reversal_data):
    watched = Watched(reversal_data)
    watched.trainer.begin_epoch(1)
    watched.trainer.train_step(watched.batches[:1])
    monitor = gate_trainer_of(watched.trainer).train_monitor
    assert monitor.values() and monitor.has_data
    watched.trainer.begin_epoch(2)
    assert monitor.values() == {} and not monitor.has_data


def test_a_dummy_batch_after_data_leaves_an_update_with_data(reversal_data):
    watched = Watched(reversal_data)
    watched.trainer.begin_epoch(1)
    hook = gate_trainer_of(watched.trainer)
    for is_dummy in (False, True):
        hook.begin_batch(watched.batches[0], is_dummy)
    assert hook.has_data


def test_the_logged_loss_of_g_steps_is_the_mean_over_tokens(reversal_data):
    watched = Watched(reversal_data, "--mae-gate-interval", 1, "--mae-gate-lr", 1e-9)
    watched.trainer.begin_epoch(1)
    hook, seen = gate_trainer_of(watched.trainer), []
    with metrics.aggregate("train") as log:
        for samples in (watched.batches[:1], watched.batches[1:4]):
            seen.append((hook.g_step(samples).sample_size, hook.g_steps.last_loss))
    assert seen[0][1] != seen[1][1]
    expected = sum(size * loss for size, loss in seen) / sum(size for size, _ in seen)
    assert log["g_loss"].avg == pytest.approx(expected, rel=1e-9)


def test_an_update_without_a_g_step_logs_the_loss_of_the_last_one(reversal_data):
    watched = Watched(reversal_data, "--mae-gate-interval", 2)
    losses = []
    for epoch in (2, 3):  # G steps are taken in the first one only
        watched.trainer.begin_epoch(epoch)
        with metrics.aggregate(new_root=True) as log:
            watched.trainer.train_step(watched.batches[:1])
        losses.append(log.get_smoothed_value("g_loss"))
    assert losses[0] == losses[1] > 0


def test_a_g_step_has_the_attention_dropout_of_its_update(reversal_data):
    args = ("--attention-dropout", 0.4, "--attention-dropout-warmup-updates", 10, "--mae-gate-interval", 1)
    watched = Watched(reversal_data, *args)
    watched.trainer.begin_epoch(1)
    watched.trainer.set_num_updates(5)  # as a training that is continued
    gate_trainer_of(watched.trainer).g_step(watched.batches[:1])
    assert {m.p for m in watched.model.modules() if isinstance(m, GrowingDropout)} == {0.2}


def test_the_log_shows_the_present_training_also_after_a_mean_of_an_older_version(reversal_data):
    trainings = [
        Watched(reversal_data, "--mae-gate-interval", interval, "--mae-gate-init", "zero")
        for interval in (1, 2)
    ]
    with metrics.aggregate(new_root=True) as log:
        metrics.log_scalar("gate_entropy", 9.0)
        for watched in trainings:
            watched.trainer.begin_epoch(1)
            watched.trainer.train_step(watched.batches[:1])
            monitor = gate_trainer_of(watched.trainer).train_monitor
            assert log.get_smoothed_value("gate_entropy") == monitor.values()["gate_entropy"] < 2
            assert [key for _, _, key in log.priorities].count("gate_entropy") == 1


def test_layer_drop_may_leave_out_every_gate(reversal_data):
    watched = Watched(
        reversal_data, "--mae-gate-interval", 1, "--encoder-layerdrop", 1, "--decoder-layerdrop", 1
    )
    before = watched.state()[0]
    watched.trainer.begin_epoch(1)
    watched.step(watched.batches[:1])
    assert watched.state()[0] == before


@pytest.mark.parametrize("arch", ["modular_transformer", "mae_transformer"])
def test_ema_keeps_the_final_norm(reversal_data, arch):
    watched = Watched(
        reversal_data, "--store-ema", "--encoder-normalize-before", "--decoder-normalize-before", arch=arch
    )
    watched.trainer.begin_epoch(1)
    watched.step(watched.batches[:1])
    assert watched.trainer.ema.get_model().encoder.layer_norm is not None


def test_finetuning_gates_in_half_precision_lowers_the_loss_scale(reversal_data):
    watched = Watched(
        reversal_data,
        "--mae-finetune",
        "gates",
        "--finetune-from-model",
        "a.pt",
        "--memory-efficient-fp16",
        "--fp16-init-scale",
        2**30,
    )
    watched.trainer.begin_epoch(1)
    before = watched.state()[0]
    with metrics.aggregate() as log:
        for _ in range(30):
            watched.step(watched.batches[:1])
    assert watched.state()[0] != before and watched.trainer.optimizer.scaler.loss_scale < 2**30
    assert log["loss_scale"].val == watched.trainer.optimizer.scaler.loss_scale


def test_a_g_step_does_not_depend_on_the_loss_scale(reversal_data):
    gates = []
    for scale in (2, 128):
        args = [
            "--mae-gate-interval",
            1,
            "--dropout",
            0,
            "--mae-gate-dropout",
            0,
            "--memory-efficient-fp16",
            "--fp16-init-scale",
            scale,
        ]
        watched = Watched(reversal_data, *args)
        watched.trainer.begin_epoch(1)
        before = [p.detach().clone() for p in watched.gates]
        gate_trainer_of(watched.trainer).g_step(watched.batches[:1])
        gates.append(
            torch.cat([(p - b).detach().flatten() for p, b in zip(watched.gates, before, strict=True)])
        )
    assert gates[0].abs().max() > 0
    assert (gates[0] - gates[1]).norm() < 0.05 * gates[0].norm()


def test_trying_a_batch_again_takes_no_second_g_step(reversal_data, monkeypatch):
    """fairseq's train_step calls itself after an overflow under --amp."""
    watched = Watched(reversal_data, "--mae-gate-interval", 1)
    watched.watch(monkeypatch)
    watched.trainer.begin_epoch(1)
    tries = []

    def f_step(samples, raise_oom):
        tries.append(len(samples))
        return watched.trainer.train_step(samples, raise_oom) if len(tries) == 1 else {}

    hook = gate_trainer_of(watched.trainer)
    plain = type(hook).train_step
    monkeypatch.setattr(
        type(hook),
        "train_step",
        lambda self, _, samples, raise_oom: plain(self, f_step, samples, raise_oom),
    )
    watched.trainer.train_step(watched.batches[:1])
    assert tries == [1, 1] and watched.changed == [("G", True, False)]


def test_models_without_gates_train_as_before(reversal_data):
    for arch, args in (
        ("modular_transformer", []),
        ("mae_transformer", ["--mae-gating", "uniform"]),
        ("transformer", []),
    ):
        watched = Watched(reversal_data, *args, arch=arch)
        watched.trainer.begin_epoch(1)
        watched.trainer.set_num_updates(10)
        watched.step(watched.batches[:1])
        assert watched.changed == [("F", False, True)]
        assert gate_trainer_of(watched.trainer) is None


@pytest.mark.parametrize(
    ("finetune", "steps"),
    [
        ("gates", [("G", True, False), ("F", False, False)]),
        ("gates+output", [("G", True, False), ("F", False, True)]),
        ("all", [("F", False, True)]),
    ],
)
def test_finetuning_updates_what_it_says(reversal_data, monkeypatch, finetune, steps):
    watched = Watched(reversal_data, "--mae-finetune", finetune)
    watched.watch(monkeypatch)
    watched.trainer.set_num_updates(10)
    watched.trainer.begin_epoch(1)
    before = {key: p.detach().clone() for key, p in watched.model.named_parameters()}
    output = watched.step(watched.batches[:1])
    assert watched.changed == steps
    assert watched.trainer.get_num_updates() == 11
    assert output["loss"] > 0 and output["sample_size"] == watched.batches[0]["ntokens"]
    if finetune == "gates+output":
        rest_changed = {
            key
            for key, p in watched.model.named_parameters()
            if not torch.equal(p, before[key]) and ".gate." not in key
        }
        assert rest_changed == {key for key in before if key.endswith("out_proj.weight")}


@pytest.mark.parametrize(
    ("args", "epochs"),
    [
        ("", [5]),
        ("--finetune-from-model a.pt", [1, 2, 3, 4, 5, 6]),
        ("--finetune-from-model a.pt --mae-gate-interval 3", [3, 6]),
        ("--finetune-from-model a.pt --mae-finetune gates+output", [1, 2, 3, 4, 5, 6]),
        ("--finetune-from-model a.pt --mae-finetune gates", [1, 2, 3, 4, 5, 6]),
        ("--mae-training joint", []),
    ],
)
def test_the_epochs_with_g_steps_follow_from_the_options(reversal_data, args, epochs):
    watched = Watched(reversal_data, *args.split())
    hook = gate_trainer_of(watched.trainer)
    assert [epoch for epoch in range(1, 7) if hook.is_g_epoch(epoch)] == epochs


@pytest.mark.parametrize(
    ("args", "warning"),
    [
        ("--max-epoch 4", "--max-epoch 4 is less than --mae-gate-interval 5: no epoch has G steps"),
        ("--max-epoch 5 --max-update 99", None),
        (
            "--max-update 16",
            "--max-update 16 ends training before epoch 5, the first of --mae-gate-interval 5",
        ),
        ("--max-update 17", None),
        ("--max-update 16 --update-freq 2", None),
        ("--max-update 10 --update-freq 1,2", "--max-update 10 ends training before epoch 5"),
        ("--max-update 11 --update-freq 1,2", None),
        ("--max-update 16 --mae-gate-interval 4", None),
        ("--max-update 4 --update-freq 3 --skip-remainder-batch", "--max-update 4 ends training before"),
        ("--max-update 5 --update-freq 3 --skip-remainder-batch", None),
        ("--max-update 1 --mae-training joint", None),
        ("--max-update 1 --finetune-from-model a.pt", None),
    ],
)
def test_gates_that_never_learn_are_warned_of(reversal_data, caplog, args, warning):
    """The data have 4 batches. fairseq ends a training as soon as it reaches --max-update."""
    watched = Watched(reversal_data, "--max-tokens", 150, *args.split())
    iterator = watched.trainer.get_train_iterator(1)
    assert len(iterator) == 4
    iterator.next_epoch_itr()
    watched.trainer.begin_epoch(1)
    if warning is None:
        assert "no epoch has G steps" not in caplog.text
    else:
        assert warning in caplog.text


@pytest.mark.parametrize(("max_update", "warns"), [(4, True), (5, False)])
def test_a_training_that_goes_on_amid_an_epoch_counts_what_is_left(reversal_data, caplog, max_update, warns):
    """One of 4 batches has been trained with."""
    watched = Watched(
        reversal_data, "--max-tokens", 150, "--mae-gate-interval", 2, "--max-update", max_update
    )
    iterator = watched.trainer.get_train_iterator(1)
    next(iterator.next_epoch_itr())
    watched.trainer.set_num_updates(1)
    watched.trainer.begin_epoch(1)
    assert ("ends training before epoch 2" in caplog.text) == warns


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            "--mae-training joint --ddp-backend fully_sharded",
            "--ddp-backend fully_sharded does not work with the gates' own SGD",
        ),
        (
            "--mae-training joint --use-bmuf",
            "or train the gates with everything else by --mae-training joint_main",
        ),
        ("--ddp-backend fully_sharded", "--ddp-backend fully_sharded does not work with G steps"),
        ("--use-bmuf", "--use-bmuf does not work with G steps"),
        (
            "--mae-finetune gates --finetune-from-model a.pt --store-ema",
            "--store-ema has no effect with --mae-finetune gates",
        ),
        ("--mae-finetune gates", "give the model's checkpoint as --finetune-from-model"),
        ("--mae-finetune gates+output", "give the model's checkpoint as --finetune-from-model"),
    ],
)
def test_trainers_that_cannot_train_gates_are_refused(reversal_data, args, sentence):
    watched = Watched(reversal_data)
    watched.trainer.cfg = train_config(reversal_data, "--arch", "mae_transformer", *args.split())
    watched.trainer.get_model().gate_training = watched.task.build_model(
        watched.trainer.cfg.model
    ).gate_training
    with pytest.raises(UsageError, match=sentence):
        watched.trainer.begin_epoch(1)


# Through fairseq's commands


MAE = ["--arch", "mae_transformer", "--mae-gate-interval", 2]


@pytest.mark.parametrize(
    "save", [[], ["--save-interval-updates", 5]], ids=["end of an epoch", "amid an epoch with G steps"]
)
def test_stopping_and_resuming_equals_training_on(reversal_data, tmp_path, save):
    """The weights are equal bit for bit, with --update-epoch-batch-itr True."""
    common = [*MAE, *save, "--max-epoch", 4]
    run_train(reversal_data, *common, "--save-dir", tmp_path / "whole")
    stop = ["--max-update", 5] if save else ["--max-epoch", 2]
    run_train(reversal_data, *common, *stop, "--save-dir", tmp_path / "parts")
    with going_on(tmp_path / "parts"):
        run_train(reversal_data, *common, "--save-dir", tmp_path / "parts")
    last = tmp_path / "whole/checkpoint_last.pt"
    assert differing_weights(last, tmp_path / "parts/checkpoint_last.pt") == []
    whole = weights(last)
    initial = weights(tmp_path / "whole" / "checkpoint1.pt")  # the gates learn in epochs 2 and 4
    gate = "encoder.layers.0.self_attn.gate.gate_network.fc2.weight"
    assert not torch.equal(initial[gate], whole[gate])


@pytest.mark.parametrize("finetune", ["gates", "gates+output", "all"])
def test_finetuning_from_a_plain_fairseq_checkpoint(reversal_data, tmp_path, finetune):
    run_train(
        reversal_data,
        "--arch",
        "transformer",
        "--decoder-embed-dim",
        32,
        "--max-epoch",
        1,
        "--save-dir",
        tmp_path / "plain",
    )
    plain = tmp_path / "plain" / "checkpoint_last.pt"
    run_train(
        reversal_data,
        *[
            "--arch",
            "mae_transformer",
            "--mae-finetune",
            finetune,
            "--mae-gate-interval" if finetune == "all" else "--mae-gate-lr",
            1,
        ],
        *["--finetune-from-model", plain, "--max-epoch", 2, "--save-dir", tmp_path / finetune],
    )
    before, after = weights(plain), weights(tmp_path / finetune / "checkpoint_last.pt")
    changed = {key for key in before if not torch.equal(before[key], after[key])}
    expected = {"gates": set(), "gates+output": {key for key in before if key.endswith("out_proj.weight")}}
    assert changed == expected.get(
        finetune, {key for key in before if "version" not in key and "_float_tensor" not in key}
    )
    hypotheses, _ = run_generate(reversal_data, tmp_path / finetune / "checkpoint_last.pt")
    assert len(hypotheses) == 12


def test_finetuning_goes_on_with_a_new_optimizer(reversal_data, tmp_path):
    plain, tuned = tmp_path / "plain", tmp_path / "tuned"
    run_train(reversal_data, "--arch", "mae_transformer", "--max-epoch", 1, "--save-dir", plain)
    words = ["--arch", "mae_transformer", "--mae-finetune", "gates+output", "--save-dir", tuned]
    begin = ["--finetune-from-model", plain / "checkpoint_last.pt", "--max-epoch", 1]
    run_train(reversal_data, *words, *begin)
    with going_on(tuned):
        run_train(reversal_data, *words, "--reset-optimizer", "--max-epoch", 2)
    assert differing_weights(tuned / "checkpoint1.pt", tuned / "checkpoint2.pt")
