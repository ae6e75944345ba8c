"""Test that `modular-fairseq table` trains, resumes, fine-tunes and scores rows through the real commands.

They also read the table that results.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from statistics import mean, stdev

import pytest
import sacrebleu
import yaml
from sacrebleu.metrics import BLEU
from scipy.stats import ttest_ind

from modular_fairseq.runs.papers.table import read_table
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.files import only_one
from modular_fairseq_cli.scoring import paired_bootstrap
from modular_fairseq_cli.scoring.intervals import MARKED, of_scores
from tests.places import ROOT
from tests.refusals import refusal
from tests.table_folders import (
    REFERENCES,
    call,
    command,
    translation,
    write_configs,
    write_result,
)
from tests.trained_tables import cells


def parameters(weights):
    """Return the number of parameters, and how many of them belong to gates."""
    buffers = ("running_mean", "running_var", "num_batches_tracked", "version", "_float_tensor")
    sizes = {name: value.numel() for name, value in weights.items() if not name.endswith(buffers)}
    return sum(sizes.values()), sum(size for name, size in sizes.items() if ".gate." in name)


def test_each_result_is_reported_with_the_number_of_its_run(finished_table):
    found = re.findall(r"\[(\S+) of (\d+)\] (\S+): (\w+) BLEU [\d.]+$", finished_table.stderr, re.MULTILINE)
    assert sorted((number, name) for number, _, name, _ in found) == [
        *(("1", "mine/plain/seed-1"), ("2", "mine/experts/seed-1"), ("2", "mine/experts/seed-1")),
        *(("3", "mine/gates/seed-1"), ("4", "mine/untuned/seed-1")),
    ]
    assert {total for _, total, _, _ in found} == {"4"}


def test_all_rows_are_trained_translated_and_shown(table_folder, finished_table):
    runs = table_folder / "results/paper/mine"
    bleu = {}
    for row, file in (
        ("plain", "test"),
        ("experts", "test"),
        ("experts", "test-specialised"),
        ("gates", "valid"),
        ("untuned", "valid"),
    ):
        folder = runs / row / "seed-1"
        lines = (folder / f"{file}.out").read_text().splitlines()
        hypotheses = [line.split("\t") for line in lines if line.startswith("H-")]
        hypotheses = [words for _, _, words in sorted(hypotheses, key=lambda parts: int(parts[0][2:]))]
        references = (
            (table_folder / f"data/toy.de-en/raw/{file.partition('-')[0]}.en").read_text().splitlines()
        )
        bleu[row, file] = sacrebleu.corpus_bleu(hypotheses, [references]).score
        assert json.loads((folder / f"{file}.json").read_text())["bleu"] == bleu[row, file]
    last = {
        row: load_checkpoint(runs / row / "seed-1" / "checkpoint_last.pt") for row in ("plain", "experts")
    }
    (plain_size, _), (experts_size, gates_size) = (parameters(state["model"]) for state in last.values())
    updates = last["plain"]["optimizer_history"][-1]["num_updates"]
    plain, experts = cells(finished_table.stdout, "Plain"), cells(finished_table.stdout, "Experts")
    assert plain[1:5] == [
        f"{bleu['plain', 'test']:.2f}",
        f"{plain_size:,}",
        f"{plain_size:,}",
        str(updates),
    ] and plain[-2:] == [
        "31.2",
        "1M",
    ]
    assert experts[1] == f"{bleu['experts', 'test']:.2f}" and experts[2] == experts[3] == f"{experts_size:,}"
    assert 0 < gates_size == experts_size - plain_size
    log = (runs / "plain/seed-1/train.log").read_text()
    validated = [float(value) for value in re.findall(r'"valid_ppl": "([\d.]+)"', log)]
    assert (
        json.loads((runs / "plain/seed-1/training.json").read_text())["valid_perplexity"]
        == min(validated)
        < max(validated)
    )
    assert experts[5].startswith(f"{bleu['experts', 'test'] - bleu['plain', 'test']:+.2f} (")
    apart = bleu["experts", "test-specialised"] - bleu["experts", "test"]
    assert cells(finished_table.stdout, "specialised")[5].startswith(f"{apart:+.2f} (")
    assert cells(finished_table.stdout, "untuned")[1:] == [
        f"{bleu['untuned', 'valid']:.2f}",
        f"{experts_size:,}",
        "0",
        "0",
    ]
    assert cells(finished_table.stdout, "gates")[2:4] == [f"{experts_size:,}", f"{gates_size:,}"]
    assert cells(finished_table.stdout, "Somebody's") == ["Somebody's", "30.1"]
    for kind in ("txt", "tsv", "md"):
        assert (runs / f"table.{kind}").read_text()
    assert (runs / "table.txt").read_text() == finished_table.stdout
    assert "nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp" in finished_table.stdout


def test_fine_tuning_starts_from_the_other_row_and_changes_what_it_may(table_folder, finished_table):
    runs = table_folder / "results/paper/mine"
    before = load_checkpoint(runs / "experts/seed-1/averaged.pt")["model"]
    after = load_checkpoint(runs / "gates/seed-1/checkpoint_best.pt")["model"]
    changed = {name for name in before if not before[name].equal(after[name])}
    assert changed and all(".gate." in name for name in changed)
    assert not list((runs / "untuned/seed-1").glob("*.pt"))


def test_hydra_trains_the_same_row_to_the_same_weights(table_folder, finished_table, tmp_path):
    program = [
        sys.executable,
        "-m",
        "fairseq_cli.hydra_train",
        "--config-dir",
        table_folder / "configs/mine",
        "--config-name",
        "experts",
    ]
    values = {
        "common.user_dir": ROOT / "modular_fairseq",
        "task.data": table_folder / "data/toy.de-en/bin",
        "checkpoint.save_dir": tmp_path / "run",
    }
    words = [
        *program,
        *(f"{key}={value}" for key, value in {**values, "hydra.run.dir": tmp_path / "hydra"}.items()),
    ]
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    ours = load_checkpoint(table_folder / "results/paper/mine/experts/seed-1/checkpoint_last.pt")["model"]
    theirs = load_checkpoint(tmp_path / "run/checkpoint_last.pt")["model"]
    assert ours.keys() == theirs.keys() and all(ours[name].equal(theirs[name]) for name in ours)


def test_done_is_done_and_the_table_needs_no_data(table_folder, finished_table):
    again = call(table_folder, "--run")
    assert (
        again.returncode == 0
        and again.stdout == finished_table.stdout
        and "fairseq-train" not in again.stderr
    )
    results_only = subprocess.run(
        [*command(table_folder), "--data", "nowhere"], capture_output=True, text=True
    )
    assert results_only.returncode == 0 and results_only.stdout == finished_table.stdout


def test_dry_run_shows_the_commands_that_are_run(table_folder, finished_table):
    shown = call(table_folder, "--dry-run", out="elsewhere")
    assert shown.returncode == 0 and not (table_folder / "elsewhere").exists()
    ran = [
        line[2:]
        for pattern in ("train.log", "average.log", "*.out")
        for log in (table_folder / "results/paper/mine").glob(f"*/seed-1/{pattern}")
        for line in log.read_text().splitlines()
        if line.startswith("$ ")
    ]
    assert len(ran) == 3 + 2 + 5
    for line in ran:
        assert line.replace("/results/", "/elsewhere/") in shown.stdout.replace(" >", "\n").splitlines()
    assert len(re.findall("^fairseq-train", shown.stdout, re.MULTILINE)) == 3
    assert len(re.findall("^fairseq-generate", shown.stdout, re.MULTILINE)) == 5
    assert (
        "--finetune-from-model " + str(table_folder / "elsewhere/paper/mine/experts/seed-1/averaged.pt")
        in shown.stdout
    )


def refused(place, *args):
    return refusal(cli.main, command(place, *args)[3:])


def test_missing_corpora_and_results(table_copy):
    assert "missing for seeds 2; add --run" in refused(table_copy, "--seeds", "2")
    shutil.rmtree(table_copy / "results/paper/mine/plain")
    assert "plain missing for seeds 1" in refused(table_copy, "--only", "plain")
    sentence = refused(table_copy, "--run", "--pretrained", "no.pt")
    assert sentence.endswith("--pretrained no.pt is no file; give a checkpoint")
    (table_copy / "data/toy.de-en/raw/test.en").unlink()
    assert "raw/test.en is missing; it must hold the untokenised references" in refused(table_copy, "--run")
    assert not (table_copy / "results/paper/mine/plain").exists()
    shutil.rmtree(table_copy / "data/toy.de-en/bin")
    assert "toy.de-en/bin/dict.de.txt, which" in refused(table_copy, "--run")


def test_runs_of_another_config_are_refused_and_left_alone(table_copy):
    write_configs(table_copy / "configs/mine", optimization={"max_epoch": 5})
    before = (table_copy / "results/paper/mine/plain/seed-1/settings.json").read_text()
    for run in (["--run"], []):
        assert "holds a run with optimization.max_epoch 4 (now 5)" in refused(table_copy, *run)
    assert (table_copy / "results/paper/mine/plain/seed-1/settings.json").read_text() == before
    write_configs(table_copy / "configs/mine")
    assert "holds a run with options none (now --fp16)" in refused(table_copy, "--run", "--", "--fp16")
    for words, sentence in {
        ("--fp16", "--seed", "3"): "--seed cannot be given after the --, because the table sets it",
        ("--valid-subset", "test"): "--valid-subset cannot be given after the --",
        ("--reset-optimizer",): "--reset-optimizer cannot be given after the --",
        ("fp16",): "fp16: after the -- come options of fairseq-train, such as --fp16",
        ("--fp61",): "fairseq-train refuses its options: unrecognized arguments: --fp61",
    }.items():
        assert sentence in refused(table_copy, "--run", "--", *words)
    (table_copy / "results/paper/mine/plain/seed-1/settings.json").unlink()
    assert "holds an unknown run" in refused(table_copy, "--run")


def test_a_row_may_have_the_mechanism_of_a_plugin(table_copy):
    mine, plugin = table_copy / "configs/mine", ROOT / "examples/distance"
    row = yaml.safe_load((mine / "plain.yaml").read_text())
    row["model"] |= {"attention_type": "distance", "distance_slope": 0.25}
    (mine / "distance.yaml").write_text(yaml.safe_dump(row))
    columns, rows = ["bleu", "LR_divergence_encoder"], [{"name": "distance", "label": "With distance"}]
    table = {"title": "A table", "columns": columns, "rows": rows}
    (mine / "table.yaml").write_text(yaml.safe_dump(table))
    assert "distance_slope is no option of fairseq or of this plugin" in refused(table_copy, "--run")
    shown = call(table_copy, "--user-dir", plugin, "--dry-run").stdout
    assert shown.count(f"--user-dir {plugin}") == 3  # fairseq-train, fairseq-generate and analyze
    done = call(table_copy, "--user-dir", plugin, "--run")
    assert done.returncode == 0, done.stderr
    run = table_copy / "results/paper/mine/distance/seed-1"
    assert load_checkpoint(run / "averaged.pt")["model"]["encoder.layers.0.self_attn.mask.slope"].numel() == 4
    assert json.loads((run / "settings.json").read_text())["plugin"] == "distance"
    assert "With distance" in done.stdout


def test_other_decoding_is_translated_anew_without_training(table_copy):
    write_configs(table_copy / "configs/mine", generation={"beam": 1})
    assert call(table_copy, "--only", "plain").returncode != 0
    done = call(table_copy, "--run", "--only", "plain")
    assert done.returncode == 0 and "fairseq-generate" in done.stderr and "fairseq-train" not in done.stderr
    assert "--beam 1" in (table_copy / "results/paper/mine/plain/seed-1/test.out").read_text()


def test_damaged_results_are_named(table_copy):
    run = table_copy / "results/paper/mine/plain/seed-1"
    (run / "test.json").write_text("{}")
    assert "plain missing" in refused(table_copy, "--only", "plain")
    (run / "test.json").write_text("{")
    assert "test.json: cannot be read" in refused(table_copy, "--only", "plain")
    (run / "test.json").write_text("{}")
    (run / "training.json").unlink()
    (run / "train.log").unlink()
    assert "train.log does not show the number of parameters" in refused(
        table_copy, "--run", "--only", "plain"
    )


def test_a_translation_of_another_test_set_does_not_count(table_copy):
    with open(table_copy / "data/toy.de-en/raw/test.en", "a") as file:
        file.write("one sentence more\n")
    assert "plain missing" in refused(table_copy, "--only", "plain")


def test_a_dictionary_of_another_run_is_refused(table_copy):
    shutil.rmtree(table_copy / "results/paper/mine/gates")
    with open(table_copy / "data/toy.de-en/bin/dict.en.txt", "a") as file:
        file.write("word 1\n")
    for row in ("plain", "experts"):  # as if they had been trained on another copy
        assert "dictionary en" in refused(table_copy, "--run", "--only", row)
    values = yaml.safe_load((table_copy / "configs/mine/gates.yaml").read_text())
    values["task"]["data"] = "other/bin"
    (table_copy / "configs/mine/gates.yaml").write_text(yaml.safe_dump(values))
    shutil.copytree(table_copy / "data/toy.de-en", table_copy / "data/other")
    shutil.copy(table_copy / "data/other/bin/dict.de.txt", table_copy / "data/toy.de-en/bin/dict.en.txt")
    sentence = refused(table_copy, "--run", "--only", "gates")
    assert "differs from the dictionary of" in sentence and "--like" in sentence


def test_a_failed_run_is_named_and_the_others_are_finished(table_copy):
    shutil.rmtree(table_copy / "results/paper/mine/plain")
    shutil.rmtree(table_copy / "results/paper/mine/untuned")
    values = yaml.safe_load((table_copy / "configs/mine/plain.yaml").read_text())
    values["dataset"]["train_subset"] = "trian"
    (table_copy / "configs/mine/plain.yaml").write_text(yaml.safe_dump(values))
    done = call(table_copy, "--run")
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "modular-fairseq table: error: mine/plain/seed-1: fairseq-train failed with status 1"
    )
    assert last.count("mine/plain/seed-1: ") == 1  # the sentence names the run once
    assert cells(done.stdout, "Plain")[1] == "missing" and cells(done.stdout, "untuned")[1] != "missing"


@pytest.fixture
def results_only(tmp_path):
    (tmp_path / "configs/mine").mkdir(parents=True)
    write_configs(tmp_path / "configs/mine")
    return tmp_path


def test_a_try_that_never_trained_leaves_no_trace(table_copy):
    """A wrong option ends fairseq-train before its first update.

    After the correction the same folder is used, and nothing of the first log counts.
    """
    run = table_copy / "results/paper/mine/plain/seed-1"
    shutil.rmtree(table_copy / "results")
    assert call(table_copy, "--run", "--only", "plain", "--", "--train-subset", "trian").returncode == 1
    assert (run / "settings.json").exists() and "trian" in (run / "train.log").read_text()
    assert call(table_copy, "--run", "--only", "plain").returncode == 0
    assert (
        "trian" not in (run / "train.log").read_text() and "trian" not in (run / "settings.json").read_text()
    )


def interval(by_seed):
    """Return the interval of the difference in BLEU.

    Args:
        by_seed: for each seed the numbers of wrong lines of the baseline and of the row.
    """
    metric = BLEU(references=[REFERENCES])
    return of_scores(metric, [[tuple(map(translation, pair)) for pair in pairs] for pairs in by_seed])


def test_an_interval_of_seeds_that_agree_by_chance_is_marked(results_only, capsys):
    for name, wrong in (("plain", (1, 11)), ("experts", (5, 13))):
        for seed, spoilt in enumerate(wrong, 1):
            write_result(results_only, name, seed, spoilt)
    refused(results_only, "--seeds", "1,2", "--samples", "50")
    shown, found = capsys.readouterr().out, interval([[(1, 5)], [(11, 13)]])
    limits = f"{found.difference:+.2f} [{found.low:+.2f}, {found.high:+.2f}]†"
    assert cells(shown, "Experts")[5].startswith(limits) and MARKED in shown


def test_the_table_computes_its_numbers_over_seeds_from_result_files(results_only, capsys):
    """The table computes means, sample deviations, differences seed by seed and the largest p from result
    files alone.
    """
    plain = [write_result(results_only, "plain", seed, spoilt) for seed, spoilt in ((1, 9), (2, 12))]
    experts = [write_result(results_only, "experts", seed, spoilt) for seed, spoilt in ((1, 6), (2, 10))]
    assert "missing for seeds 1,2" in refused(results_only, "--seeds", "1,2", "--samples", "50")
    shown = capsys.readouterr().out
    apart = [ours - base for ours, base in zip(experts, plain, strict=True)]
    assert cells(shown, "Plain")[1:5] == [f"{mean(plain):.2f} ± {stdev(plain):.2f}", "7", "7", "15 ± 7"]
    welch = ttest_ind(experts, plain, equal_var=False).pvalue
    tests = [
        paired_bootstrap([REFERENCES], translation(base), [translation(ours)], 50)[0]["bleu"]["p_value"]
        for base, ours in ((9, 6), (12, 10))
    ]
    largest = max(tests)
    assert min(tests) < largest < 1
    found = interval([[(9, 6)], [(12, 10)]])
    of_difference = f"{mean(apart):+.2f} [{found.low:+.2f}, {found.high:+.2f}]"
    assert MARKED not in shown
    assert cells(shown, "Experts")[5] == f"{of_difference} ({found.p_value:.3f}; {largest:.3f}; {welch:.3f})"
    lines = [
        line.split("\t") for line in (results_only / "results/paper/mine/table.tsv").read_text().splitlines()
    ]
    line = dict(zip(lines[0], next(line for line in lines if line[0] == "experts"), strict=True))
    assert (
        float(line["bleu"]) == mean(experts)
        and float(line["bleu_std"]) == stdev(experts)
        and line["measurements"] == "2"
    )
    assert float(line["difference"]) == pytest.approx(mean(apart), abs=1e-12)
    assert float(line["p"]) == pytest.approx(largest)
    names = ("difference_low", "difference_high", "interval_p", "half_by_sentences")
    limits = [float(line[name]) for name in names]
    assert limits == pytest.approx([*found[1:4], found.half_by_sentences]) and limits[3] > 0
    assert "[95 % interval over seeds and sentences]. In parentheses are the p of the interval" in shown


def test_several_draws_of_a_seed_are_compared_with_its_one_baseline(results_only, capsys):
    table = yaml.safe_load((results_only / "configs/mine/table.yaml").read_text())
    table["rows"][3]["overrides"] = [
        {"mae_inference": "random", "mae_inference_seed": draw} for draw in (1, 2, 3)
    ]
    (results_only / "configs/mine/table.yaml").write_text(yaml.safe_dump(table))
    base = {seed: write_result(results_only, "experts", seed, spoilt) for seed, spoilt in ((1, 10), (2, 20))}
    drawn = {}
    for seed in (1, 2):
        for draw in (1, 2, 3):
            overrides = [("mae_inference", "random"), ("mae_inference_seed", draw)]
            drawn[seed, draw] = write_result(
                results_only, "experts", seed, 4 * draw + seed, f"test-random-{draw}", overrides
            )
    refused(results_only, "--seeds", "1,2")
    shown = cells(capsys.readouterr().out, "specialised")
    apart = [bleu - base[seed] for (seed, _), bleu in drawn.items()]
    found = interval(
        [[(spoilt, 4 * draw + seed) for draw in (1, 2, 3)] for seed, spoilt in ((1, 10), (2, 20))]
    )
    by_seed = [mean(drawn[seed, draw] for draw in (1, 2, 3)) for seed in (1, 2)]
    assert shown[1] == f"{mean(by_seed):.2f} ± {stdev(by_seed):.2f}" and shown[5].startswith(
        f"{mean(apart):+.2f} [{found.low:+.2f}, {found.high:+.2f}] ("
    )
    welch = ttest_ind(by_seed, list(base.values()), equal_var=False).pvalue
    assert shown[5].endswith(f"; {welch:.3f})")  # draws are no seeds


def test_a_baseline_of_several_draws_is_compared_with_all_of_them(results_only, capsys):
    table = yaml.safe_load((results_only / "configs/mine/table.yaml").read_text())
    draws = [{"mae_inference": "random", "mae_inference_seed": draw} for draw in (1, 2)]
    table["rows"][3] |= {"overrides": draws, "baseline": ""}
    table["rows"][2]["baseline"] = "specialised"
    (results_only / "configs/mine/table.yaml").write_text(yaml.safe_dump(table))
    ours = write_result(results_only, "experts", 1, 2)
    drawn = []
    for draw in (1, 2):
        overrides = [("mae_inference", "random"), ("mae_inference_seed", draw)]
        drawn.append(write_result(results_only, "experts", 1, 6 * draw, f"test-random-{draw}", overrides))
    refused(results_only)
    shown = cells(capsys.readouterr().out, "Experts")
    assert shown[5].startswith(f"{ours - mean(drawn):+.2f} ± ")


def test_a_single_model_as_baseline_of_several_draws_is_compared_with_every_seed(results_only, capsys):
    table = yaml.safe_load((results_only / "configs/mine/table.yaml").read_text())
    draws = [{"mae_inference": "random", "mae_inference_seed": draw} for draw in (1, 2)]
    table["rows"][4] |= {"subset": "test", "baseline": "drawn"}
    table["rows"].append({**table["rows"][5], "name": "drawn", "config": "untuned.yaml", "subset": "test"})
    table["rows"][6]["overrides"] = draws
    (results_only / "configs/mine/table.yaml").write_text(yaml.safe_dump(table))
    base = []
    for draw in (1, 2):
        overrides = [("mae_inference", "random"), ("mae_inference_seed", draw)]
        base.append(write_result(results_only, "untuned", 1, 9 * draw, f"test-random-{draw}", overrides))
    ours = [write_result(results_only, "gates", seed, seed) for seed in (1, 2, 3)]
    refused(results_only, "--seeds", "1,2,3")
    shown = capsys.readouterr().out
    assert cells(shown, "gates")[5].startswith(f"{mean(ours) - mean(base):+.2f} [")
    assert "There is one model of the row drawn." in shown


def test_measurements_with_the_same_files_are_refused(results_only):
    table = yaml.safe_load((results_only / "configs/mine/table.yaml").read_text())
    path = results_only / "configs/mine/table.yaml"
    other = {**table["rows"][3], "name": "other", "overrides": {"dropout": 0.2}}
    equal = {**other, "name": "equal", "overrides": {"attention_dropout": 0.2}}
    path.write_text(yaml.safe_dump({**table, "rows": [*table["rows"], equal, other]}))
    sentence = refused(results_only)
    assert "rows equal and other measure the same training" in sentence
    assert "would be called test-0.2; give one of the rows a copy of its file" in sentence
    yes = [
        {**other, "name": name, "overrides": {name: True}} for name in ("tim_no_competition", "stream_skip")
    ]
    path.write_text(yaml.safe_dump({**table, "rows": [*table["rows"], *yes]}))
    assert "missing for seeds 1" in refused(results_only)


def test_a_single_model_is_compared_with_every_seed_of_its_baseline(results_only, capsys):
    path = results_only / "configs/mine/table.yaml"
    table = yaml.safe_load(path.read_text())
    table["rows"][5] |= {"baseline": "gates", "subset": "test"}
    table["rows"][4] |= {"subset": "test", "baseline": ""}
    path.write_text(yaml.safe_dump(table))
    base = [write_result(results_only, "gates", seed, 3 * seed) for seed in (1, 2, 3)]
    ours = write_result(results_only, "untuned", 1, 5)
    refused(results_only, "--seeds", "1,2,3")
    assert cells(capsys.readouterr().out, "untuned")[5].startswith(f"{ours - mean(base):+.2f} [")


def test_a_model_that_is_not_trained_is_not_taken_for_the_trained_one_of_another_table(results_only):
    other = results_only / "configs/other"
    other.mkdir()
    rows = [{"name": "noft", "label": "not tuned", "config": "../mine/gates.yaml", "pretrained": True}]
    other = other / "table.yaml"
    other.write_text(yaml.safe_dump({"title": "Other", "columns": ["bleu", "updates"], "rows": rows}))
    write_result(results_only, "gates", 1, 5)
    words = ["table", other, "--out", results_only / "results", "--data", results_only / "data"]
    with pytest.raises(
        SystemExit, match=r"gates/seed-1/ has a model that was trained, and this row's is not"
    ):
        cli.main([*map(str, words)])


def test_rows_that_train_differently_in_one_folder_are_refused(results_only):
    path = results_only / "configs/mine/table.yaml"
    table = yaml.safe_load(path.read_text())
    (results_only / "old/mine").mkdir(parents=True)
    values = yaml.safe_load((results_only / "configs/mine/plain.yaml").read_text())
    values["optimization"]["lr"] = [0.001]
    (results_only / "old/mine/plain.yaml").write_text(yaml.safe_dump(values))
    table["rows"].append({"name": "old", "label": "old", "config": "../../old/mine/plain.yaml"})
    path.write_text(yaml.safe_dump(table))
    said = refused(results_only)
    assert re.search(r"rows plain and old train differently in one folder, \S+/mine/plain/seed-1; give", said)


def test_values_are_not_searched_without_a_column_that_is_measured(results_only):
    path = results_only / "configs/mine/table.yaml"
    table = yaml.safe_load(path.read_text()) | {"columns": ["valid_perplexity", "parameters"]}
    table["rows"] = [{"name": "plain", "label": "Plain", "subset": "valid"}]
    path.write_text(yaml.safe_dump(table | {"search": {"optimization.lr": [[0.001], [0.005]]}}))
    assert "search chooses values by the first column that is measured, such as bleu, and the" in refused(
        results_only
    )


@pytest.mark.parametrize("option", ["--out", "--data"])
def test_folders_that_fairseq_cannot_read_are_refused(results_only, option):
    said = refused(results_only, option, "x:y")
    assert re.search(rf"{option} x:y: fairseq cannot read \w+ from a folder with", said)


def test_a_table_of_another_name_has_a_folder_of_its_own(results_only):
    path = results_only / "configs/mine/table.yaml"
    assert read_table(path).name == "mine"
    shutil.copy(path, path.with_name("short.yaml"))
    assert read_table(path.with_name("short.yaml")).name == "mine-short"


def test_a_single_model_as_baseline_is_named_below_the_table(results_only, capsys):
    for seed in (1, 2):
        write_result(results_only, "plain", seed, 9 + seed)
    refused(results_only, "--seeds", "1,2")
    note = "There is one model of the row untuned. Intervals of differences from it account for the training"
    assert note in capsys.readouterr().out
    refused(results_only)
    assert "There is one model" not in capsys.readouterr().out


def test_a_row_of_which_a_seed_is_missing_shows_what_there_is(results_only, capsys):
    bleu = write_result(results_only, "plain", 1, 9)
    assert "plain, experts" in refused(results_only, "--seeds", "1,2")
    shown = capsys.readouterr().out
    assert cells(shown, "Plain")[1] == f"{bleu:.2f} (1 of 2)" and cells(shown, "Experts") == [
        "Experts",
        "missing",
    ]
    assert "plain\tPlain\t1\t" in (results_only / "results/paper/mine/table.tsv").read_text()


def test_translations_of_other_references_are_not_compared(results_only):
    write_result(results_only, "plain", 1, 9)
    write_result(results_only, "experts", 1, 5)
    other = results_only / "results/paper/mine/experts/seed-1/test.ref.en"
    other.write_text(other.read_text().upper())
    assert "differ, so the rows cannot be compared" in refused(results_only)


def test_a_row_of_another_corpus_is_shown_without_a_difference(results_only, capsys):
    values = yaml.safe_load((results_only / "configs/mine/experts.yaml").read_text())
    values["task"]["data"] = "other.de-en/bin"
    (results_only / "configs/mine/experts.yaml").write_text(yaml.safe_dump(values))
    write_result(results_only, "plain", 1, 9)
    bleu = write_result(results_only, "experts", 1, 5)
    other = results_only / "results/paper/mine/experts/seed-1/test.ref.en"
    other.write_text(other.read_text().upper())
    refused(results_only)
    assert cells(capsys.readouterr().out, "Experts") == ["Experts", f"{bleu:.2f}", "7", "7", "10"]


def test_scores_of_another_checkpoint_do_not_count(results_only):
    write_result(results_only, "plain", 1, 9)
    training = results_only / "results/paper/mine/plain/seed-1/training.json"
    training.write_text(training.read_text().replace('"c"', '"d"'))
    assert "plain missing for seeds 1" in refused(results_only, "--only", "plain")


def test_nothing_is_written_where_there_is_nothing(results_only):
    refused(results_only)
    assert not (results_only / "results").exists()


def test_a_lock_ends_with_its_block_whatever_was_forked_meanwhile(tmp_path):
    with only_one(str(tmp_path)):
        child = os.fork()
        if child == 0:
            time.sleep(20)
            os._exit(0)
    try:
        with only_one(str(tmp_path)):
            pass
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def test_rows_get_their_baselines_overrides_configs_and_subsets(tmp_path):
    write_configs(tmp_path)
    table = read_table(tmp_path / "table.yaml")
    rows = {row.name: row for row in table.rows if row.name}
    assert (
        rows["specialised"].baseline == "experts"
        and rows["experts"].baseline == "plain"
        and rows["untuned"].baseline == ""
    )
    assert rows["specialised"].overrides == [{"mae_inference": "specialised"}] and rows[
        "plain"
    ].overrides == [{}]
    assert (
        rows["specialised"].config == os.path.join(tmp_path, "experts.yaml")
        and rows["gates"].subset == "valid"
    )
