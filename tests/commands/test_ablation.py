"""Tests of `modular-fairseq ablate`.

They check the paper's protocol and table, what the command refuses, and runs that are killed, fail or
diverge.
"""

import math
import os
import shutil
import subprocess
import sys
from argparse import Namespace
from itertools import combinations

import pytest

from modular_fairseq.runs import run as engine
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evaluations.perplexity import validate_command
from modular_fairseq.runs.greedy.protocol import iterations, models, read_switches
from modular_fairseq.runs.greedy.settings import (
    choose_settings,
    content_of,
    default_switches,
    read_settings,
    write_settings,
)
from modular_fairseq.runs.greedy.table import over_seeds, rows, sheet
from modular_fairseq.runs.greedy.trial import Trial
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one
from modular_fairseq_cli.processes import call
from tests.ablations import (
    BASE,
    SWITCHES,
    TWO,
    TWO_YAML,
    ablate,
    ablation,
    checkpoints,
    fairseq,
    result,
    settle,
    words,
)
from tests.places import ROOT
from tests.processes import has_ended
from tests.refusals import refusal

RESIDUAL, ATTENTION, HIDDEN, HEADS = NAMES = [mechanism.name for mechanism in SWITCHES]
PAPER = {  # table 1
    (): 708.29,
    (RESIDUAL,): 10.46,
    (ATTENTION,): 655.21,
    (HIDDEN,): 703.24,
    (HEADS,): 680.18,
    (RESIDUAL, ATTENTION): 10.91,
    (RESIDUAL, HIDDEN): 10.78,
    (RESIDUAL, HEADS): 7.88,
    (RESIDUAL, HEADS, ATTENTION): 8.06,
    (RESIDUAL, HEADS, HIDDEN): 8.62,
    (RESIDUAL, HEADS, ATTENTION, HIDDEN): 8.75,
}


def refused(*args):
    return refusal(ablate, *args)


def test_the_protocol_is_the_papers():
    found = list(iterations(NAMES, lambda model: PAPER[model]))
    assert [base for base, _ in found] == [(), (RESIDUAL,), (RESIDUAL, HEADS), (RESIDUAL, HEADS, ATTENTION)]
    assert [len(candidates) for _, candidates in found] == [4, 3, 2, 1]
    trained = list(models(NAMES, lambda model: PAPER[model]))
    assert len(trained) == 11 and set(trained) == set(PAPER)


def test_the_best_addition_is_kept_even_when_the_model_was_better_without_it():
    *_, (base, candidates) = iterations(NAMES, lambda model: PAPER[model])
    assert PAPER[base] > PAPER[base[:-1]] and candidates == [(*base, HIDDEN)]


def test_an_iteration_is_chosen_when_the_next_is_wanted():
    """The protocol asks for a perplexity only then, so that the models of an iteration can be trained in
    between.
    """
    known, order = {}, []
    for model in models(NAMES, known.get):
        order.append(model)
        known[model] = PAPER[model]
    assert order == list(PAPER)


def test_without_the_perplexity_of_a_candidate_nothing_later_is_known():
    known = {model: value for model, value in PAPER.items() if model != (RESIDUAL, HIDDEN)}
    assert [base for base, _ in iterations(NAMES, known.get)] == [(), (RESIDUAL,)]
    del known[()]  # this perplexity selects nothing
    assert len(list(iterations(NAMES, known.get))) == 2


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_what_is_not_finite_ranks_last(bad):
    perplexity = {
        ("a",): bad,
        ("b",): 1e9,
        ("b", "a"): bad,
        ("b", "c"): math.nan,
        ("c",): 2e9,
        ("b", "a", "c"): 1.0,
    }
    assert [base for base, _ in iterations(["a", "b", "c"], perplexity.get)] == [(), ("b",), ("b", "a")]


def test_of_equals_the_first_is_kept():
    assert [base for base, _ in iterations(["a", "b"], lambda model: 2.0)] == [(), ("a",)]


