"""Test what `modular-fairseq analyze` prints and writes for trained models, and what it refuses."""

import json
import logging
import os
import re
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sacrebleu import BLEU

import modular_fairseq.analysis
from modular_fairseq.analysis import ANALYSES, single_expert
from modular_fairseq.analysis.sentences import sentence_of_text, sentences_of_data
from modular_fairseq.loading import load
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring import read_output
from tests.fairseq_commands import OPTIMIZE, binarize, run_generate, run_train, write_reversal_corpus
from tests.helpers import OF_TEXT
from tests.plugins import registries

CRITERION = ("--criterion", "modular_cross_entropy")


@pytest.fixture(scope="module")
def trained(reversal_data, tmp_path_factory):
    """Train a model with experts, masks and TIM layers for one epoch, and return its path and its data."""
    folder = tmp_path_factory.mktemp("trained")
    options = (
        "--arch",
        "mae_transformer",
        "--attention-type",
        "mae+dma",
        "--tim-layers",
        "all",
        "--max-source-positions",
        "20",
    )
    run_train(reversal_data, *options, *CRITERION, "--max-epoch", 1, "--save-dir", folder)
    return Namespace(data=str(reversal_data), path=str(folder / "checkpoint_last.pt"))


def analyze(what, trained, *options):
    cli.main(["analyze", what, trained.data, "--path", trained.path, *map(str, options)])


def refuse(what, trained, *options):
    """Run an analysis that must fail, and return the sentence that it prints."""
    with pytest.raises(SystemExit) as error:
        analyze(what, trained, *options)
    sentence = str(error.value)
    assert sentence.startswith("modular-fairseq analyze: error: ") and "\n" not in sentence
    return sentence


def test_all_writes_every_analysis_of_text_and_describes_the_model(trained, tmp_path, capsys):
    analyze("all", trained, "--out", tmp_path / "found", "--samples", 3, "--sentence", "w1 w2 w3")
    text = capsys.readouterr().out
    assert [line for line in text.splitlines() if re.fullmatch("[A-Z]+", line)] == [
        name.upper() for name in OF_TEXT
    ]
    index = json.loads((tmp_path / "found" / "analysis.json").read_text())
    assert list(index["analyses"]) == OF_TEXT
    assert sorted(index["files"]) == sorted(
        path.name for path in (tmp_path / "found").iterdir() if path.name not in ("analysis.json", ".lock")
    )
    assert {
        "gates.tsv",
        "experts.tsv",
        "clusters.tsv",
        "competition-tokens.tsv",
        "patterns.tsv",
        "redundancy.tsv",
    } <= {*index["files"]}
    about = {
        key: index[key]
        for key in (
            "arch",
            "task",
            "epoch",
            "source_lang",
            "target_lang",
            "subset",
            "sentences",
            "checkpoint",
        )
    }
    assert about == {
        "arch": "mae_transformer",
        "task": "translation",
        "epoch": 1,
        "source_lang": "de",
        "target_lang": "en",
        "subset": "valid",
        "sentences": 12,
        "checkpoint": trained.path,
    }
    assert index["updates"] > 0 and index["parameters"] == sum(
        p.numel() for p in load(trained.path, trained.data, "valid").model.parameters()
    )
    found = json.loads((tmp_path / "found" / "samples.json").read_text())
    assert [sentence["origin"] for sentence in found["sentences"]] == [
        "--sentence 1",
        "valid 1",
        "valid 2",
        "valid 3",
    ]
    own = found["sentences"][0]
    assert own["source"] == ["w1", "w2", "w3", "</s>"] and own["translated"] and own["target"][-1] == "</s>"
    arrays = np.load(tmp_path / "found" / "samples.npz")
    assert arrays["attention/0/decoder.layers.0.encoder_attn"].shape == (4, len(own["target"]), 4)
    assert {name.split("/")[0] for name in arrays.files} == {
        "attention",
        "mask",
        "clusters",
        "gates",
        "competition",
    }


