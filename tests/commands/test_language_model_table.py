"""Test that `modular-fairseq table` trains and measures a table of language models."""

import json
import math
import os
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
import yaml
from fairseq import checkpoint_utils
from fairseq.data import indexed_dataset

from modular_fairseq_cli import main as cli
from modular_fairseq_cli.scoring.intervals import jackknife, over_pairs
from modular_fairseq_cli.scoring.significance import bootstrap_p
from tests.fairseq_commands import write_reversal_corpus
from tests.places import ROOT

ROW = {
    "task": {"_name": "language_modeling", "data": "text/bin", "tokens_per_sample": 32},
    "model": {
        "_name": "modular_transformer_lm",
        **{"decoder_embed_dim": 32, "decoder_ffn_embed_dim": 32},
        **{"decoder_attention_heads": 4, "decoder_layers": 1},
    },
    "criterion": {"_name": "cross_entropy"},
    "optimizer": {"_name": "adam"},
    "lr_scheduler": {"_name": "fixed"},
    "optimization": {"lr": [0.005], "max_epoch": 2},
    "dataset": {"max_tokens": 128, "update_epoch_batch_itr": True, "num_workers": 0},
}
TABLE = {
    "title": "Language models",
    "baseline": "one",
    "columns": ["perplexity", "valid_perplexity", "parameters"],
    "rows": [{"name": "one", "label": "One layer", "paper": {"perplexity": 20.5}}, {"name": "two"}],
}


