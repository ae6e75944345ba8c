"""Test that fairseq's commands train and resume a combination of experts, streams and TIM layers."""

from tests.fairseq_commands import differing_weights, going_on, run_generate, run_train


def test_a_combination_trains_by_fairseqs_commands_and_goes_on_from_its_checkpoint(reversal_data, tmp_path):
    """Experts, streams with skip and TIM layers train together, without semantic masks. The stopped and
    resumed run equals an uninterrupted one, bit for bit.
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
    parts = [*args, "--save-dir", tmp_path / "resumed"]
    run_train(reversal_data, *parts, "--max-epoch", 3, common=common)
    with going_on(tmp_path / "resumed"):
        run_train(reversal_data, *parts, "--max-epoch", 4, common=common)
    whole, resumed = (tmp_path / folder / "checkpoint_last.pt" for folder in ("whole", "resumed"))
    assert differing_weights(whole, resumed) == []
    hypotheses, _ = run_generate(reversal_data, tmp_path / "whole" / "checkpoint_last.pt")
    assert len(hypotheses) == 12