def test_a_sentence_is_translated_as_fairseq_generate_does(trained, capsys):
    loaded = load(trained.path, trained.data, "test")
    source = loaded.task.dataset("test")[0]["source"]
    text = loaded.task.source_dictionary.string(source)
    found = sentence_of_text(loaded.model, loaded.task, text, "--sentence 1")
    hypotheses, _ = run_generate(trained.data, trained.path, "--gen-subset", "test")
    assert found.translated and loaded.task.target_dictionary.string(found.target) == hypotheses[0]
    assert found.target_in.tolist() == [2, *found.target.tolist()[:-1]]
    found = sentence_of_text(loaded.model, loaded.task, f"{text}\tw3 w4", "--sentence 1")
    assert "not in the dictionary" not in capsys.readouterr().err
    sentence_of_text(loaded.model, loaded.task, "w1 wo w2 ww", "--sentence 3")
    assert (
        "--sentence 3: not in the dictionary: wo, ww (2 of 4 tokens); give tokens" in capsys.readouterr().err
    )
    assert not found.translated and loaded.task.target_dictionary.string(found.target) == "w3 w4"


def test_several_analyses_and_a_stock_model(reversal_data, trained, tmp_path, capsys):
    analyze("gates,patterns", trained)
    assert [line for line in capsys.readouterr().out.splitlines() if re.fullmatch("[A-Z]+", line)] == [
        "GATES",
        "PATTERNS",
    ]
    run_train(reversal_data, "--arch", "transformer", "--max-epoch", 1, "--save-dir", tmp_path)
    stock = Namespace(data=trained.data, path=str(tmp_path / "checkpoint_last.pt"))
    analyze("all", stock, "--out", tmp_path / "stock", "--samples", 1)
    assert (
        capsys.readouterr().out.splitlines()[-1]
        == "  competition: the model has no mechanisms that compete; analyse a model trained with "
        "--tim-layers middle or all, with --tim-mechanisms 2 or more and without --tim-no-competition"
    )
    index = json.loads((tmp_path / "stock" / "analysis.json").read_text())
    assert list(index["analyses"]) == ["patterns", "redundancy"] and index["arch"] == "transformer"
    assert "samples.npz" in index["files"]
    assert "has no experts; analyse a model trained with --attention-type mae" in refuse(
        "single-expert", stock
    )


def test_padding_of_a_decoder_without_self_attention_is_not_counted(reversal_data, tmp_path):
    kernels = ("--encoder-kernel-size-list", "[3]", "--decoder-kernel-size-list", "[3]")
    layers = ("--encoder-layers", 1, "--decoder-layers", 1)
    words = ("--arch", "lightconv", *kernels, *layers, "--max-epoch", 1)
    run_train(reversal_data, *words, "--save-dir", tmp_path)
    stock = Namespace(data=str(reversal_data), path=str(tmp_path / "checkpoint_last.pt"))
    found = []
    for tokens in (4000, 12):
        out = tmp_path / f"found-{tokens}"
        analyze("redundancy", stock, "--max-tokens", tokens, "--out", out)
        analyses = json.loads((out / "analysis.json").read_text())["analyses"]
        found.append(analyses["redundancy"]["HR_distance_all"])
    assert found[0] == pytest.approx(found[1], abs=1e-4)


def test_a_model_without_anything_to_analyse_is_refused_and_nothing_is_replaced(
    reversal_data, trained, tmp_path
):
    layers = ("--encoder-layers", "[(8, 3)]", "--decoder-layers", "[(8, 3)]", "--decoder-attention", "True")
    words = ("--arch", "fconv", *layers, "--max-epoch", 1, "--save-dir", tmp_path)
    run_train(reversal_data, *words, common=OPTIMIZE)
    stock = Namespace(data=trained.data, path=str(tmp_path / "checkpoint_last.pt"))
    analyze("redundancy", trained, "--out", tmp_path / "found")
    before = (tmp_path / "found/analysis.json").read_bytes()
    sentence = refuse("all", stock, "--out", tmp_path / "found")
    assert "no analysis is for this checkpoint and these data. gates: the model has no learned ga" in sentence
    assert (tmp_path / "found/analysis.json").read_bytes() == before


def test_single_experts_of_a_model_with_a_seed_of_random_ones(trained, tmp_path, monkeypatch):
    """The seed in the checkpoint would be refused for the other ways to translate."""
    state = torch.load(trained.path, weights_only=False)
    state["cfg"]["model"] |= {"mae_inference": "random", "mae_inference_seed": 7}
    torch.save(state, tmp_path / "random.pt")
    monkeypatch.setattr(single_expert, "DRAWS", 1)
    other = Namespace(data=trained.data, path=str(tmp_path / "random.pt"))
    out = tmp_path / "found"
    analyze("single-expert", other, "--gen-subset", "test", "--out", out, "--", "--beam", "1")
    kept = {path.name for path in out.glob("*.out")}
    assert kept == {f"single-expert-test-{way}.out" for way in ("mixture", "specialised", "random-1")}


