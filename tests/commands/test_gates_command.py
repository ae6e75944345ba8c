"""Test that `analyze gates` reads a trained model."""

import json
import math

import pytest

from modular_fairseq_cli import main as cli
from tests.fairseq_commands import run_train


def test_the_command_on_a_trained_model(reversal_data, tmp_path, capsys):
    run_train(reversal_data, "--arch", "mae_transformer", "--max-epoch", 1, "--save-dir", tmp_path)
    command = ["analyze", "gates", str(reversal_data), "--path", str(tmp_path / "checkpoint_last.pt")]
    cli.main([*command, "--out", str(tmp_path / "found")])
    assert "mean gate entropy" in capsys.readouterr().out
    reports = json.loads((tmp_path / "found" / "analysis.json").read_text())["analyses"]["gates"]["modules"]
    assert [report["module"] for report in reports] == [
        "encoder.layers.0.self_attn",
        "decoder.layers.0.self_attn",
        "decoder.layers.0.encoder_attn",
    ]
    assert all(
        sum(report["shares"]) == pytest.approx(1) and 0 < report["entropy"] <= math.log(4)
        for report in reports
    )
    with pytest.raises(SystemExit, match="modular-fairseq analyze: error: .*--gen-subset"):
        cli.main([*command, "--gen-subset", "nothing"])
    with pytest.raises(SystemExit, match="missing.pt"):
        cli.main(["analyze", "gates", str(reversal_data), "--path", str(tmp_path / "missing.pt")])
