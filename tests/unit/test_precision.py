"""patches/precision.py: --bf16 trains in bfloat16 on any device, --amp has the loss scale it is given."""

import math
from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.optim.amp_optimizer import AMPOptimizer

from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import OPTIMIZE, QUIET, TINY, call, run_train

WITH_G_STEPS = ["mae_transformer", "--mae-gate-interval", "1"]


def parsed(*args, **kwargs):
    return options.parse_args_and_arch(
        options.get_training_parser(), ["data", "--arch", "transformer", *args], **kwargs
    )


@pytest.mark.parametrize("flag", ["--bf16", "--memory-efficient-bf16"])
def test_bf16_is_no_tpu_mode_unless_tpu_is_given(flag):
    assert (parsed().bf16, parsed().tpu) == (False, False)
    assert (parsed(flag).bf16, parsed(flag).tpu) == (True, False)
    assert (parsed(flag, "--tpu").bf16, parsed(flag, "--tpu").tpu) == (True, True)
    known, rest = parsed(flag, "--unheard-of", parse_known=True)
    assert (known.bf16, known.tpu, rest) == (True, False, ["--unheard-of"])
    assert not hasattr(parsed(flag, suppress_defaults=True), "tpu")


def test_fp16_with_bf16_is_refused_and_with_a_tpu_left_to_fairseq():
    with pytest.raises(UsageError, match="--fp16 and --bf16 cannot be combined"):
        parsed("--fp16", "--bf16")
    with pytest.raises(ValueError, match="Cannot combine --fp16 and --tpu"):
        parsed("--fp16", "--tpu")


def test_the_help_of_bf16_does_not_speak_of_a_tpu(capsys):
    with pytest.raises(SystemExit):
        parsed("--help")
    help_of_bf16 = capsys.readouterr().out.partition("\n  --bf16 ")[2].partition("\n  --")[0]
    assert help_of_bf16.split() == ["train", "in", "bfloat16,", "on", "any", "device"]


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


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], {"init_scale": 128}),
        (["--fp16-init-scale", "4"], {"init_scale": 4}),
        (["--amp-init-scale", "8"], {"init_scale": 8}),
        (["--amp-scale-window", "50"], {"init_scale": 128, "growth_interval": 50}),
        (["--amp-init-scale", "8", "--amp-scale-window", "50"], {"init_scale": 8, "growth_interval": 50}),
    ],
)
def test_the_loss_scale_of_amp_is_as_asked_for(monkeypatch, args, expected):
    monkeypatch.setattr(torch.cuda.amp, "GradScaler", dict)
    cfg = SimpleNamespace(common=parsed("--amp", "--min-loss-scale", "0.5", *args), optimizer="the optimizer")
    optimizer = AMPOptimizer(cfg, [], "an optimizer")
    assert optimizer.scaler == expected
    assert (optimizer.min_loss_scale, optimizer.fp32_optimizer) == (0.5, "an optimizer")
