"""Test that `modular-fairseq table` trains and measures a table of language models."""

import json
import os
import subprocess
import sys

import pytest
import yaml

from modular_fairseq_cli import main as cli
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
    assert {"perplexity", "LR_distance_all", "HR_distance_all"} < {*offered} and "bleu" not in offered
    assert not (place / "results").exists()