def test_single_experts_have_the_scores_of_fairseq_generate(trained, tmp_path, capsys, monkeypatch):
    assert single_expert.DRAWS == 5
    monkeypatch.setattr(single_expert, "DRAWS", 2)
    out = tmp_path / "found"
    analyze("single-expert", trained, "--gen-subset", "test", "--out", out, "--", "--beam", "2")
    [data] = json.loads((out / "analysis.json").read_text())["analyses"].values()
    assert [(row["inference"], len(row["scores"])) for row in data["rows"]] == [
        ("mixture", 1),
        ("most specialised", 1),
        ("random", 2),
    ]
    names = ("mixture", "specialised", "random-1", "random-2")
    assert {path.name for path in out.glob("*.out")} == {f"single-expert-test-{name}.out" for name in names}
    scores = [score for row in data["rows"] for score in row["scores"]]
    for score, name in zip(scores, names, strict=True):
        inference, _, seed = name.partition("-")
        _, said = run_generate(
            trained.data,
            trained.path,
            "--gen-subset",
            "test",
            "--beam",
            2,
            "--model-overrides",
            str({"mae_inference": inference} | ({"mae_inference_seed": int(seed)} if seed else {})),
        )
        (tmp_path / "again.out").write_text(said)
        output = read_output(tmp_path / "again.out", detokenize="none")
        again = BLEU(tokenize="none", force=True).corpus_score(output.tokens, [output.reference_tokens]).score
        assert score == pytest.approx(again)
    for row in data["rows"]:
        assert row["difference"] == pytest.approx(row["BLEU"] - data["rows"][0]["BLEU"])
    kept = out / "single-expert-test-random-1.out"
    before = kept.stat().st_mtime_ns
    capsys.readouterr()
    analyze("single-expert", trained, "--gen-subset", "test", "--out", out, "--", "--beam", "2")
    assert kept.stat().st_mtime_ns == before  # a run that was killed continues
    assert "translating" not in capsys.readouterr().err
    files = [next(Path(trained.data).glob(pattern)) for pattern in ("test.*.idx", "dict.*.txt")]
    times = [(file.stat().st_atime_ns, file.stat().st_mtime_ns) for file in files]
    for file, (read, changed) in zip(files, times, strict=True):
        os.utime(file, ns=(read, changed + 1))  # as if it were replaced
        analyze("single-expert", trained, "--gen-subset", "test", "--out", out, "--", "--beam", "2")
        assert "translating" in capsys.readouterr().err
    for file, both in zip(files, times, strict=True):
        os.utime(file, ns=both)
    analyze("single-expert", trained, "--gen-subset", "test", "--out", out, "--", "--beam", "1")
    assert "translating" in capsys.readouterr().err  # these translations are others
    sentence = refuse("single-expert", trained, "--out", tmp_path / "other", "--", "--beam", "two")
    assert "invalid int value: 'two'" in sentence and [
        path.name for path in (tmp_path / "other").iterdir()
    ] == [".lock"]


def test_words_that_are_refused(trained, tmp_path, monkeypatch):
    for what, options, sentence in (
        (
            "gates,nothing",
            (),
            "there is no analysis 'nothing'; give all, or some of gates, experts, clusters, ",
        ),
        ("distance", (), " with commas between them, or import the plugin that has it with --user-dir"),
        ("all,gates", (), "all cannot be combined with other analyses; leave out all, or leave out gates"),
        ("samples", (), "samples needs --out"),
        (
            "gates",
            ("--samples", "3", "--out", tmp_path / "a"),
            "--samples has no effect without samples or all, together with --out; leave out --samples",
        ),
        ("all", ("--sentence", "w1"), "--sentence has no effect without samples or all, together"),
        ("all", ("--samples", "-1", "--out", tmp_path / "a"), "--samples must be 0 or more, not -1"),
        (
            "all",
            ("--", "--beam", "5"),
            "--beam 5 after -- has no effect, because only single-expert calls fairseq-generate",
        ),
        (
            "single-expert",
            ("--", "--path", "x"),
            "--path has no place after --, because analyze single-expert sets it",
        ),
        ("gates", ("--max-tokens", "3"), "--max-tokens 3 is less than the length of the longest sentence"),
        ("samples", ("--out", tmp_path / "a", "--sentence", " \tw1"), "--sentence 1 is empty"),
        (
            "samples",
            ("--out", tmp_path / "a", "--sentence", "w1 " * 20),
            "--sentence 1 has 21 tokens with </s>, but at most 20 can be shown",
        ),
        (
            "samples",
            ("--out", tmp_path / "a", "--sentence", "w1 <pad>"),
            "--sentence 1 contains <pad>, which is padding and not a word",
        ),
        (
            "samples",
            ("--out", tmp_path / "a", "--samples", "0"),
            "samples with --samples 0 has nothing to write",
        ),
        (
            "gates,samples",
            ("--out", tmp_path / "a", "--samples", "0"),
            "samples with --samples 0 has nothing to write",
        ),
        (
            "samples",
            ("--out", tmp_path / "a", "--max-tokens", "9"),
            "--max-tokens has no effect without an analysis of all the data",
        ),
        (
            "single-expert",
            ("--skip-invalid-size-inputs-valid-test",),
            "test has no effect without an analysis of all the data",
        ),
        ("gates", ("--out", tmp_path / "file" / "in"), "cannot be written"),
    ):
        (tmp_path / "file").write_text("")
        assert sentence in refuse(what, trained, *options)
    assert not any(path.is_file() for path in tmp_path.rglob("*") if path.name not in ("file", ".lock"))


