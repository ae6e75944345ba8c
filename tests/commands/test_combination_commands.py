"""Test that fairseq's commands train and resume a combination of all mechanisms."""

import torch

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.fairseq_commands import run_generate, run_train


def test_a_combination_trains_by_fairseqs_commands_and_goes_on_from_its_checkpoint(reversal_data, tmp_path):
    """Experts, streams with skip and mechanisms train together. The stopped and resumed run equals an
    uninterrupted one, bit for bit.
    """
    size = [
        "--encoder-embed-dim",
        32,
        "--encoder-ffn-embed-dim",
        32,
        "--encoder-attention-heads",
        4,
        "--decoder-attention-heads",
        4,
    ]
    recipe = [
        "--optimizer",
        "adam",
        "--lr",
        "5e-3",
        "--criterion",
        "cross_entropy",
        "--max-tokens",
        "150",
        "--dropout",
        "0.1",
    ]
    axes = [
        "--streams",
        2,
        "--stream-skip",
        "--tim-layers",
        "middle",
        "--encoder-layers",
        6,
        "--decoder-layers",
        4,
    ]
    args = ["--arch", "mae_transformer", "--mae-gate-interval", 2, *axes]
    common = [str(part) for part in (*size, *recipe)]
    run_train(reversal_data, *args, "--max-epoch", 4, "--save-dir", tmp_path / "whole", common=common)
    for epochs in (3, 4):
        run_train(
            reversal_data, *args, "--max-epoch", epochs, "--save-dir", tmp_path / "resumed", common=common
        )
    whole, resumed = (
        load_checkpoint(tmp_path / folder / "checkpoint_last.pt")["model"] for folder in ("whole", "resumed")
    )
    assert whole.keys() == resumed.keys() and all(torch.equal(whole[key], resumed[key]) for key in whole)
    hypotheses, _ = run_generate(reversal_data, tmp_path / "whole" / "checkpoint_last.pt")
    assert len(hypotheses) == 12
