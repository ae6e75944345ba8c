"""Test that fairseq-train trains in half precision, and resumes such a training."""

import math

import pytest
import torch

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.fairseq_commands import OPTIMIZE, QUIET, TINY, call, differing_weights, going_on, run_train

WITH_G_STEPS = ["mae_transformer", "--mae-gate-interval", "1"]


def is_bfloat16(tensor):
    return torch.equal(tensor, tensor.bfloat16().float())


@pytest.mark.parametrize("arch", [["modular_transformer"], WITH_G_STEPS], ids=["plain", "mae"])
def test_the_command_trains_in_bf16_on_a_cpu_and_resumes(reversal_data, tmp_path, arch):
    states = []
    for max_epoch in (1, 2):
        status, _, err = call(
            "train",
            reversal_data,
            *[*TINY, *OPTIMIZE, *QUIET, "--cpu", "--bf16", "--arch", *arch],
            *["--max-epoch", max_epoch, "--save-dir", tmp_path],
        )
        assert status == 0, err[-2000:]
        states.append(load_checkpoint(tmp_path / "checkpoint_last.pt"))
    first, last = (state["model"] for state in states)
    per_epoch, updates = (state["optimizer_history"][-1]["num_updates"] for state in states)
    assert updates == 2 * per_epoch > 0
    assert all(math.isfinite(state["extra_state"]["val_loss"]) for state in states)
    for name, weight in last.items():
        is_gate = ".gate." in name
        if weight.is_floating_point():  # a checkpoint has float32 numbers only, whatever they were
            assert is_bfloat16(weight) != (is_gate and weight.numel() > 1), name
        if name.endswith("weight") and (".gate_network." in name or ".fc1." in name):
            assert not torch.equal(weight, first[name]), name
    assert any(".gate." in name for name in last) == (arch is WITH_G_STEPS)


# The loss scale grows every 7 updates, so that gradients overflow.
GROWING = ["--fp16-init-scale", 2**12, "--fp16-scale-window", 7]


@pytest.mark.parametrize("optimizer", ["adam", "torch_adam"])
@pytest.mark.parametrize(
    "precision",
    [["--fp16", *GROWING], ["--memory-efficient-fp16", *GROWING], ["--bf16"], ["--memory-efficient-bf16"]],
    ids=lambda words: words[0],
)
def test_training_in_half_precision_resumes_bit_for_bit(reversal_data, tmp_path, precision, optimizer):
    args = [*precision, "--optimizer", optimizer, "--arch", *WITH_G_STEPS]
    run_train(reversal_data, *args, "--max-epoch", 3, "--save-dir", tmp_path / "whole")
    run_train(reversal_data, *args, "--max-epoch", 1, "--save-dir", tmp_path / "resumed")
    for max_epoch in (2, 3):
        with going_on(tmp_path / "resumed"):
            run_train(reversal_data, *args, "--max-epoch", max_epoch, "--save-dir", tmp_path / "resumed")
    checkpoints = [tmp_path / name / "checkpoint_last.pt" for name in ("whole", "resumed")]
    assert differing_weights(*checkpoints) == []
    scales = [load_checkpoint(path)["last_optimizer_state"].get("loss_scale") for path in checkpoints]
    assert scales[0] == scales[1] and (scales[0] is None) == ("bf16" in precision[0])


def test_gates_that_learn_alone_are_no_rounded_weights(reversal_data, tmp_path, caplog):
    base, tuned = tmp_path / "base", tmp_path / "tuned"
    run_train(reversal_data, "--arch", "mae_transformer", "--max-epoch", 1, "--save-dir", base)
    args = ["--arch", "mae_transformer", "--fp16", "--mae-finetune", "gates", "--save-dir", tuned]
    run_train(reversal_data, *args, "--finetune-from-model", base / "checkpoint1.pt", "--max-epoch", 1)
    with going_on(tuned):
        run_train(reversal_data, *args, "--max-epoch", 2)
    learned = differing_weights(tuned / "checkpoint1.pt", tuned / "checkpoint2.pt")
    assert any(name.endswith("weight") for name in learned)  # running statistics change in any case
    assert "rounded to half precision" not in caplog.text


def test_gates_that_learn_alone_are_not_clipped_and_no_log_says_so(reversal_data, tmp_path, caplog):
    base = tmp_path / "base"
    run_train(reversal_data, "--arch", "mae_transformer", "--max-epoch", 1, "--save-dir", base)
    args = ["--arch", "mae_transformer", "--mae-finetune", "gates", "--max-epoch", 1, "--log-interval", 1]
    args += ["--finetune-from-model", base / "checkpoint1.pt"]
    caplog.clear()
    for name, clip in (("clipped", 0.001), ("free", 0)):
        run_train(reversal_data, *args, "--clip-norm", clip, "--save-dir", tmp_path / name)
    free = tmp_path / "free/checkpoint1.pt"
    assert not differing_weights(tmp_path / "clipped/checkpoint1.pt", free)
    learned = differing_weights(base / "checkpoint1.pt", free)  # running statistics change in any case
    assert any(name.endswith("weight") for name in learned)
    inner = [each.getMessage() for each in caplog.records if each.name == "train_inner"]
    assert inner and all("gnorm=" in line and "ups=" in line and "clip=" not in line for line in inner)


def test_changed_weights_of_a_checkpoint_are_not_replaced_by_its_float32_copies(
    reversal_data, tmp_path, caplog
):
    args = ["--bf16", "--arch", "modular_transformer", "--save-dir", tmp_path]
    run_train(reversal_data, *args, "--max-epoch", 1)
    path = tmp_path / "checkpoint_last.pt"
    state = load_checkpoint(path)
    name = next(name for name in state["model"] if name.endswith("fc1.weight"))
    state["model"][name] = torch.full_like(state["model"][name], 0.5)
    torch.save(state, path)
    run_train(reversal_data, *args, "--max-epoch", 2, "--lr", 1e-9)
    assert (load_checkpoint(path)["model"][name] == 0.5).float().mean() > 0.9
    assert "goes on from weights that are rounded to half precision" in caplog.text