PAPERS_TABLE = """\
Perplexity, seed 1. Validation, test: best checkpoint, dropout off. Training: last epoch, as logged.

                                  validation (selects)    test  training

baseline                                        708.29  709.29      1.00
  + residual connections                         10.46   11.46      1.00
  + attention dropout                           655.21  656.21      1.00
  + hidden dropout                              703.24  704.24      1.00
  + multihead                                   680.18  681.18      1.00

residual connections                             10.46   11.46      1.00
  + attention dropout                            10.91   11.91      1.00
  + hidden dropout                               10.78   11.78      1.00
  + multihead                                     7.88    8.88      1.00

residual connections + multihead                  7.88    8.88      1.00
  + attention dropout                             8.06    9.06      1.00
  + hidden dropout                                8.62    9.62      1.00

full transformer                                  8.75    9.75      1.00
"""


def test_the_table_is_the_papers_in_three_formats(tmp_path, capsys):
    settle(ablation(tmp_path), {model: result(value, value + 1) for model, value in PAPER.items()})
    ablate("--out", tmp_path, "--table")
    assert capsys.readouterr().out == (tmp_path / "table.txt").read_text() == PAPERS_TABLE

    markdown = (tmp_path / "table.md").read_text().splitlines()
    assert markdown[2:6] == [
        "| model | validation (selects) | test | training |",
        "| --- | ---: | ---: | ---: |",
        "| **baseline** | 708.29 | 709.29 | 1.00 |",
        "| + residual connections | 10.46 | 11.46 | 1.00 |",
    ]
    assert markdown[-1] == "| **full transformer** | 8.75 | 9.75 | 1.00 |" and len(markdown) == 4 + 13

    header, *lines = [line.split("\t") for line in (tmp_path / "table.tsv").read_text().splitlines()]
    assert header == [
        "iteration",
        "model",
        "added",
        "valid",
        "valid_std",
        "test",
        "test_std",
        "train",
        "train_std",
        "diverged",
    ]
    assert lines[0] == ["1", "baseline", "", "708.29", "", "709.29", "", "1.0", "", "0"]
    assert lines[8][:4] == ["2", "residual connections + multihead", "multihead", "7.88"]
    assert [line[0] for line in lines] == ["1"] * 5 + ["2"] * 4 + ["3"] * 3 + ["4"]


def test_of_several_seeds_the_mean_selects_and_is_shown_with_its_deviation(tmp_path, capsys):
    both = {
        (): [9.0, 9.0],
        ("multihead",): [1.0, 8.0],
        ("hidden dropout",): [3.0, 5.0],
        ("multihead", "hidden dropout"): [2.0, 2.0],
    }
    settle(
        ablation(tmp_path, TWO, [1, 2]),
        {model: dict(enumerate(map(result, values), 1)) for model, values in both.items()},
    )
    ablate("--out", tmp_path, "--table")
    title, *lines = words(capsys.readouterr().out)
    assert title.startswith("Perplexity, seeds 1, 2 (mean ± standard deviation).")
    assert (
        "+ hidden dropout 4.00 ± 1.41 4.00 ± 1.41 1.00 ± 0.00" in lines
        and "+ multihead 4.50 ± 4.95 4.50 ± 4.95 1.00 ± 0.00" in lines
    )
    assert (tmp_path / "table.tsv").read_text().splitlines()[2].split("\t")[3:5] == [
        "4.0",
        "1.4142135623730951",
    ]
    ablate("--out", tmp_path, "--table", "--seeds", 1)
    assert "+ multihead 1.00 1.00 1.00" in words(capsys.readouterr().out)


def test_validation_selects_and_not_test(tmp_path):
    hidden, heads = (mechanism.name for mechanism in TWO)
    two = ablation(tmp_path / "out", TWO)
    settle(
        two,
        {
            (): result(9.0),
            (hidden,): result(3.0, test=1.0),
            (heads,): result(2.0, test=8.0),
            (heads, hidden): result(1.5),
        },
    )
    assert [trial.model for trial in two.known()] == [(), (hidden,), (heads,), (heads, hidden)]


def test_every_model_is_trained_with_every_seed_before_one_is_selected(tmp_path):
    two_seeds = ablation(tmp_path, TWO, [1, 2])
    names = [
        "baseline-seed1",
        "baseline-seed2",
        "hidden_dropout-seed1",
        "hidden_dropout-seed2",
        "multihead-seed1",
        "multihead-seed2",
    ]
    settle(
        two_seeds,
        {(): result(9.0), ("hidden dropout",): result(4.0), ("multihead",): {1: result(1.0), 2: result(8.0)}},
    )
    last = ["hidden_dropout+multihead-seed1", "hidden_dropout+multihead-seed2"]
    assert [trial.run.name for trial in two_seeds.known()] == [*names, *last] and two_seeds.total == 8
    os.remove(tmp_path / "multihead-seed2/result.json")
    assert [trial.run.name for trial in two_seeds.known()] == names


