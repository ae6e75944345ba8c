"""Test that `modular-fairseq table` pre-trains, fine-tunes and measures masked language models."""

import json
import re
import shutil
import subprocess
import sys
from statistics import median, stdev
from types import SimpleNamespace

import numpy as np
import pytest
import yaml

from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evaluation import Measurement, Pair
from modular_fairseq.runs.evaluations.predictions import Classes, MaskedWords, Values
from modular_fairseq.runs.papers.results import Results, Trial
from modular_fairseq.training.overrides import read_overrides
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.significance import bootstrap_p
from tests.masked_language_models import write_corpora
from tests.places import ROOT
from tests.refusals import refusal

MODEL = {
    "_name": "modular_roberta",
    **{"encoder_embed_dim": 16, "encoder_ffn_embed_dim": 16, "encoder_attention_heads": 2},
}
PRETRAINED = {
    "task": {"_name": "masked_lm", "data": "text/bin", "tokens_per_sample": 16},
    "model": MODEL,
    "criterion": {"_name": "masked_lm"},
    "optimizer": {"_name": "adam"},
    "lr_scheduler": {"_name": "fixed"},
    "optimization": {"lr": [0.005], "max_epoch": 2},
    "dataset": {"max_tokens": 128, "update_epoch_batch_itr": True, "num_workers": 0},
    "checkpoint": {"no_epoch_checkpoints": True},
}
TUNED = {
    **PRETRAINED,
    "task": {
        **{"_name": "sentence_prediction", "data": "classes/bin", "num_classes": 2},
        **{"init_token": 0, "max_positions": 16},
    },
    "criterion": {"_name": "sentence_prediction"},
    "checkpoint": {
        **PRETRAINED["checkpoint"],
        **{"best_checkpoint_metric": "accuracy", "maximize_best_checkpoint_metric": True},
    },
}
SEARCH = [0.005, 0.02]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Make prepared corpora, and rows of two models in two tables: of pre-training and of fine-tuning."""
    place = tmp_path_factory.mktemp("place")
    (place / "made").mkdir()
    write_corpora(place / "made")
    for name, made in (("text", "bin"), ("classes", "classes"), ("values", "values")):
        (place / "data" / name).mkdir(parents=True)
        (place / "made" / made).rename(place / "data" / name / "bin")
    for table in ("before", "after"):
        (place / "configs" / table).mkdir(parents=True)
    for name, layers in (("one", 1), ("two", 2)):
        model = {**MODEL, "encoder_layers": layers}
        write(place / f"configs/before/{name}.yaml", {**PRETRAINED, "model": model})
        start = {**TUNED["checkpoint"], "finetune_from_model": f"../before/{name}.yaml"}
        model = {**model, "max_positions": 16}
        write(place / f"configs/after/{name}.yaml", {**TUNED, "model": model, "checkpoint": start})
    rows = [{"name": "one", "paper": {}}, {"name": "two"}]
    columns = ["masked_nll", "masked_perplexity", "masked_accuracy", "perplexity", "parameters"]
    table = {"title": "Before", "baseline": "one", "columns": columns, "rows": rows}
    table["rows"][0]["paper"] = {"masked_nll": "2.027"}
    write(place / "configs/before/table.yaml", table)
    write(place / "configs/after/table.yaml", after())
    return place


def after(**changes):
    return {
        **{"title": "After", "baseline": "one", "columns": ["class_accuracy"], "average": "median"},
        "search": {"optimization.lr": SEARCH},
        "rows": [{"name": name, "subset": "valid"} for name in ("one", "two")],
        **changes,
    }


def write(path, content):
    path.write_text(yaml.safe_dump(content, sort_keys=False))


def table(place, name, *words):
    own = ["--data", f"{place}/data", "--out", f"{place}/results"]
    cli.main(["table", f"{place}/configs/{name}/table.yaml", *own, *words])


def result(place, run, file="test.json"):
    return json.loads((place / "results/paper" / run / file).read_text())


@pytest.fixture(scope="module")
def made(place):
    """Make both tables with three seeds, and return what they print."""
    shown = {}
    for name, seeds in (("before", "1,2"), ("after", "1,2,3")):
        own = ["--data", f"{place}/data", "--out", f"{place}/results", "--run", "--seeds", seeds]
        command = [sys.executable, "-m", "modular_fairseq_cli", "table", f"{place}/configs/{name}/table.yaml"]
        done = subprocess.run([*command, *own], capture_output=True, text=True, cwd=ROOT)
        assert done.returncode == 0, done.stderr[-3000:]
        shown[name] = done
    return shown


def test_all_models_predict_the_same_masked_words(place, made):
    counts = []
    for row in ("one", "two"):
        for seed in (1, 2):
            found = result(place, f"before/{row}/seed-{seed}", "test.predictions.json")
            assert found["seed"] == 1
            lines = (place / f"results/paper/before/{row}/seed-{seed}/test.predictions.tsv").read_text()
            counts.append([line.split("\t")[1] for line in lines.splitlines()])
            kept = result(place, f"before/{row}/seed-{seed}")
            names = (
                ("masked_perplexity", "perplexity"),
                ("masked_nll", "nll"),
                ("masked_accuracy", "accuracy"),
            )
            assert all(kept[column] == found[name] for column, name in names)
    assert counts[0] == counts[1] == counts[2] == counts[3]
    shown = made["before"].stdout
    assert "paper: NLL" in shown and "2.027" in shown
    assert "95 % interval over seeds and blocks of text" in shown
    assert "the largest p over the seeds of the paired bootstrap over blocks of text" in shown


def test_the_learning_rate_with_the_best_median_is_shown(place, made):
    lines = made["after"].stdout.splitlines()
    chosen = {}
    for row in ("one", "two"):
        values = {
            rate: [
                result(place, f"after/{row}-lr-{rate}/seed-{seed}", "valid.json")["class_accuracy"]
                for seed in (1, 2, 3)
            ]
            for rate in SEARCH
        }
        chosen[row] = best = max(SEARCH, key=lambda rate: median(values[rate]))  # the first of equal ones
        (line,) = [line for line in lines if re.match(rf"{row}\s", line)]
        deviation = stdev(values[best])
        assert re.split(r"\s{2,}", line)[1] == f"{median(values[best]):.2f} ± {deviation:.2f}"
    note = "; ".join(f"{row}: optimization.lr {rate}" for row, rate in chosen.items())
    assert f"Values with the best median, which are shown: {note}." in lines
    assert "Seeds 1,2,3, median ± standard deviation." in lines
    assert any(
        line.startswith("Difference of the means from the baseline in accuracy [95 %") for line in lines
    )
    start = result(place, "after/one-lr-0.02/seed-3", "settings.json")
    assert start["starts from"] == "before/one/seed-1" and start["optimization.lr"] == [0.02]


def test_a_search_that_is_not_finished_shows_what_is_missing(place, made, capsys):
    said = refusal(table, place, "after", "--seeds", "1,2,3,4")
    shown = capsys.readouterr().out
    assert "(6 of 8)" in shown and "which are shown: not known yet." in shown
    assert "the table is not complete: one, two missing" in said


@pytest.mark.parametrize(
    ("folder", "file", "key"),
    [
        ("input0", "train.idx", "train text"),
        ("input0", "dict.txt", "dictionary text"),
        ("label", "train.idx", "train label"),
        ("input1", "train.idx", "train more"),
        ("label", "train.label", "train more"),
    ],
)
def test_each_file_of_training_identifies_a_classification(place, tmp_path, folder, file, key):
    shutil.copytree(place / "data/classes/bin", tmp_path / "bin")
    shutil.copytree(tmp_path / "bin/input0", tmp_path / "bin/input1")
    shutil.copy(place / "data/values/bin/label/train.label", tmp_path / "bin/label")
    corpus = Corpus(str(tmp_path / "bin"), folders=("input0", "label"))
    before, path = corpus.sums(), tmp_path / "bin" / folder / file
    path.write_bytes(path.read_bytes() + b" ")
    after = corpus.sums()
    assert [name for name in before if before[name] != after[name]] == (
        [key] if file == "dict.txt" else [key, "content"]
    )


def test_a_result_of_changed_data_does_not_count(place, made):
    run, label = "after/one-lr-0.005/seed-1", place / "data/classes/bin/label/valid.bin"
    before, content = result(place, run, "valid.json"), label.read_bytes()
    assert before["overrides"] == [] and len(before["data"]) == 6
    try:
        label.write_bytes(content[::-1])
        said = refusal(table, place, "after", "--seeds", "1,2,3")
        assert "one, two missing for seeds 1,2,3" in said
    finally:
        label.write_bytes(content)
    table(place, "after", "--seeds", "1,2,3")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"rows": [{"name": "one"}]}, "would choose values for row one by its subset test; give the row"),
        ({"search": {"lr": [1, 2]}}, r"search has lr: \[1, 2\]; give different single values of an option"),
        ({"search": {"optimization.lr": [0.1, 0.1]}}, "give different single values"),
        ({"search": {"optimization.lr": 0.1}}, "give different single values"),
        ({"search": {"optimization.clip_norm": [1.0]}}, "optimization.clip_norm is missing, which the table"),
        ({"search": {"optimization.max_epoch": ["x"]}}, "max_epoch is the text 'x'; give a number"),
        ({"average": "mode"}, "average is mode; it must be mean or median"),
        (
            {"columns": ["masked_nll"]},
            "cannot be measured for task sentence_prediction; use .*class_accuracy",
        ),
        ({"columns": ["perplexity"]}, "column perplexity cannot be measured for task sentence_prediction"),
        ({"columns": ["pearson"]}, "column pearson cannot be measured for task sentence_prediction"),
    ],
)
def test_wrong_tables_are_refused(place, tmp_path, changes, said):
    for folder in ("before", "after"):
        (tmp_path / "configs" / folder).mkdir(parents=True)
        for row in (place / "configs" / folder).glob("*.yaml"):
            (tmp_path / "configs" / folder / row.name).write_bytes(row.read_bytes())
    write(tmp_path / "configs/after/table.yaml", after(**changes))
    assert re.search(said, refusal(table, tmp_path, "after"))


def test_a_searched_option_cannot_be_given_for_all_rows(place):
    assert "--lr cannot be given after the --" in refusal(table, place, "after", "--run", "--", "--lr", "1")


def test_a_scale_may_switch_the_search_off(place, capsys):
    """Then the rate of the scale is used, which the search would replace."""
    (place / "configs/scales").mkdir(exist_ok=True)
    scale = {"set": {"optimization.lr": [0.3]}, "search": False}
    write(place / "configs/scales/short.yaml", scale)
    table(place, "after", "--scale", "short", "--dry-run")
    shown = capsys.readouterr().out
    assert "/after/one/seed-1/" in shown and "--lr 0.3" in shown and "one-lr-" not in shown
    write(place / "configs/scales/short.yaml", {**scale, "search": True})
    table(place, "after", "--scale", "short", "--dry-run")
    assert "-lr-0.005/" in (shown := capsys.readouterr().out) and "-lr-0.02/" in shown
    write(place / "configs/scales/short.yaml", {"search": 1})
    assert "`search:` with true or false" in refusal(table, place, "after", "--scale", "short", "--dry-run")


@pytest.mark.parametrize(("lower", "best"), [(True, "b"), (False, "c")])
def test_the_best_median_is_the_lowest_of_a_perplexity(lower, best):
    main = SimpleNamespace(key="x", lower_is_better=lower)

    def measured(value):
        result = None if value is None else {"x": value}
        return SimpleNamespace(evaluations=[main], result=result, finished_result=lambda: result)

    values = {"a": [3, 4, 9], "b": [1, 2, 30], "c": [1, 5, 6], "d": [0, 0, None], "e": [99, 99, None]}
    trials = [Trial({"name": name}, [measured(each) for each in found]) for name, found in values.items()]
    assert Results(None, None, trials).chosen.values == {"name": best}
    assert Results(None, None, trials[3:]).chosen.values == {"name": "d"}  # neither is finished
    without = SimpleNamespace(evaluations=[main], result={"x": None}, finished_result=lambda: {"x": None})
    one_value = Trial({"name": "one"}, [without, without, measured(10 if not lower else 0)])
    even = Trial({"name": "even"}, [measured(each) for each in (4, 5, 6)])
    assert Results(None, None, [one_value, even]).chosen.values == {"name": "even"}


def test_scores_follow_from_sums_over_parts(tmp_path):
    masked, classes, values = MaskedWords(), Classes(), Values()
    lines = [["2.0", "3", "1"], ["1.0", "1", "1"]]
    sums = [sum(column) for column in zip(*map(masked.count, lines), strict=True)]
    assert masked.score(np.array(sums)) == pytest.approx(3 / 4 / np.log(2))
    right = np.array([classes.count(line) for line in (["a", "a"], ["a", "b"], ["b", "b"])]).sum(axis=0)
    assert classes.score(right) == pytest.approx(200 / 3)
    found = values.statistics(predictions(tmp_path, "0.1\t1", "0.4\t0", "0.5\t3", "0.9\t2"))
    correlation = 100 * np.corrcoef([0.1, 0.4, 0.5, 0.9], [1, 0, 3, 2])[0, 1]
    assert values.score(found.sum(axis=0)) == pytest.approx(correlation)
    narrow = [f"{2.5 + 1e-7 * number!r}\t{target}" for number, target in ((1, 1), (4, 0), (5, 3), (9, 2))]
    found = values.statistics(predictions(tmp_path, *narrow))
    assert values.score(found.sum(axis=0)) == pytest.approx(correlation, rel=1e-6)
    found = values.statistics(predictions(tmp_path, "0.7\t1", "0.7\t2", "0.7\t4"))
    assert np.isnan(values.score(found.sum(axis=0)))
    empty = masked.statistics(predictions(tmp_path, "2.0\t3\t1", "0.0\t0\t0", "1.0\t1\t1"))
    assert empty.tolist() == [[2, 3], [1, 1]]


def predictions(folder, *lines, **found):
    """Return a measurement whose predictions are these lines, and whose result has the values `found`."""
    (folder / "x.predictions.tsv").write_text("".join(f"{line}\n" for line in ("heads", *lines)))
    result = {"data": ["same"], **found}
    return SimpleNamespace(path=lambda name: str(folder / f"x.{name}"), finished_result=lambda: result)


@pytest.mark.parametrize(
    ("evaluation", "digest", "before", "now", "parts", "difference"),
    [
        (
            MaskedWords(),
            "words",
            ("2.0\t4\t1", "1.0\t1\t1", "0.0\t0\t0", "3.0\t3\t0"),
            ("1.0\t4\t2", "2.0\t1\t0", "0.0\t0\t0", "1.0\t3\t2"),
            ([[2, 4], [1, 1], [3, 3]], [[1, 4], [2, 1], [1, 3]]),
            (4 - 6) / 8 / np.log(2),  # in bits
        ),
        (
            Classes(),
            "inputs",
            ("a\ta", "b\ta", "a\tb", "b\tb"),
            ("a\ta", "a\ta", "b\tb", "a\tb"),
            ([[1, 1], [0, 1], [0, 1], [1, 1]], [[1, 1], [1, 1], [1, 1], [0, 1]]),
            100 * (3 - 2) / 4,
        ),
    ],
)
def test_the_difference_of_two_models_has_the_p_of_its_parts(
    tmp_path, evaluation, digest, before, now, parts, difference
):
    (tmp_path / "before").mkdir(), (tmp_path / "now").mkdir()
    baseline = predictions(tmp_path / "before", *before, **{digest: "a"})
    ours = predictions(tmp_path / "now", *now, **{digest: "a"})
    found, p_value = evaluation.compare(ours, baseline, 50)
    assert found == pytest.approx(difference)
    assert p_value == bootstrap_p(*map(np.array, parts), evaluation.score, 50) < 1


def test_only_models_of_the_same_masked_words_of_the_same_data_are_compared(tmp_path):
    first = predictions(tmp_path, "2.0\t3\t1", "1.0\t1\t1", words="a")
    assert MaskedWords().compare(first, first, 50) == (0, 1)
    for number, other in enumerate(({"words": "b"}, {"words": "a", "data": ["other"]}, {})):
        (tmp_path / str(number)).mkdir()
        second = predictions(tmp_path / str(number), "2.0\t3\t1", "1.0\t1\t1", **other)
        assert MaskedWords().compare(first, second, 50) is None


def test_only_models_that_predicted_the_same_inputs_are_compared(tmp_path):
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    lines = ("0.5\t1", "0.7\t2", "0.1\t3")
    first = predictions(tmp_path / "a", *lines, inputs="a")
    assert Values().compare(first, first, 50) == (0, 1)
    for digest, found in (("b", lines), ("b", lines[:2])):
        assert Values().compare(first, predictions(tmp_path / "b", *found, inputs=digest), 50) is None


def test_a_prediction_is_made_with_the_options_of_the_training_and_the_overrides(tmp_path):
    words = ("--task", "masked_lm", "--max-tokens", "77", "--skip-invalid-size-inputs-valid-test")
    corpus = Corpus(str(tmp_path))
    run = SimpleNamespace(
        words=words, corpus=corpus, checkpoint="best.pt", name="row", path=str, plugin_option=[]
    )
    measurement = Measurement(
        run, (MaskedWords(),), "test", (("mae_inference", "uniform"), ("no_residual", True))
    )
    command = MaskedWords().command(measurement)
    assert command[command.index("--max-tokens") + 1] == "77"
    assert "--skip-invalid-size-inputs-valid-test" in command
    overrides = read_overrides(command[command.index("--model-overrides") + 1], "")
    assert overrides == {"mae_inference": "uniform", "no_residual": True}
    with pytest.raises(UsageError, match="test.idx does not exist, so row cannot be evaluated on test"):
        MaskedWords().check(measurement)
    (tmp_path / "test.idx").touch()
    MaskedWords().check(measurement)
    with pytest.raises(UsageError, match="/label/test.idx does not exist"):
        (tmp_path / "input0").mkdir()
        (tmp_path / "input0/test.idx").touch()
        run.corpus = corpus._replace(folders=("input0", "label"))
        MaskedWords().check(measurement)


def test_a_model_without_a_score_is_not_compared(tmp_path):
    """A model that predicts one value for all inputs has no correlation."""
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    pairs = np.random.default_rng(1).normal(size=(2, 20, 2))
    varied, other = (
        predictions(tmp_path / name, *(f"{x}\t{y}" for x, y in each))
        for name, each in zip("ab", pairs, strict=True)
    )
    difference, p_value = Values().compare(varied, other, 50)
    correlations = [100 * np.corrcoef(each.T)[0, 1] for each in pairs]
    assert difference == pytest.approx(correlations[0] - correlations[1])
    sums = [Values().statistics(each) for each in (other, varied)]
    assert p_value == bootstrap_p(*sums, Values().score, 50) < 1
    assert Values().interval([[Pair(other, varied, 0.0)]] * 2) is not None
    constant = predictions(tmp_path, *(f"0.5\t{number}" for number in range(20)))
    assert Values().compare(constant, varied, 50) is None
    assert Values().interval([[Pair(varied, constant, 0.0)]] * 2) is None