@pytest.fixture
def other_data(trained, tmp_path):
    """Binarize data with the same dictionaries, whose valid part is empty and whose test part has a sentence
    of 25 words.
    """
    text = tmp_path / "text"
    text.mkdir()
    write_reversal_corpus(text)
    for lang in ("de", "en"):
        (text / f"valid.{lang}").write_text("")
        lines = (text / f"test.{lang}").read_text().splitlines()
        (text / f"test.{lang}").write_text("\n".join([*lines, " ".join(["w1"] * 25)]) + "\n")
    binarize(text, tmp_path / "bin")
    return Namespace(data=str(tmp_path / "bin"), path=trained.path)


def test_data_that_are_refused(other_data, tmp_path, capsys):
    out = ("--out", tmp_path / "found")
    assert "--gen-subset valid has no sentence; give a part" in refuse("all", other_data, *out)
    sentence = refuse("all", other_data, "--gen-subset", "test", *out)
    assert re.search(
        r"sample 12, counted from 0, has 26 and 26 tokens, and the model has 20 and 1,024 positions; .*"
        r"--skip-invalid-size",
        sentence,
    )
    assert [path.name for path in (tmp_path / "found").iterdir()] == [".lock"]
    capsys.readouterr()
    analyze("redundancy", other_data, "--gen-subset", "test", "--skip-invalid-size-inputs-valid-test")
    assert "12 sentences" in capsys.readouterr().out


def test_what_all_cannot_see_is_left_out_and_the_rest_is_there(other_data, tmp_path, capsys):
    short = tmp_path / "short"
    short.mkdir()
    write_reversal_corpus(short)
    for lang in ("de", "en"):
        (short / f"valid.{lang}").write_text("w1 w2\nw3\n")
    binarize(short, short / "bin")
    pairs = Namespace(data=str(short / "bin"), path=other_data.path)
    analyze("all", pairs, "--out", tmp_path / "found", "--samples", "1")
    index = json.loads((tmp_path / "found" / "analysis.json").read_text())
    assert (
        list(index["analyses"]) == [name for name in OF_TEXT if name != "patterns"]
        and index["sentences"] == 2
    )
    assert "left out\n  patterns: patterns need sentences of 5 tokens or more" in capsys.readouterr().out
    assert "patterns need sentences of 5 tokens" in refuse("gates,patterns", pairs)


def test_long_sentences_leave_out_the_samples_and_nothing_else(other_data, tmp_path, capsys):
    long = tmp_path / "long"
    long.mkdir()
    write_reversal_corpus(long)
    (long / "valid.de").write_text("w1 w2 w3 w4 w5\n")
    (long / "valid.en").write_text("w1 " * 70 + "\n")
    binarize(long, long / "bin")
    pairs = Namespace(data=str(long / "bin"), path=other_data.path)
    analyze("all", pairs, "--out", tmp_path / "found")
    index = json.loads((tmp_path / "found" / "analysis.json").read_text())
    assert list(index["analyses"]) == OF_TEXT and "samples.json" not in index["files"]
    assert "left out\n  samples: there is no sentence of at most 64 tokens" in capsys.readouterr().out
    assert "there is no sentence of at most 64 tokens" in refuse(
        "samples", pairs, "--out", tmp_path / "other"
    )


