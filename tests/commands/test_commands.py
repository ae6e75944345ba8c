"""Test what the commands learn, say, refuse and survive. Each runs in a process, as a user types it."""

import subprocess

import pytest

from modular_fairseq_cli.processes import python_module
from tests.fairseq_commands import (
    OPTIMIZE,
    QUIET,
    TINY,
    call,
    run_train,
)


def lines_of(err):
    return [line for line in err.splitlines() if "| INFO |" not in line and not line.startswith("INFO:")]


def test_training_says_nothing_on_standard_error_that_a_user_must_not_know(reversal_data, tmp_path):
    status, out, err = call(
        "train",
        reversal_data,
        *TINY,
        *OPTIMIZE,
        *QUIET,
        "--arch",
        "mae_transformer",
        "--max-epoch",
        1,
        "--save-dir",
        tmp_path,
    )
    assert status == 0 and (tmp_path / "checkpoint_last.pt").exists()
    assert lines_of(err) == []
    for statistic in ("gate_entropy", "gate_max_share", "gate_min_share", "gate_rare_experts"):
        assert statistic in out + err


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (
            ["--arch", "mae_transformer", "--mae-dropped-heads", "4"],
            "--mae-dropped-heads 4 with --encoder-attention-heads 4",
        ),
        (
            ["--arch", "modular_transformer", "--mae-gate-lr", "2"],
            "--mae-gate-lr has no effect without --attention-type mae",
        ),
        (["--arch", "mae_transformer", "--mae-gate-interval", "0"], "--mae-gate-interval must be at least 1"),
        (
            ["--arch", "mae_transformer", "--ddp-backend", "slowmo"],
            "--ddp-backend slowmo does not work with G steps",
        ),
        (
            ["--arch", "dma_transformer"],
            "--attention-type dma has losses that --criterion label_smoothed_cross_entropy does not add",
        ),
        (["--arch", "dma_transformer", "--dma-clusters", "0"], "--dma-clusters must be at least 1"),
        (
            ["--arch", "dma_transformer", "--kl-weight", "0.1"],
            "--kl-weight has no effect without --criterion modular_cross_entropy",
        ),
        (
            ["--arch", "modular_transformer", "--xq-critic=mean"],
            "--xq-critic has no effect without --criterion modular_cross_entropy",
        ),
        (
            ["--arch", "mae_transformer", "--criterion", "modular_cross_entropy", "--qq-weight", "0.1"],
            "--qq-weight cannot have an effect, because this model has no losses of that kind; add "
            "--attention-type dma",
        ),
        (
            ["--arch", "dma_transformer", "--criterion", "modular_cross_entropy", "--kl-weight", "nan"],
            "--kl-weight must be 0 or a positive number, not nan",
        ),
    ],
)
def test_bad_options_end_in_one_sentence(reversal_data, tmp_path, args, sentence):
    status, _, err = call("train", reversal_data, *TINY, *OPTIMIZE, *QUIET, *args, "--save-dir", tmp_path)
    assert status != 0 and "Traceback" not in err and "usage: " not in err
    *_, message = lines_of(err)  # fairseq prints the model first, if it is built before
    assert message.startswith("modular_fairseq: error: ") and sentence in message


def test_finetuning_from_a_checkpoint_of_other_shapes_ends_in_one_sentence(reversal_data, tmp_path):
    run_train(reversal_data, "--arch", "modular_transformer", "--max-epoch", 1, "--save-dir", tmp_path)
    other = [
        *TINY[:-4],
        "--encoder-attention-heads",
        4,
        "--decoder-attention-heads",
        4,
        "--encoder-ffn-embed-dim",
        48,
    ]
    args = [*other, *OPTIMIZE, *QUIET, "--arch", "mae_transformer", "--save-dir", tmp_path / "new"]
    status, _, err = call(
        "train", reversal_data, *args, "--finetune-from-model", tmp_path / "checkpoint_last.pt"
    )
    assert status != 0
    (message,) = lines_of(err)
    assert "encoder.layers.0.fc1.weight is [32, 32] in the checkpoint and [48, 32] in this model" in message


def test_children_import_nothing_from_the_present_folder(tmp_path, monkeypatch):
    (tmp_path / "only_here.py").write_text("raise SystemExit(3)\n")
    monkeypatch.chdir(tmp_path)
    done = subprocess.run(python_module("only_here"), capture_output=True, text=True)
    assert done.returncode == 1 and "No module named only_here" in done.stderr
