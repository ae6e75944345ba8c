"""Test the command `modular-fairseq export` on trained models."""

import importlib.util
import json
import re
import shutil

import pytest
import sacrebleu
import torch

from modular_fairseq.export import command
from modular_fairseq_cli import main as cli
from tests.fairseq_commands import run_generate, run_train

MAE = ["--arch", "mae_transformer", "--mae-gate-interval", "1"]
HAS_CTRANSLATE2 = importlib.util.find_spec("ctranslate2") is not None
needs_ctranslate2 = pytest.mark.skipif(not HAS_CTRANSLATE2, reason="the package ctranslate2 is not installed")


@pytest.fixture(scope="module")
def checkpoints(reversal_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("checkpoints")
    for name, arch in (("mae", MAE), ("uniform", ["--arch", "mae_transformer", "--mae-gating", "uniform"])):
        words = [*arch, "--max-epoch", 12, "--no-epoch-checkpoints", "--cpu", "--save-dir", folder / name]
        run_train(reversal_data, *words)
    path = folder / "mae/checkpoint_last.pt"
    random = torch.load(path, weights_only=False)
    random["cfg"]["model"]["mae_inference"] = "random"
    torch.save(random, folder / "random.pt")
    found = {name: str(folder / name / "checkpoint_last.pt") for name in ("mae", "uniform")}
    return found | {"random": str(folder / "random.pt")}


def export(data, checkpoint, out, *args):
    # Shells complete the name of a folder with a slash.
    cli.main(["export", str(data), "--path", checkpoint, "--to", "ctranslate2", "--out", f"{out}/", *args])
    return json.loads((out / "export.json").read_text())


@needs_ctranslate2
def test_a_mixture_without_gates_is_exported_as_it_is(reversal_data, checkpoints, tmp_path, capsys):
    found = export(reversal_data, checkpoints["uniform"], tmp_path / "out")
    assert found["sentences"] == 12 and found["differ"] <= 1  # ties may be broken otherwise
    assert found["bleu_exported"] == pytest.approx(found["bleu"], abs=3)
    if not found["differ"]:
        assert found["bleu_exported"] == found["bleu"] and found["p_value"] == 1
    assert found["parameters_exported"] == found["parameters"] and found["gates"] is None
    assert (tmp_path / "out" / "model.bin").stat().st_size > 4 * 1000
    assert "out/: the model of the checkpoint\n" in capsys.readouterr().out


@needs_ctranslate2
@pytest.mark.parametrize("mark", ["", "@@"])
def test_bleu_is_that_of_both_translations(reversal_data, checkpoints, tmp_path, mark):
    """With a mark, some words of the data begin the next one."""
    from ctranslate2 import Translator

    def read(path):
        return re.sub(r"\b(w[0-5])\b", rf"\1{mark}", path.read_text())

    def joined(lines):
        return [f"{line} ".replace("@@ ", "").rstrip() for line in lines]

    data, out = tmp_path / "bin", tmp_path / "out"
    shutil.copytree(reversal_data, data)
    for path in data.glob("dict.*.txt"):
        path.write_text(read(path))
    sources, references = (
        read(reversal_data.parent / f"test.{language}").splitlines() for language in ("de", "en")
    )
    words = ["--gates", "expert", "--gen-subset", "test", *(["--remove-bpe"] if mark else [])]
    found = export(data, checkpoints["mae"], out, *words)
    ours, _ = run_generate(data, checkpoints["mae"])
    results = Translator(str(out)).translate_batch([line.split() for line in sources], beam_size=5)
    theirs = [" ".join(result.hypotheses[0]) for result in results]
    bleu = [
        sacrebleu.corpus_bleu(joined(lines), [joined(references)], tokenize="none").score
        for lines in (ours, theirs)
    ]
    assert [found["bleu"], found["bleu_exported"]] == pytest.approx(bleu)
    assert min(bleu) > 1 and bleu[0] != bleu[1]


@needs_ctranslate2
def test_translations_are_as_long_as_the_model_has_positions(reversal_data, tmp_path, monkeypatch):
    """With 8 target positions a model writes 7 words and the end of the sentence, if none is found before."""
    words = ["--arch", "transformer", "--max-target-positions", 8, "--max-update", 1, "--lr", "1e-9", "--cpu"]
    run_train(reversal_data, *words, "--no-epoch-checkpoints", "--save-dir", tmp_path / "model")
    checkpoint, end = tmp_path / "model/checkpoint_last.pt", 2
    state = torch.load(checkpoint, weights_only=False)
    state["model"]["decoder.layers.0.final_layer_norm.bias"][0] = 10
    state["model"]["decoder.output_projection.weight"][end, 0] = -10
    torch.save(state, checkpoint)
    texts = []
    bootstrap = command.paired_bootstrap

    def keep(references, baseline, systems, **kwargs):
        texts.extend([baseline, *systems])
        return bootstrap(references, baseline, systems, **kwargs)

    monkeypatch.setattr(command, "paired_bootstrap", keep)
    export(reversal_data, str(checkpoint), tmp_path / "out", "--gen-subset", "test")
    assert [max(len(line.split()) for line in text) for text in texts] == [7, 7]


@needs_ctranslate2
def test_gates_are_replaced_and_the_loss_is_told(reversal_data, checkpoints, tmp_path, capsys, monkeypatch):
    sizes = {}
    for gates, quantization in (("mean", "int8"), ("expert", "float32")):
        out = tmp_path / gates
        args = ["--gates", gates, "--quantization", quantization, "--gen-subset", "test"]
        sizes[gates] = export(reversal_data, checkpoints["mae"], out, *args)
        assert sizes[gates]["gates"] == gates and sizes[gates]["subset"] == "test"
        said = capsys.readouterr().out
        assert re.search(
            r"\d+ of 12 translations differ; BLEU \d+.*\(paired bootstrap: p = [01]\.\d{3}\)", said
        )
        assert f"BLEU: {sizes[gates]['signature']}\n" in said and "tok:none" in sizes[gates]["signature"]
        assert 0 < sizes[gates]["p_value"] <= 1
        assert {path.name for path in tmp_path.iterdir()} <= {"mean", "expert"}
    assert sizes["expert"]["parameters_exported"] < sizes["mean"]["parameters_exported"]
    # The encodings of positions, which are most of these small files, stay floats.
    int8, float32 = ((tmp_path / gates / "model.bin").stat().st_size for gates in ("mean", "expert"))
    assert int8 < 0.9 * float32
    with pytest.raises(SystemExit, match="exists; give another folder, or replace it with --force"):
        export(reversal_data, checkpoints["mae"], tmp_path / "mean", "--gates", "mean")
    again = export(reversal_data, checkpoints["mae"], tmp_path / "mean", "--gates", "expert", "--force")
    assert again["gates"] == "expert" and again["compute_type"] == "float32"

    def fail(*args):
        raise RuntimeError("no translation")

    def wait(*args):
        (tmp_path / "notes").mkdir()
        return compare(*args)

    compare = command.compare
    monkeypatch.setattr(command, "compare", wait)
    with pytest.raises(SystemExit, match="notes exists; give another folder"):
        export(reversal_data, checkpoints["mae"], tmp_path / "notes", "--gates", "mean")
    assert list((tmp_path / "notes").iterdir()) == []
    monkeypatch.setattr(command, "compare", fail)
    with pytest.raises(RuntimeError):
        export(reversal_data, checkpoints["mae"], tmp_path / "mean", "--gates", "mean", "--force")
    assert json.loads((tmp_path / "mean/export.json").read_text()) == again  # the former model is still there


@needs_ctranslate2
def test_a_folder_that_cannot_be_made_is_refused(reversal_data, checkpoints, tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit, match="its folder cannot be made .*; give another folder"):
        export(reversal_data, checkpoints["uniform"], tmp_path / "file/out")


def test_what_was_there_is_put_back_if_a_folder_cannot_be_moved(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model/before").touch()
    with pytest.raises(FileNotFoundError):
        command.replace_folder(*(str(tmp_path / name) for name in ("model", "missing", "old")))
    assert [path.name for path in tmp_path.iterdir()] == ["model"] and (tmp_path / "model/before").exists()


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("mae", [], "the gates of the model depend on their input, which CTranslate2 does not compute; give"),
        ("uniform", ["--remove-bpe", "##"], "--remove-bpe '##' is no mark of sub-words"),
        (
            "uniform",
            ["--gates", "mean"],
            "--gates has no effect, because the model has no gates; leave it out",
        ),
        (
            "random",
            ["--gates", "mean"],
            "because the gates of the model do not depend on their input; leave it out",
        ),
    ],
)
@needs_ctranslate2
def test_gates_are_asked_for_if_there_are_any(reversal_data, checkpoints, tmp_path, name, args, sentence):
    with pytest.raises(SystemExit, match=sentence):
        export(reversal_data, checkpoints[name], tmp_path / "out", *args)
    assert list(tmp_path.iterdir()) == []


def test_without_ctranslate2_it_says_what_to_install(reversal_data, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"install it with pip install modular_fairseq\[export\]"):
        export(reversal_data, "model.pt", tmp_path / "out")