@pytest.fixture
def place(tmp_path):
    """Make a folder with a binarized text in data/text and two rows in configs/mine."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "configs/mine").mkdir(parents=True)
    write_reversal_corpus(tmp_path / "raw")
    for split in ("train", "valid", "test"):
        (tmp_path / f"raw/{split}.de").rename(tmp_path / f"raw/{split}.txt")
    prefixes = [
        word for split in ("train", "valid", "test") for word in (f"--{split}pref", f"raw/{split}.txt")
    ]
    words = ["--only-source", *prefixes, "--destdir", "data/text/bin"]
    fairseq(tmp_path, "preprocess", *words)
    write(tmp_path)
    return tmp_path


def write(place, **changes):
    for name, layers in (("one", 1), ("two", 2)):
        model = {**ROW["model"], "decoder_layers": layers}
        (place / f"configs/mine/{name}.yaml").write_text(yaml.safe_dump({**ROW, "model": model}))
    (place / "configs/mine/table.yaml").write_text(yaml.safe_dump({**TABLE, **changes}, sort_keys=False))


def fairseq(place, command, *words):
    program = [sys.executable, "-m", f"fairseq_cli.{command}", *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(program, cwd=place, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout + done.stderr


def table(place, *words):
    own = ["--data", f"{place}/data", "--out", f"{place}/results"]
    cli.main(["table", f"{place}/configs/mine/table.yaml", *own, *words])


def test_language_models_are_trained_and_measured_by_their_perplexity(place, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    table(place, "--run")
    shown = capsys.readouterr().out
    header, *rows = [
        line.split("\t") for line in (place / "results/paper/mine/table.tsv").read_text().splitlines()
    ]
    rows = {row[0]: dict(zip(header, row, strict=True)) for row in rows}
    run = place / "results/paper/mine/one/seed-1"
    found = json.loads((run / "test.json").read_text())["perplexity"]
    words = ["--path", run / "checkpoint_best.pt", "--user-dir", ROOT / "modular_fairseq"]
    words += ["--gen-subset", "test", "--max-tokens", "128", "--tokens-per-sample", "32"]
    scored = fairseq(
        place, "eval_lm", f"{place}/data/text/bin", *map(str, words), "--results-path", str(place)
    )
    assert f"Perplexity: {found:.2f}" in scored
    assert float(rows["one"]["perplexity"]) == found
    assert float(rows["two"]["parameters"]) > float(rows["one"]["parameters"]) > 0
    apart = float(rows["two"]["perplexity"]) - float(rows["one"]["perplexity"])
    assert float(rows["two"]["difference"]) == pytest.approx(apart)
    assert rows["two"]["p"] == rows["two"]["welch_p"] == ""  # a single seed allows no test
    assert "20.5" in shown and "Difference from the baseline in perplexity." in shown
    assert "BLEU" not in shown


def test_what_the_rows_task_does_not_have_is_refused(place):
    write(place, columns=["perplexity", "bleu"], rows=[{"name": "one"}])
    with pytest.raises(
        SystemExit, match="one.yaml: column bleu cannot be measured for task language_modeling"
    ) as e:
        table(place, "--run")
    offered = str(e.value).partition("; use ")[2].partition(" in the columns of ")[0].split(", ")
    assert {"perplexity", "LR_distance_all", "HR_distance_all"} < {*offered}
    assert not {"bleu", "gate_entropy_encoder", "expert_information", "competition_by_depth"} & {*offered}
    assert not (place / "results").exists()


CONTEXT = {"task": {**ROW["task"], "tokens_per_sample": 12}, "eval_lm": {"context_window": 8}}


@pytest.fixture
def documents(place):
    """Give the text documents of 2 lines, and the rows short blocks with a context.

    The words of the text are pairs of the tokens of the binarized data, as far as they go.
    """
    (place / "data/text/text").mkdir()
    lines = [line.split() for line in (place / "raw/test.txt").read_text().splitlines()]
    paired = [" ".join("".join(line[k : k + 2]) for k in range(0, len(line), 2)) for line in lines]
    (place / "data/text/text/test.txt").write_text("".join(f"{line}\n" for line in paired))
    (place / "data/text/text/test.documents").write_text("2\n" * 6)
    write(place, columns=["lm_perplexity", "word_perplexity"], rows=TABLE_OF_CONTEXT)
    for name in ("one", "two"):
        path = place / f"configs/mine/{name}.yaml"
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | CONTEXT))
    return place


TABLE_OF_CONTEXT = [{"name": "one", "paper": {"lm_perplexity": 20.5}}, {"name": "two"}]


def naive_scores(checkpoint, data):
    """Return the log-likelihood of each token after at least the 8 tokens before it, in blocks of 4."""
    models, _, _ = checkpoint_utils.load_model_ensemble_and_task(
        [str(checkpoint)], arg_overrides={"data": str(data)}
    )
    dataset = indexed_dataset.make_dataset(str(data / "test"), "mmap")
    tokens = torch.cat([dataset[k] for k in range(len(dataset))])
    models[0].eval()
    scores = []
    for begin in range(0, len(tokens), 4):
        block = tokens[max(begin - 8, 0) : begin + 4]
        before = tokens[max(begin - 8, 0) - 1] if begin > 8 else torch.tensor(2)
        inputs = torch.cat([before.view(1), block[:-1]])
        log_probs = torch.log_softmax(models[0](inputs[None])[0][0], dim=1)
        scores += log_probs.gather(1, block[:, None]).flatten()[-len(tokens[begin : begin + 4]) :].tolist()
    return scores, dataset.sizes.copy()


def perplexity(sums):
    """Return perplexities from sums of negative log-likelihoods and tokens [..., 2]."""
    return np.exp(sums[..., 0] / sums[..., 1])


def test_perplexity_with_a_context_is_what_fairseq_eval_lm_shows(documents, capsys, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    table(documents, "--run", "--seeds", "1,2")
    shown = capsys.readouterr().out
    run = documents / "results/paper/mine/two/seed-1"
    found = json.loads((run / "test.json").read_text())
    words = [
        "--path",
        run / "checkpoint_best.pt",
        "--user-dir",
        ROOT / "modular_fairseq",
        "--max-tokens",
        "128",
    ]
    words += ["--gen-subset", "test", "--tokens-per-sample", "12", "--context-window", "8"]
    said = fairseq(documents, "eval_lm", f"{documents}/data/text/bin", *map(str, words))
    assert f"Perplexity: {found['lm_perplexity']:.2f}" in said

    scores, lengths = naive_scores(run / "checkpoint_best.pt", documents / "data/text/bin")
    assert math.exp(-sum(scores) / len(scores)) == pytest.approx(found["lm_perplexity"], abs=0.01)
    assert found["nats_per_token"] == pytest.approx(-sum(scores) / len(scores), rel=1e-5)
    text = (documents / "data/text/text/test.txt").read_text()
    words = len(text.split()) + text.count("\n")
    assert words < len(scores)
    assert math.exp(-sum(scores) / words) == pytest.approx(found["word_perplexity"], rel=1e-5)
    kept = json.loads((run / "test.documents.json").read_text())
    ends = [sum(lengths[:k]) for k in range(0, 13, 2)]
    expected = [[-sum(scores[a:b]), b - a] for a, b in zip(ends[:-1], ends[1:], strict=True)]
    assert [n for _, n in kept] == [n for _, n in expected]
    assert [nll for nll, _ in kept] == pytest.approx([nll for nll, _ in expected], abs=1e-3)

    assert "[" not in (run / "test.eval-lm.log").read_text().partition("Evaluated")[2]
    assert not re.search(r"\[-\d", (run / "test.eval-lm.log").read_text())  # no scores of words
    assert "over seeds and documents" in shown and "--context-window 8" in shown and "20.5" in shown
    header, *rows = (documents / "results/paper/mine/table.tsv").read_text().splitlines()
    two = dict(zip(header.split("\t"), rows[1].split("\t"), strict=True))
    results = run.parents[1]
    measured = {
        (name, seed): json.loads((results / f"{name}/seed-{seed}/test.json").read_text())["lm_perplexity"]
        for name in ("one", "two")
        for seed in (1, 2)
    }
    gap = sum(measured["two", seed] - measured["one", seed] for seed in (1, 2)) / 2
    assert float(two["difference"]) == pytest.approx(gap, abs=0.01)
    of_documents = {
        (name, seed): np.array(json.loads((results / f"{name}/seed-{seed}/test.documents.json").read_text()))
        for name, seed in measured
    }
    p_values = [
        bootstrap_p(of_documents["one", seed], of_documents["two", seed], perplexity) for seed in (1, 2)
    ]
    assert float(two["p"]) == pytest.approx(max(p_values)) and max(p_values) < 1
    scored = {key: jackknife(found, perplexity) for key, found in of_documents.items()}
    expected = over_pairs([[(scored["one", seed], scored["two", seed])] for seed in (1, 2)])
    limits = [float(two[name]) for name in ("difference_low", "difference_high")]
    assert limits == pytest.approx([expected.low, expected.high])
    before = (run / "test.json").read_bytes()
    table(documents, "--run", "--seeds", "1,2")
    assert (run / "test.json").read_bytes() == before


def test_other_data_are_measured_again(documents, monkeypatch):
    """Lines of the same lengths, or other documents, are other data; the training stays."""
    monkeypatch.setenv("OMP_NUM_THREADS", "1")

    def result(name="test.json"):
        table(documents, "--run", "--only", "one")
        return json.loads((documents / "results/paper/mine/one/seed-1" / name).read_text())

    before, by_document = result(), result("test.documents.json")
    assert len(by_document) == 6
    (documents / "data/text/text/test.documents").write_text("3\n" * 4)
    assert len(result("test.documents.json")) == 4
    binarized = documents / "data/text/bin/test.bin"
    tokens = bytearray(binarized.read_bytes())
    size = len(tokens) // sum(number for _, number in by_document)
    for start in range(0, len(tokens), 2 * size):  # exchange neighbours
        tokens[start : start + 2 * size] = (
            tokens[start + size : start + 2 * size] + tokens[start : start + size]
        )
    binarized.write_bytes(tokens)
    after = result()
    assert abs(after["lm_perplexity"] - before["lm_perplexity"]) > 0.5
    assert after["checkpoint"] == before["checkpoint"]
    (documents / "data/text/text/test.txt").unlink()
    assert result() == after
    (documents / "results/paper/mine/one/seed-1/test.json").unlink()
    assert result()["word_perplexity"] is None  # it needs the text


@pytest.mark.parametrize(
    ("spoil", "sentence"),
    [
        (
            lambda place: (place / "data/text/bin/test.idx").unlink(),
            "test.idx is missing, so mine/one/seed-1",
        ),
        (
            lambda place: (place / "data/text/text/test.documents").write_text("2\n"),
            "test.documents has documents of 2 lines, and .*test.idx has 12 lines; prepare the corpus again",
        ),
    ],
)
def test_a_corpus_that_lacks_something_is_one_sentence(documents, spoil, sentence, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    spoil(documents)
    with pytest.raises(SystemExit, match=sentence):
        table(documents, "--run", "--only", "one")
    assert not list(documents.glob("results/**/*.pt"))  # before any training


def test_blocks_are_those_of_the_training(documents, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    path = documents / "configs/mine/one.yaml"
    row = yaml.safe_load(path.read_text())
    row["task"] |= {"sample_break_mode": "eos", "add_bos_token": True}
    path.write_text(yaml.safe_dump(row | {"eval_lm": {"softmax_batch": 7}}))
    table(documents, "--run", "--only", "one")
    run = documents / "results/paper/mine/one/seed-1"
    found = json.loads((run / "test.json").read_text())
    words = ["--path", run / "checkpoint_best.pt", "--user-dir", ROOT / "modular_fairseq", "--max-tokens"]
    words += ["128", "--gen-subset", "test", "--tokens-per-sample", "12"]
    by_mode = {
        mode: fairseq(documents, "eval_lm", f"{documents}/data/text/bin", *map(str, words), *mode.split())
        for mode in ("--sample-break-mode eos --add-bos-token", "")
    }
    shown = [f"Perplexity: {found['lm_perplexity']:.2f}" in said for said in by_mode.values()]
    assert shown == [True, False]
    words = "--tokens-per-sample 12 --sample-break-mode eos --add-bos-token --softmax-batch 7"
    assert sorted(found["eval_lm"]) == sorted(words.split())


def test_a_batch_with_contexts_has_as_many_tokens_as_in_training(documents, capsys):
    table(documents, "--dry-run", "--only", "one")
    command = next(line for line in capsys.readouterr().out.splitlines() if "fairseq-eval-lm" in line)
    assert "--max-tokens 128 " in command and command.endswith(" --batch-size 10")  # of 12 tokens each


def test_a_context_as_long_as_the_block_is_refused(documents):
    path = documents / "configs/mine/one.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"eval_lm": {"context_window": 12}}))
    sentence = "one.yaml: eval_lm.context_window is 12 and task.tokens_per_sample is 12, so no token"
    with pytest.raises(SystemExit, match=sentence):
        table(documents, "--dry-run")
    for value, said in (
        (-5, "-5; it must be a whole number of tokens, at least 0"),
        ("8", "the text '8'; give a "),
    ):
        wrong = {"eval_lm": {"context_window": value}}
        path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | wrong))
        sentence = f"context_window is {said}"
        with pytest.raises(SystemExit, match=sentence):
            table(documents, "--dry-run")
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | {"eval_lm": {"context_window": 8}}))
    (documents / "configs/scales").mkdir()
    (documents / "configs/scales/short.yaml").write_text("set: {task.tokens_per_sample: 8}")
    with pytest.raises(SystemExit, match="context_window is 8 and task.tokens_per_sample is 8, so no token"):
        table(documents, "--dry-run", "--scale", "short")
