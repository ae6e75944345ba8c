"""Test that `analyze redundancy` reads a trained model."""

import json

import pytest

from modular_fairseq.analysis import analyze
from modular_fairseq.analysis.attention_maps import CROSS, DECODER, ENCODER
from modular_fairseq_cli import main as cli
from tests.fairseq_commands import OPTIMIZE, TINY, binarize, run_train, write_reversal_corpus


def close(found, expected, tolerance):
    return found == pytest.approx(expected, abs=tolerance)


# Distances


# Models


# Attention maps


# The pass and the command


@pytest.mark.parametrize("arch", ["dma_transformer", "transformer"])
def test_the_command_on_a_trained_model(reversal_data, tmp_path, capsys, arch):
    criterion = ["--criterion", "modular_cross_entropy"] if arch == "dma_transformer" else []
    run_train(reversal_data, "--arch", arch, *criterion, "--max-epoch", 1, "--save-dir", tmp_path)
    checkpoint = str(tmp_path / "checkpoint_last.pt")
    command = ["analyze", "redundancy", str(reversal_data), "--path", checkpoint, "--gen-subset", "test"]
    capsys.readouterr()
    cli.main([*command, "--out", str(tmp_path / "found")])
    lines = capsys.readouterr().out.splitlines()
    found = json.loads((tmp_path / "found" / "analysis.json").read_text())["analyses"]["redundancy"]
    assert found == analyze(checkpoint, reversal_data, "test", ["redundancy"])["redundancy"].data()
    assert 0 < found["LR"] < 1 and 0 < found["HR"] < 1 and found["sentences"] == 12
    assert [kind["type"] for kind in found["types"]] == [ENCODER, DECODER, CROSS]
    assert lines[0].split() == ["LR", "HR"]
    assert [line.split()[0] for line in lines[2:7:2]] == [
        kind["modules"][0]["module"] for kind in found["types"]
    ]
    assert f"{found['types'][2]['HR']:7.3f}  4 heads, 6 pairs, {found['types'][2]['rows']} rows" in lines[5]
    assert lines[-1] == f"LR {found['LR']:.3f}, HR {found['HR']:.3f}: means over the types; 12 sentences"
    small = analyze(checkpoint, reversal_data, "test", ["redundancy"], max_tokens=12)["redundancy"].data()
    assert close([small["LR"], small["HR"]], [found["LR"], found["HR"]], 1e-5)

    for args, sentence in (
        (
            [*command, "--max-tokens", "2"],
            "--max-tokens 2 is less than the length of the longest sentence of test",
        ),
        (
            [*command, "--max-tokens", "0"],
            "--max-tokens must be at least the length of the longest sentence, not 0",
        ),
        ([*command[:-1], "nothing"], "one of its parts as --gen-subset"),
        ([*command[:4], str(tmp_path / "missing.pt")], "missing.pt cannot be opened"),
        (["analyze", "redundancy", str(tmp_path), *command[3:]], "has no dictionary"),
    ):
        with pytest.raises(SystemExit, match=f"^modular-fairseq analyze: error: .*{sentence}"):
            cli.main(args)

    other = tmp_path / "other"
    other.mkdir()
    write_reversal_corpus(other)
    (other / "train.de").write_text(" ".join(f"v{i}" for i in range(20)) + "\n")
    (other / "train.en").write_text("v20\n")
    binarize(other, other / "bin")
    with pytest.raises(
        SystemExit, match="^modular-fairseq analyze: error: .*encoder.embed_tokens.weight.*the dictionaries"
    ):
        cli.main(["analyze", "redundancy", str(other / "bin"), *command[3:]])


def test_the_command_refuses_a_model_of_one_head(reversal_data, tmp_path):
    one_head = [
        value if name[-5:] != "heads" else "1" for name, value in zip(["", *TINY], TINY, strict=False)
    ]
    run_train(
        reversal_data,
        "--arch",
        "transformer",
        "--max-update",
        1,
        "--save-dir",
        tmp_path,
        common=(*one_head, *OPTIMIZE),
    )
    with pytest.raises(
        SystemExit,
        match="^modular-fairseq analyze: error: the model has no two attention heads of the same type",
    ):
        cli.main(
            ["analyze", "redundancy", str(reversal_data), "--path", str(tmp_path / "checkpoint_last.pt")]
        )
