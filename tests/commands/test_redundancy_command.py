"""Test that `analyze redundancy` reads a trained model."""

import json

import pytest

from modular_fairseq.analysis import analyze
from modular_fairseq.analysis.attention_maps import CROSS, DECODER, ENCODER
from modular_fairseq_cli import main as cli
from tests.fairseq_commands import OPTIMIZE, TINY, binarize, run_train, write_reversal_corpus


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
    names = [
        f"{measure}_{definition}_{maps}"
        for measure in ("LR", "HR")
        for definition in ("distance", "divergence")
        for maps in ("all", "encoder")
    ]
    assert all(0 < found[name] < 1 for name in names) and found["sentences"] == 12
    assert found["LR_distance_all"] < found["LR_divergence_all"]
    assert found["HR_distance_encoder"] < found["HR_divergence_encoder"] == found["types"][0]["HR_divergence"]
    assert [kind["type"] for kind in found["types"]] == [ENCODER, DECODER, CROSS]
    assert lines[0].split() == ["by", "distance", "by", "divergence"]
    assert lines[1].split() == ["LR", "HR", "LR", "HR"]
    assert [line.split()[0] for line in lines[3:8:2]] == [
        kind["modules"][0]["module"] for kind in found["types"]
    ]
    cross = found["types"][2]
    assert f"{cross['HR_divergence']:7.3f}  4 heads, 6 pairs, {cross['rows']} rows" in lines[6]
    model = ("LR_distance_all", "HR_distance_all", "LR_divergence_all", "HR_divergence_all")
    assert lines[8].split() == [
        *("mean", "of", "the", "types", *(f"{found[name]:.3f}" for name in model), "12", "sentences")
    ]
    assert lines[9].startswith("distance: 1 - Jensen-Shannon distance") and "authors' code" in lines[10]
    small = analyze(checkpoint, reversal_data, "test", ["redundancy"], max_tokens=12)["redundancy"].data()
    assert [small[name] for name in names] == pytest.approx([found[name] for name in names], abs=1e-5)

    for args, sentence in (
        (
            [*command, "--max-tokens", "2"],
            "--max-tokens 2 is less than the length of the longest sentence; give",
        ),
        (
            [*command, "--max-tokens", "0"],
            "--max-tokens must be at least the length of the longest sentence, not 0",
        ),
        ([*command[:-1], "nothing"], "has no part nothing"),
        ([*command[:4], str(tmp_path / "missing.pt")], "missing.pt cannot be opened"),
        (["analyze", "redundancy", str(tmp_path), *command[3:]], "has no file such as train.de-en.de.idx"),
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
