"""Test that fairseq's command trains language models."""

import pytest
import torch
from fairseq import options
from fairseq_cli import preprocess

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.fairseq_commands import run_train, write_reversal_corpus


@pytest.mark.parametrize(
    ("args", "parameter"),
    [
        (
            ["--arch", "mae_transformer_lm", "--mae-gate-interval", 1, "--criterion", "cross_entropy"],
            "gate.gate_network.fc2.weight",
        ),
        (
            [
                "--arch",
                "modular_transformer_lm",
                "--attention-type",
                "dma",
                "--criterion",
                "modular_cross_entropy",
            ],
            "mask.queries.mixture.scaled_centroids",
        ),
    ],
    ids=["mae", "dma"],
)
def test_training_a_language_model_by_fairseqs_command(tmp_path, args, parameter):
    write_reversal_corpus(tmp_path)
    prefixes = [
        part for split in ("train", "valid") for part in (f"--{split}pref", str(tmp_path / f"{split}.en"))
    ]
    parser = options.get_preprocessing_parser()
    preprocess.main(parser.parse_args(["--only-source", "--destdir", str(tmp_path / "bin"), *prefixes]))
    size = [
        "--decoder-embed-dim",
        "32",
        "--decoder-ffn-embed-dim",
        "32",
        "--decoder-attention-heads",
        "4",
        "--decoder-layers",
        "1",
    ]
    run_train(
        tmp_path / "bin",
        *[
            "--task",
            "language_modeling",
            *args,
            "--tokens-per-sample",
            16,
            "--max-epoch",
            2,
            "--save-dir",
            tmp_path / "checkpoints",
        ],
        common=[*size, *["--optimizer", "adam", "--lr", "5e-3", "--max-tokens", "64"]],
    )
    first, last = (
        load_checkpoint(tmp_path / "checkpoints" / name)["model"]
        for name in ("checkpoint1.pt", "checkpoint_last.pt")
    )
    name = f"decoder.layers.0.self_attn.{parameter}"
    assert not torch.equal(first[name], last[name])
