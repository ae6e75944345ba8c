"""Test patches/precision.py: --bf16 trains in bfloat16 on any device, and --amp uses the loss scale that it
is given.
"""

from types import SimpleNamespace

import pytest
import torch
from fairseq import options
from fairseq.optim.amp_optimizer import AMPOptimizer

from modular_fairseq_cli.errors import UsageError


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