def test_nan_and_divergence_are_shown(tmp_path, capsys):
    found = {
        (): result(math.nan, diverged=True),
        ("hidden dropout",): result(math.inf),
        ("multihead",): result(3.0),
    }
    settle(ablation(tmp_path, TWO), {**found, ("multihead", "hidden dropout"): result(2.0)})
    ablate("--out", tmp_path, "--table")
    lines = words(capsys.readouterr().out)
    assert "baseline (diverged) nan nan 1.00" in lines and "+ hidden dropout inf inf 1.00" in lines
    mean, deviation = over_seeds([result(math.nan), result(3.0)], "valid")
    assert math.isnan(mean) and deviation is None


def test_a_table_with_missing_runs_shows_the_others_and_says_how_to_finish(tmp_path, capsys):
    found = {
        model: result(value) for model, value in PAPER.items() if len(model) < 2 or model == (RESIDUAL, HEADS)
    }
    settle(ablation(tmp_path), found)
    message = refused("--out", tmp_path, "--table")
    assert (
        "missing are residual_connections+attention_dropout-seed1, "
        "residual_connections+hidden_dropout-seed1, and 3 more that" in message
    )
    assert message.endswith(f"this command continues: modular-fairseq ablate --out {tmp_path} --seeds 1")
    lines = words(capsys.readouterr().out)
    assert lines[-3:] == [
        "+ attention dropout missing missing missing",
        "+ hidden dropout missing missing missing",
        "+ multihead 7.88 7.88 1.00",
    ]
    assert "| + hidden dropout | missing | missing | missing |" in (tmp_path / "table.md").read_text()
    assert (tmp_path / "table.tsv").read_text().splitlines()[7].split("\t")[3:] == [""] * 6 + ["0"]


def test_one_mechanism_has_a_table_too():
    found = {(): [result(9.0)], ("a",): [result(8.0)]}
    assert [row.model for row in rows(["a"], found.get)] == ["baseline", "full transformer"]
    assert sheet("", ["a"], found.get).text().splitlines()[-1].split() == [
        "full",
        "transformer",
        "8.00",
        "8.00",
        "1.00",
    ]


def test_a_run_is_named_after_what_is_on_whenever_it_was_added(tmp_path):
    for on in combinations(reversed(NAMES), 2):
        ((_, run),) = ablation(tmp_path, seeds=[3]).trials(on)
        assert run.name == ablation(tmp_path, seeds=[3]).trials(on[::-1])[0].run.name
    assert run.name == "residual_connections+attention_dropout-seed3"
    assert ablation(tmp_path).trials(())[0].run.name == "baseline-seed1"


def test_the_users_options_come_before_those_of_mechanisms_and_protocol(tmp_path):
    ((_, run),) = ablation(tmp_path, seeds=[7], data="/data").trials((RESIDUAL, HEADS))
    assert run.train_command[:2] == ["fairseq-train", "/data"]
    assert run.train_command[2 : 2 + len(BASE)] == BASE
    rest = " ".join(run.train_command[2 + len(BASE) :])
    assert rest.startswith(
        "--attention-dropout 0 --dropout 0 --encoder-attention-heads 8 --decoder-attention-heads 8 "
        "--update-epoch-batch-itr True --best-checkpoint-metric ppl --distributed-world-size 1 "
        "--user-dir /"
    )
    assert f"--save-dir {run.path('')} --seed 7 " in rest
    assert "--no-residual" in ablation(tmp_path).trials((HEADS,))[0].run.train_command


def test_evaluation_takes_the_batch_size_of_validation_and_the_task(tmp_path):
    def validate(*options):
        run = engine.Run("run", str(tmp_path), Corpus("/data"), list(options), 1)
        return " ".join(validate_command(run, "valid,test"))

    assert "--task translation --max-tokens 50" in validate("--max-tokens", "50")
    both = validate(
        "--task=masked_lm",
        "--max-tokens",
        "50",
        "-s",
        "de",
        "--max-tokens-valid",
        "20",
        "--cpu",
        "--lr",
        "-1",
    )
    assert both.endswith("--task masked_lm --max-tokens 20 --cpu")