@pytest.mark.parametrize("name", ["fc1.bias", "norm.running_mean"])
def test_a_model_that_diverged_is_refused(name, trained, tmp_path):
    state = torch.load(trained.path, weights_only=False)
    state["model"][f"encoder.layers.0.self_attn.gate.gate_network.{name}"][0] = float("nan")
    torch.save(state, tmp_path / "nan.pt")
    sentence = refuse("gates", Namespace(data=trained.data, path=str(tmp_path / "nan.pt")))
    assert "has weights that are NaN or infinite, because its training diverged" in sentence


def test_an_arch_of_another_plugin_needs_its_user_dir(trained, tmp_path):
    state = torch.load(trained.path, weights_only=False)
    state["cfg"]["model"]["_name"] = "nobody_knows"
    torch.save(state, tmp_path / "foreign.pt")
    sentence = refuse("gates", Namespace(data=trained.data, path=str(tmp_path / "foreign.pt")))
    assert f"{tmp_path}/foreign.pt names the model nobody_knows, which is neither in fairseq nor" in sentence
    assert sentence.endswith("or give the --user-dir that has it")


def test_python_gets_the_analyses_that_it_names(trained, caplog):
    caplog.set_level(logging.INFO, "fairseq")
    found = modular_fairseq.analysis.analyze(trained.path, trained.data, names=["gates", "patterns"])
    assert list(found) == ["gates", "patterns"] and found["gates"].experts == 12
    assert list(modular_fairseq.analysis.analyze(trained.path, trained.data, names="redundancy")) == [
        "redundancy"
    ]
    for names in ("gatez", ["gates", "samples"]):
        with pytest.raises(UsageError, match="there is no analysis '(gatez|samples)'"):
            modular_fairseq.analysis.analyze(trained.path, trained.data, names=names)
    assert logging.getLogger("fairseq").level == logging.INFO


def test_sentences_that_are_too_long_for_the_screen_or_the_model_are_not_shown(trained):
    loaded = load(trained.path, trained.data, "test")
    lengths = [19, 20, 21, 64, 65]
    pairs = [
        {"source": torch.full((n,), 5), "target": torch.full((m,), 6)} for n in lengths for m in (64, 65)
    ]
    task = SimpleNamespace(dataset=lambda subset: pairs)
    found = list(sentences_of_data(loaded.model, task, "test", 20))
    # The model has 20 source positions.
    assert [(len(each.source), len(each.target)) for each in found] == [
        (19, 64),
        (20, 64),
    ]
    assert [each.origin for each in found] == ["test 1", "test 3"]
    assert len(list(sentences_of_data(loaded.model, task, "test", 1))) == 1


def test_a_plugin_beside_this_one_brings_an_analysis(trained, tmp_path, monkeypatch, capsys):
    plugin = tmp_path / "counting_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(
        "from dataclasses import dataclass\n"
        "from modular_fairseq.analysis import ANALYSES\n"
        "from modular_fairseq.analysis.one_pass import Analysis, Report\n"
        "@dataclass\n"
        "class Count(Report):\n"
        "    sentences: int\n"
        "    def text(self):\n"
        "        return f'{self.sentences} sentences seen'\n"
        "class Counting(Analysis):\n"
        "    summary = 'how many sentences there are'\n"
        "    def __init__(self, model):\n"
        "        self.sentences = 0\n"
        "    def see(self, batch, maps):\n"
        "        self.sentences += batch['nsentences']\n"
        "    def report(self):\n"
        "        return Count(self.sentences)\n"
        "ANALYSES['counting'] = Counting\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    with registries():
        analyze("counting", trained, "--user-dir", plugin)
    assert capsys.readouterr().out == "12 sentences seen\n"


def test_summaries_are_in_the_help(capsys):
    with pytest.raises(SystemExit):
        cli.main(["analyze", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    for kind in ANALYSES.values():
        assert kind.summary in said


def test_results_are_written_before_they_are_shown(trained, tmp_path, monkeypatch):
    def show(reports, refused):
        raise BrokenPipeError  # `| head` closes the pipe

    monkeypatch.setattr("modular_fairseq.analysis.command.show", show)
    monkeypatch.setattr("os.dup2", lambda *files: None)  # the output of this process stays open
    with pytest.raises(SystemExit, match="1"):
        analyze("gates", trained, "--out", tmp_path / "found")
    assert (tmp_path / "found" / "analysis.json").exists()
