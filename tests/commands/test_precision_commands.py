"""Test that fairseq-train trains in half precision, and resumes such a training."""

import math

import pytest
import torch

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.fairseq_commands import OPTIMIZE, QUIET, TINY, call, run_train

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


def test_training_in_memory_efficient_bf16_resumes_bit_for_bit(reversal_data, tmp_path):
    args = ["--memory-efficient-bf16", "--arch", *WITH_G_STEPS]
    run_train(reversal_data, *args, "--max-epoch", 2, "--save-dir", tmp_path / "whole")
    for max_epoch in (1, 2):
        run_train(reversal_data, *args, "--max-epoch", max_epoch, "--save-dir", tmp_path / "resumed")
    whole, resumed = (
        load_checkpoint(tmp_path / name / "checkpoint_last.pt")["model"] for name in ("whole", "resumed")
    )
    assert whole.keys() == resumed.keys()
    assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