def test_a_dry_run_shows_what_is_known_and_writes_nothing(tmp_path, ablation_data, capsys):
    out = tmp_path / "out"
    ablate(ablation_data, "--out", out, "--dry-run", "--", *BASE)
    printed = capsys.readouterr().out.splitlines()
    assert not out.exists()
    assert [line for line in printed if line.startswith("# ")] == [
        *(f"# {name}-seed1: to do" for name in ["baseline", *(name.replace(" ", "_") for name in NAMES)]),
        "# 6 more runs depend on the results of these",
    ]
    assert sum(line.startswith("fairseq-train ") for line in printed) == 5
    settle(ablation(out, data=ablation_data), {(): result(2.0)})
    ablate("--out", out, "--dry-run")
    assert "# baseline-seed1: done\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--max-epoch", "1"], "--arch is missing"),
        (["-a", "modular_transformer"], "nothing ends the training"),
        (["--arch", "modular_transformer", "--max-update", "0", "--lr", "-1"], "nothing ends the training"),
        (["--arch", "modular_transformer", "--max-epoch", "-1"], "nothing ends the training"),
        (
            [*BASE, "--seed", "2"],
            "--seed cannot be given after the --, because `ablate` sets it; give --seeds instead",
        ),
        ([*BASE, "--save-dir=x"], "--save-dir cannot be given after the --, because `ablate`"),
        (
            [*BASE, "--patience", "2"],
            "--patience cannot be given after the --, because `ablate` sets it or needs its default",
        ),
        ([*BASE, "--user-dir", "modular_fairseq"], "--user-dir cannot be given after the --"),
        (
            [*BASE, "--dropout", "0.3"],
            "--dropout is set by the mechanism hidden dropout and by you after the --; leave one",
        ),
        ([*BASE, "--no-such-option"], "unrecognized arguments: --no-such-option"),
        (
            [*BASE, "--arch", "no_arch"],
            "fairseq-train refuses your options and theirs: argument --arch/-a: invalid choice: 'no_arch'; "
            "change your options",
        ),
        ([*BASE, "--criterion", "no_criterion"], "invalid choice: 'no_criterion'"),
        (
            ["--arch", "transformer_lm", "--task", "language_modeling", "--max-epoch", "1"],
            "arguments: --no-residual --encoder-attention-heads 1",
        ),
    ],
)
def test_options_of_which_no_protocol_can_be_made(tmp_path, ablation_data, options, message):
    assert message in refused(ablation_data, "--out", tmp_path / "out", "--", *options)
    assert not (tmp_path / "out").exists()


def test_mechanisms_that_are_invalid_only_when_they_are_on_are_refused(tmp_path, ablation_data):
    file = tmp_path / "mechanisms.yaml"
    file.write_text("- {name: heads, off: --encoder-attention-heads 1, on: --encoder-attention-heads none}")
    message = refused(ablation_data, "--mechanisms", file, "--out", tmp_path / "out", "--", *BASE)
    assert "with all mechanisms on, fairseq-train refuses your options and theirs: argument" in message
    assert not (tmp_path / "out").exists()


def test_wrong_data_seeds_and_folders_are_refused_before_anything_is_written(tmp_path, ablation_data):
    out = tmp_path / "out"
    assert "DATA is missing" in refused("--out", out, "--", *BASE)
    assert "holds no runs; give DATA" in refused("--out", out)
    assert "does not exist or holds no test set" in refused(tmp_path / "nowhere", "--out", out, "--", *BASE)
    assert "does not exist or holds no test set" in refused(tmp_path, "--out", out, "--", *BASE)
    for seeds in ("1,x", "1,1", "", "1,-2", "1.5", "2,02"):
        assert "must be different whole numbers" in refused(
            ablation_data, f"--seeds={seeds}", "--out", out, "--", *BASE
        )
    (tmp_path / "file").touch()
    assert "cannot be written" in refused(ablation_data, "--out", tmp_path / "file", "--", *BASE)
    assert not out.exists()


