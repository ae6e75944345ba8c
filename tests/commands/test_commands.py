"""The commands as a user types them, each a process of its own: what they learn, say, refuse and survive."""

import argparse
import json
import os
import signal
import subprocess
import time

import pytest
import torch

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.fairseq_commands import (
    OPTIMIZE,
    QUIET,
    TINY,
    binarize,
    call,
    run_generate,
    run_train,
    start,
    write_reversal_corpus,
)
from tests.places import ROOT


def lines_of(err):
    return [line for line in err.splitlines() if "| INFO |" not in line and not line.startswith("INFO:")]


@pytest.mark.parametrize(
    "arch",
    [
        "modular_transformer",
        "mae_transformer",
        "dma_transformer",
        "multistream_transformer",
        "tim_transformer",
    ],
)
def test_a_tiny_model_learns_to_reverse(tmp_path, arch):
    write_reversal_corpus(tmp_path, train_pairs=2000)
    binarize(tmp_path, tmp_path / "bin")
    recipe = ["--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--max-tokens", "500", "--dropout", "0"]
    recipe += [
        "--criterion",
        *(
            ["modular_cross_entropy", "--aux-warmup-updates", "200"]
            if arch.startswith("dma")
            else ["cross_entropy"]
        ),
    ]
    recipe += [
        "--lr-scheduler",
        "polynomial_decay",
        "--lr",
        "4e-3",
        "--warmup-updates",
        "60",
        "--total-num-update",
        "420",
    ]
    gates = ["--mae-gate-interval", "2"] if arch.startswith("mae") else []
    run_train(
        tmp_path / "bin",
        "--arch",
        f"{arch}_tiny_cpu",
        *gates,
        "--max-update",
        420,
        "--no-epoch-checkpoints",
        "--save-dir",
        tmp_path / "checkpoints",
        common=recipe,
    )
    hypotheses, _ = run_generate(tmp_path / "bin", tmp_path / "checkpoints" / "checkpoint_last.pt")
    references = (tmp_path / "test.en").read_text().splitlines()
    right = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    assert right >= 10, f"{right} of 12 test sentences"


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
    *_, message = lines_of(err)  # after what fairseq prints of the model, where that is built before
    assert message.startswith("modular_fairseq: error: ") and sentence in message


def test_a_hostile_checkpoint_is_refused_before_it_runs(reversal_data, tmp_path):
    marker, hostile = tmp_path / "marker", tmp_path / "hostile.pt"

    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {marker}",)

    torch.save({"args": argparse.Namespace(x=Payload()), "model": {}}, hostile)
    status, _, err = call("generate", reversal_data, "--path", hostile)
    assert status != 0 and not marker.exists()
    (message,) = lines_of(err)
    assert str(hostile) in message and "system" in message


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


def test_killing_training_at_any_moment_and_starting_it_again(reversal_data, tmp_path):
    """The end is that of a run that was never killed, bit for bit."""
    args = [reversal_data, *TINY, *OPTIMIZE, *QUIET, "--arch", "mae_transformer", "--mae-gate-interval", 2]
    run_train(reversal_data, *args[1:], "--max-epoch", 8, "--save-dir", tmp_path / "whole", common=())
    for epoch in (2, 5):
        process = start("train", *args, "--max-epoch", 8, "--save-dir", tmp_path / "killed")
        deadline = time.monotonic() + 100
        while (
            not (tmp_path / "killed" / f"checkpoint{epoch}.pt").exists()
            and process.poll() is None
            and time.monotonic() < deadline
        ):
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        assert (tmp_path / "killed" / f"checkpoint{epoch}.pt").exists() and not (
            tmp_path / "killed" / "checkpoint8.pt"
        ).exists()
    run_train(reversal_data, *args[1:], "--max-epoch", 8, "--save-dir", tmp_path / "killed", common=())
    whole, killed = (
        load_checkpoint(tmp_path / folder / "checkpoint_last.pt")["model"] for folder in ("whole", "killed")
    )
    assert all(torch.equal(whole[key], killed[key]) for key in whole)


def test_from_text_to_bleu_with_the_script(tmp_path):
    """scripts/train_and_score.sh on a small corpus; the second call has nothing left to train."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_reversal_corpus(corpus)
    size = [
        "--encoder-layers",
        "1",
        "--decoder-layers",
        "1",
        "--encoder-embed-dim",
        "32",
        "--decoder-embed-dim",
        "32",
        "--max-epoch",
        "1",
    ]
    command = [
        "bash",
        "scripts/train_and_score.sh",
        corpus,
        "de",
        "en",
        tmp_path / "out",
        "mae_transformer",
        *size,
    ]
    trained = set()
    for _ in range(2):
        result = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "NAME": "run"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert result.returncode == 0, result.stderr
        assert "nrefs:1|case:mixed" in result.stdout
        trained.add((tmp_path / "out/run/checkpoint1.pt").stat().st_mtime_ns)
    assert len(trained) == 1
    assert json.loads((tmp_path / "out/run/score.json").read_text())["sentences"] == 12
