"""Test DMA in fairseq's commands: resuming, layer drop, averaging, and what translation ignores."""

from argparse import Namespace

import pytest
import torch

from modular_fairseq.training import overrides
from modular_fairseq.training.averaging import average_checkpoints
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import TINY, differing_weights, going_on, run_generate, run_train

OURS = [
    "--criterion",
    "modular_cross_entropy",
    "--label-smoothing",
    "0.1",
    "--optimizer",
    "adam",
    "--lr",
    "5e-3",
    "--max-tokens",
    "150",
]
COMMON = [*TINY, *OURS, "--dropout", "0.1"]


def train(data, *args):
    run_train(data, *args, common=[str(part) for part in COMMON])


def test_layer_drop_may_leave_out_any_mask(reversal_data, tmp_path):
    for drop in (0.5, 1.0):
        args = [
            "--arch",
            "dma_transformer",
            "--encoder-layerdrop",
            drop,
            "--decoder-layerdrop",
            drop,
            "--max-epoch",
            1,
        ]
        train(reversal_data, *args, "--save-dir", tmp_path / str(drop))
        assert (tmp_path / str(drop) / "checkpoint_last.pt").exists()


def test_checkpoints_whose_centroids_are_kept_in_different_scales_are_not_averaged(reversal_data, tmp_path):
    for epochs, gradient in ((1, 10.0), (2, 5.0)):
        args = [
            "--arch",
            "dma_transformer",
            "--dma-centroid-gradient",
            gradient,
            "--max-epoch",
            epochs,
            "--save-dir",
            tmp_path,
        ]
        train(reversal_data, *args)
    files = [tmp_path / f"checkpoint{epoch}.pt" for epoch in (1, 2)]
    assert (
        average_checkpoints([files[1]])["model"]["encoder.layers.0.self_attn.mask.tokens.centroid_scale"] == 5
    )
    with pytest.raises(
        UsageError, match="--dma-centroid-gradient or --dma-centroid-mode changed between them"
    ):
        average_checkpoints(files)


def test_options_of_training_do_not_change_what_generate_prints(reversal_data, tmp_path):
    train(
        reversal_data,
        "--arch",
        "dma_transformer",
        "--dma-decoder-eval-mask",
        "--max-epoch",
        2,
        "--save-dir",
        tmp_path,
    )
    file = tmp_path / "checkpoint_last.pt"
    expected, _ = run_generate(reversal_data, file)
    found, _ = run_generate(
        reversal_data,
        file,
        "--model-overrides",
        "{'dma_centroid_gradient': 5.0, 'dma_centroid_mode': 'hook'}",
    )
    assert found == expected and len(expected) == 12


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ("{'dma_centroid_gradien': 5.0}", "gradien is no option of .*; perhaps dma_centroid_gradient is mea"),
        ("{'zzzzzz': 0}", "zzzzzz is no option of .*; see docs/mechanisms for the options"),
        ("{'beam': 9}", "beam is no option of .* that can have the value 9; "),
        ("{'model': 0}", "model is no option of .* that can have the value 0; "),
        (
            "{'criterion': 'cross_entropy'}",
            "criterion is no option of .* that can have the value 'cross",
        ),
        ("{'x':", "--model-overrides {'x':: give a dictionary of options of the model and values"),
        ("[1]", "--model-overrides .*: give a dictionary of options of the model and values"),
    ],
)
def test_overrides_that_no_checkpoint_knows_are_refused(reversal_data, tmp_path, wrong, said):
    """fairseq ignores such an option without a message, and users would believe that it had an effect."""
    train(reversal_data, "--arch", "dma_transformer", "--max-epoch", 1, "--save-dir", tmp_path)
    file = tmp_path / "checkpoint_last.pt"
    with pytest.raises(UsageError, match=said):
        run_generate(reversal_data, file, "--model-overrides", wrong)


def test_overrides_that_fairseq_applies_are_accepted(reversal_data, tmp_path, monkeypatch):
    train(reversal_data, "--arch", "dma_transformer", "--max-epoch", 1, "--save-dir", tmp_path)
    file, read = tmp_path / "checkpoint_last.pt", []
    load = overrides.load_checkpoint
    monkeypatch.setattr(overrides, "load_checkpoint", lambda path: read.append(path) or load(path))
    for known in (
        "{'mae_inference': 'mixture', 'model': {'dropout': 0.2, 'new': 1}}",
        "{'criterion': {'_name': 'label_smoothed_cross_entropy', 'label_smoothing': 0.2}}",
        "{'bpe': 'sentencepiece', 'sentencepiece_model': 'file'}",
    ):
        assert len(run_generate(reversal_data, file, "--model-overrides", known)[0]) == 12
    assert len(read) == 1  # the options of a file are kept
    state = load_checkpoint(file)
    options = {key: value for group in state["cfg"].values() if group for key, value in dict(group).items()}
    old = {**state, "cfg": None, "args": Namespace(**options, arch="dma_transformer")}
    torch.save(old, tmp_path / "old.pt")
    pair = f"{file}:{tmp_path / 'old.pt'}"
    overrides.refuse_ignored_by_checkpoints({"newer": 1}, pair.split(":"), "--model-overrides")
    with pytest.raises(UsageError, match="newer is no option"):
        overrides.refuse_ignored_by_checkpoints({"newer": 1}, [str(file)], "--model-overrides")
    overrides.refuse_ignored_options({"dropout": 1}, {"a": {"bpe": "gpt2", "model": {"dropout": 0}}}, "")


@pytest.mark.parametrize(
    "args",
    [
        ["--dma-posterior", "sample"],
        ["--attention-type", "mae+dma", "--mae-gate-interval", 2, "--streams", 2, "--encoder-layers", 4],
    ],
)
def test_stopping_and_resuming_equals_training_on(reversal_data, tmp_path, args):
    """The warm-up of the losses' weights resumes, too: here it lasts for the whole training."""
    args = ["--arch", "dma_transformer", "--aux-warmup-updates", 40, "--kl-weight", 1, *args]
    train(reversal_data, *args, "--max-epoch", 4, "--save-dir", tmp_path / "whole")
    train(reversal_data, *args, "--max-epoch", 2, "--save-dir", tmp_path / "resumed")
    with going_on(tmp_path / "resumed"):
        train(reversal_data, *args, "--max-epoch", 4, "--save-dir", tmp_path / "resumed")
    whole, resumed = (tmp_path / folder / "checkpoint_last.pt" for folder in ("whole", "resumed"))
    assert differing_weights(whole, resumed) == []