def test_the_default_mechanisms_are_options_of_modular_transformer(tmp_path, ablation_data):
    ablate(ablation_data, "--out", tmp_path / "out", "--dry-run", "--", *BASE)
    stock = ["--arch", "transformer", "--max-epoch", 1]
    assert "unrecognized arguments: --no-residual" in refused(
        ablation_data, "--out", tmp_path / "out", "--", *stock
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "No such file"),
        ("- name: [", "cannot be read (line 1: expected the node content"),
        ("", "the file must be a list"),
        ("name: a", "the file must be a list"),
        ("- a", "the file must be a list"),
        ("- off: --a", "the file must be a list"),
        ("- {name: a, off: --a, of: --b}", "the file must be a list"),
        ("- {name: a, off: [--a]}", "the file must be a list"),
        ("- {name: a, off: '--a \"'}", "the file must be a list"),
        ("- {name: a/b, off: --a}", "the file must be a list"),
        ("- {name: a, off: --a, on: --a}", "the file must be a list"),
        ("- {name: a b, off: --a}\n- {name: a_b, off: --b}", "the name a_b is taken already"),
        ("- {name: baseline, off: --a}", "the name baseline is taken already"),
    ],
)
def test_malformed_mechanisms_are_refused(tmp_path, ablation_data, text, message):
    file = tmp_path / "mechanisms.yaml"
    if text is not None:
        file.write_text(text)
    assert message in refused(ablation_data, "--out", tmp_path / "out", "--mechanisms", file, "--", *BASE)


def test_mechanisms_come_from_yaml_in_which_on_and_off_are_words(tmp_path):
    (tmp_path / "file").write_text(TWO_YAML)
    assert read_switches(tmp_path / "file") == TWO
    (tmp_path / "file").write_text("- name: residual connections\n  off: --no-residual")
    assert read_switches(tmp_path / "file") == SWITCHES[:1]


@pytest.mark.parametrize(
    ("arch", "heads"),
    [
        (["--arch", "modular_transformer_tiny_cpu"], ["encoder", "decoder"]),
        (["-a", "modular_transformer_lm"], ["decoder"]),
        (["--arch", "modular_roberta_4_layers"], ["encoder"]),
        (["--arch", "transformer_lm"], ["encoder", "decoder"]),
        ([], ["encoder", "decoder"]),
    ],
)
def test_the_mechanisms_are_options_of_the_stacks_that_the_arch_has(arch, heads):
    *others, multihead = default_switches([*arch, "--max-epoch", "1"])
    assert others == SWITCHES[:3]
    for found, number in ((multihead.off, "1"), (multihead.on, "8")):
        assert found == [word for stack in heads for word in (f"--{stack}-attention-heads", number)]


def test_two_mechanisms_with_one_option_are_refused(tmp_path, ablation_data):
    (tmp_path / "file").write_text(TWO_YAML + "- {name: more, off: --dropout 0.2}")
    message = refused(
        ablation_data, "--out", tmp_path / "out", "--mechanisms", tmp_path / "file", "--", *BASE
    )
    assert (
        "--dropout is set by the mechanism more and by the mechanism hidden dropout; leave one of" in message
    )


def test_a_mechanism_with_an_option_of_the_protocol_is_refused(tmp_path, ablation_data):
    (tmp_path / "file").write_text("- {name: short, off: --patience 1}")
    message = refused(
        ablation_data, "--out", tmp_path / "out", "--mechanisms", tmp_path / "file", "--", *BASE
    )
    assert "--patience cannot be an option of the mechanism short, because `ablate` sets it or" in message


def test_runs_of_other_settings_are_not_mixed(tmp_path, ablation_data):
    out = tmp_path / "out"
    settle(ablation(out, data=ablation_data), {(): result(2.0)})
    shuffled = [*BASE[2:], *BASE[:2]]
    ablate(ablation_data, "--out", out, "--dry-run", "--", *shuffled)
    changed = [*BASE[:-1], "11", "--clip-norm", "1"]
    assert "holds runs with --max-epoch 10 (now 11), --clip-norm not given (now 1); give" in refused(
        ablation_data, "--out", out, "--", *changed
    )
    shutil.copytree(ablation_data, tmp_path / "other")
    assert f"holds runs with DATA {ablation_data} (now {tmp_path}/other); give" in refused(
        tmp_path / "other", "--out", out, "--", *BASE
    )
    (tmp_path / "file").write_text(TWO_YAML)
    assert "holds runs with other mechanisms; give" in refused(
        ablation_data, "--out", out, "--mechanisms", tmp_path / "file", "--", *BASE
    )
    (out / "protocol.json").write_text("{")
    assert "protocol.json: cannot be read" in refused("--out", out)


def test_mechanisms_may_be_changed_as_long_as_nothing_has_been_trained(tmp_path, ablation_data):
    out, file = tmp_path / "out", tmp_path / "file"
    earlier = ablation(out, data=ablation_data)
    write_settings(out, earlier.settings, earlier.seeds)
    file.write_text(TWO_YAML)
    settings, _ = choose_settings(
        Namespace(out=str(out), mechanisms=str(file), data="", options=[], table=False, seeds=None)
    )
    expected = {
        **earlier.settings,
        "switches": read_switches(str(file)),
        "content": content_of(str(ablation_data)),
    }
    assert settings == expected != earlier.settings


def test_settings_come_back_as_they_were(tmp_path):
    settings = {"data": "/a b", "options": [*BASE, "--adam-betas", "(0.9, 0.98)"], "switches": SWITCHES}
    write_settings(tmp_path, settings, [1, 2])
    assert read_settings(tmp_path) == (settings | {"content": content_of("/a b")}, [1, 2])


def test_other_data_in_the_same_folder_are_refused(tmp_path, ablation_data):
    settle(ablation(tmp_path / "out", data=str(ablation_data)), {(): {}})
    with ablation(tmp_path / "out", data=str(ablation_data)).begun():
        pass
    (ablation_data / "train.de-en.de.bin").write_text("other")
    with (
        pytest.raises(UsageError, match="holds runs with other data in the same folder DATA; give the same"),
        ablation(tmp_path / "out", data=str(ablation_data)).begun(),
    ):
        pytest.fail("begun")


def test_two_processes_do_not_train_in_one_folder(tmp_path, ablation_data):
    settle(ablation(tmp_path / "out", data=ablation_data), {})
    with only_one(str(tmp_path / "out")):
        assert "another process works in it" in refused("--out", tmp_path / "out")


def test_settings_of_a_process_at_work_are_left_as_they_are(tmp_path, ablation_data):
    """It has no checkpoint yet. The process may work in the folder, or in the folder of a run in it."""
    out, others = tmp_path / "out", [*BASE, "--clip-norm", "1"]
    with ablation(out, data=ablation_data).begun():
        before = (out / "protocol.json").read_bytes()
        assert "another process works in it" in refused(ablation_data, "--out", out, "--", *others)
        assert (out / "protocol.json").read_bytes() == before
    other = ablation(out, data=ablation_data)
    other.settings["options"] = others
    (out / "baseline-seed1").mkdir()
    with (
        only_one(out / "baseline-seed1"),
        pytest.raises(UsageError, match="holds runs with --clip-norm not given .now 1."),
        other.begun(),
    ):
        pytest.fail("begun")
    assert (out / "protocol.json").read_bytes() == before
    with other.begun():
        assert (out / "protocol.json").read_bytes() != before


def finish(folder, *options):
    path = str(folder / "baseline-seed1")
    trial = Trial((), engine.Run("baseline-seed1", path, Corpus("/data"), [*BASE, *options], 1))
    trial.finish(lambda text: None)
    return trial.result


@pytest.mark.parametrize(("losses", "train"), [({"loss": 4.0}, 16.0), ({"loss": 4.0, "nll_loss": 3.0}, 8.0)])
def test_a_result_has_the_perplexities_of_the_best_checkpoint_and_of_training(
    tmp_path, monkeypatch, losses, train
):
    called = fairseq(monkeypatch, checkpoints(**losses))
    assert finish(tmp_path) == {
        **{"mechanisms": [], "seed": 1, "diverged": False, "valid": 5.25, "test": 6.25},
        **{"train": train, "train_loss": 4.0, "updates": 12},
    }
    assert called == ["train", "validate"]


@pytest.mark.parametrize(
    ("epoch", "updates", "expected"),
    [(10, 19, ["train", "validate"]), (11, 19, ["validate"]), (10, 20, ["validate"])],
)
def test_a_run_that_is_killed_after_its_training_is_only_evaluated(
    tmp_path, monkeypatch, epoch, updates, expected
):
    """--max-epoch 10 ends when the next epoch is 11. After --max-update 20, fairseq-train itself would make
    one more update.
    """
    called = fairseq(monkeypatch, checkpoints())
    (tmp_path / "baseline-seed1").mkdir()
    checkpoints(epoch=epoch, updates=updates)(tmp_path / "baseline-seed1")
    finish(tmp_path, "--max-update", "20")
    assert called == expected


def test_a_run_that_diverges_counts_with_its_best_checkpoint_or_as_nan(tmp_path, monkeypatch):
    error = (1, ["Traceback", "FloatingPointError: gradients are Nan/Inf", ""])
    fairseq(monkeypatch, lambda folder: checkpoints()(folder) or error)
    some = finish(tmp_path / "some")
    assert some["diverged"] and some["valid"] == 5.25
    fairseq(monkeypatch, lambda folder: error)
    none = finish(tmp_path / "none")
    assert none["diverged"] and all(math.isnan(none[column]) for column in ("valid", "test", "train"))


def test_a_validation_loss_that_is_never_a_number_is_nan_but_no_validation_is_an_error(tmp_path, monkeypatch):
    fairseq(monkeypatch, checkpoints(best=False, val_loss=math.nan))
    assert math.isnan(finish(tmp_path / "nan")["valid"])
    fairseq(monkeypatch, checkpoints(best=False, val_loss=None))
    with pytest.raises(UsageError, match="baseline-seed1 has no checkpoint_best.pt after training"):
        finish(tmp_path / "never")
    assert not (tmp_path / "never/baseline-seed1/result.json").exists()


def test_an_evaluation_without_perplexity_is_an_error(tmp_path, monkeypatch):
    fairseq(monkeypatch, checkpoints(), validation=["valid"])
    with pytest.raises(UsageError, match="baseline-seed1: fairseq-validate showed no perplexity; see "):
        finish(tmp_path)


def test_a_run_that_fails_stops_the_protocol_and_loses_nothing(tmp_path, ablation_data, monkeypatch):
    settle(ablation(tmp_path / "out", TWO, data=ablation_data), {(): result(2.0)})
    called = fairseq(monkeypatch, lambda folder: (3, ["Traceback", "RuntimeError: no", ""]))
    message = refused("--out", tmp_path / "out")
    assert "hidden_dropout-seed1: fairseq-train failed with status 3 (RuntimeError: no); see " in message
    assert f"{tmp_path}/out/hidden_dropout-seed1/train.log" in message
    assert called == ["train"] and (tmp_path / "out/baseline-seed1/result.json").exists()


def test_what_a_command_says_goes_to_its_log_and_comes_line_by_line(tmp_path):
    (tmp_path / "log").write_text("before\n")
    shown = []
    program = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(4)"
    status, tail = call([sys.executable, "-u", "-c", program], str(tmp_path / "log"), shown.append)
    assert status == 4 and shown == tail == ["one", "two"]
    assert (tmp_path / "log").read_text() == "before\none\ntwo\n(ended with status 4)\n"


def test_ctrl_c_says_how_to_go_on(tmp_path, ablation_data, monkeypatch, capsys):
    def interrupt(folder):
        raise KeyboardInterrupt

    fairseq(monkeypatch, interrupt)
    settle(ablation(tmp_path / "out", TWO, data=ablation_data), {})
    with pytest.raises(SystemExit) as caught:
        ablate("--out", tmp_path / "out")
    assert caught.value.code == 130
    assert capsys.readouterr().err.endswith(
        f"stopped; this command continues: modular-fairseq ablate --out {tmp_path}/out --seeds 1\n"
    )


def test_a_killed_ablation_takes_its_training_with_it(tmp_path):
    """If the training survived, the next ablation would train in the same folder at the same time."""
    if sys.platform != "linux":
        pytest.skip("only Linux lets a process ask for that")
    child = "import os, time; print(os.getpid()); time.sleep(6000)"
    command, log = [sys.executable, "-u", "-c", child], str(tmp_path / "log")
    program = f"from modular_fairseq_cli.processes import call; call({command}, {log!r}, print)"
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    pid = int(process.stdout.readline())
    process.kill()
    process.wait()
    assert has_ended(pid)
