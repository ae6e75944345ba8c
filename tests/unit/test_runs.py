"""Test statistics, evaluations, tables and numbers over seeds of all runs, the demo, and train-and-score."""

import json
import math
import os
import shutil
from types import SimpleNamespace

import pytest
import torch

from modular_fairseq.models.tasks import mechanisms_of
from modular_fairseq.runs import train_and_score
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evaluation import (
    EVALUATIONS,
    Column,
    Evaluation,
    Measurement,
    evaluations_of,
    register,
)
from modular_fairseq.runs.evaluations.model_analyses import Redundancy
from modular_fairseq.runs.papers.making import name_failure
from modular_fairseq.runs.papers.results import Results, Trial
from modular_fairseq.runs.papers.table import find_table
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq.runs.statistics import difference
from modular_fairseq.training.command_line import short_training
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.analysis_folder import INDEX
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.spread import shown

COUNTED = "2030-01-01 | INFO | fairseq_cli.train | num. shared model params: 1,500 (num. trained: 1,200)\n"
OUTSIDE = "2030-01-01 | INFO | any | num. params trained outside the main optimizer: 1,300\n"


def write_run(folder, log, **changes):
    """Write a run that has been trained, with this log and a checkpoint of 12 updates, and return it."""
    (folder / "run").mkdir(exist_ok=True)
    (folder / "run/train.log").write_text(log)
    torch.save({"model": {}, "optimizer_history": [{"num_updates": 12}]}, folder / "run/checkpoint_best.pt")
    return Run("run", str(folder / "run"), Corpus(str(folder / "data/bin")), [], 1)._replace(**changes)


@pytest.mark.parametrize(("line", "trained"), [("", 1200), (OUTSIDE, 2500)])
def test_parameters_that_are_trained_outside_the_main_optimizer_count(tmp_path, line, trained):
    valid = [f'2030-01-01 | INFO | valid | {{"epoch": {n}, "valid_ppl": "{5 - n}.5"}}\n' for n in (1, 2, 3)]
    found = write_run(tmp_path, COUNTED + line + "".join(valid) + "half a li").statistics()
    del found["checkpoint"]
    assert found == {
        "parameters": 1500,
        "trained_parameters": trained,
        "updates": 12,
        "valid_perplexity": 2.5,
    }


def test_a_checkpoint_that_is_evaluated_and_missing_is_named(tmp_path):
    run = write_run(tmp_path, "", trains=False, start=str(tmp_path / "no.pt"))
    with pytest.raises(UsageError, match="^run: .*/no.pt, which is to be evaluated, does not exist$"):
        run.statistics()


def test_a_task_without_perplexity_has_the_other_statistics(tmp_path):
    valid = '2030-01-01 | INFO | valid | {"epoch": 1, "valid_loss": "2.5"}\n'
    assert "valid_perplexity" not in write_run(tmp_path, COUNTED + valid).statistics()
    with pytest.raises(
        UsageError, match="train.log does not show the number of parameters and a validation; restore"
    ):
        write_run(tmp_path, valid).statistics()


class Constant(Evaluation):
    columns = {"constant": Column("constant", "", "{:.1f}")}

    def commands(self, of):
        return []

    def measure(self, of, say):
        return {"constant": 2.0 * of.run.seed}


@pytest.fixture
def constant():
    register(Constant)
    yield EVALUATIONS[-1]
    EVALUATIONS.pop()


def measured(tmp_path, evaluation, seed, **changes):
    folder = tmp_path / f"seed-{seed}"
    folder.mkdir()
    (folder / "training.json").write_text('{"checkpoint": "c"}')
    of = Measurement(Run("run", str(folder), Corpus("data/bin"), [], seed), (evaluation,))._replace(**changes)
    of.finish(print)
    return of


def test_an_evaluation_is_a_class_that_is_registered(tmp_path, constant):
    assert evaluations_of(["parameters", "constant", "bleu"])[0] is constant
    of = measured(tmp_path, constant, 1)
    assert of.result == {"checkpoint": "c", "constant": 2.0, "data": {}, "overrides": []}
    (tmp_path / "seed-1/training.json").write_text('{"checkpoint": "d"}')
    assert of.result is None  # the result belongs to another checkpoint
    with pytest.raises(ValueError, match="the column constant is registered already"):
        register(Constant)


def test_what_was_found_stays_when_a_column_is_added(tmp_path, constant):
    of = measured(tmp_path, constant, 1)
    found = json.loads((tmp_path / "seed-1/test.json").read_text()) | {"other": 7}
    (tmp_path / "seed-1/test.json").write_text(json.dumps(found))
    of.finish(lambda text: pytest.fail("it is done"))
    more = type(
        "More", (Constant,), {"columns": {"more": Column("more", "")}, "measure": lambda *_: {"more": 3}}
    )
    of._replace(evaluations=(constant, more())).finish(print)
    assert json.loads((tmp_path / "seed-1/test.json").read_text()) == found | {"more": 3}


def test_the_redundancy_of_version_01_is_measured_again(tmp_path, monkeypatch):
    """Version 0.1 saved one definition, as LR and HR."""
    (tmp_path / "training.json").write_text('{"checkpoint": "c", "updates": 3}')
    old = {"checkpoint": "c", "other": 7, "LR": 0.5, "HR": 0.4}
    (tmp_path / "test.json").write_text(json.dumps(old))
    of = Measurement(Run("run", str(tmp_path), Corpus("data/bin"), [], 1), (Redundancy(),))
    assert of.result is None
    new = {name: 0.1 * number for number, name in enumerate(Redundancy.columns)}

    def analyse(run, command, log, say):
        folder = tmp_path / "test.redundancy"
        assert command[:3] == ["modular-fairseq", "analyze", "redundancy"] and str(folder) in command
        folder.mkdir()
        types = [{"type": "encoder", "LR_distance": 0.5, "modules": ["a"]}]
        report = new | {"sentences": 3, "types": types}
        (folder / INDEX).write_text(json.dumps({"analyses": {"redundancy": report}}))

    monkeypatch.setattr(Run, "execute", analyse)
    of.finish(print)
    new["redundancy"] = {"types": [{"type": "encoder", "LR_distance": 0.5}]}
    assert json.loads((tmp_path / "test.json").read_text()) == old | new
    assert of.result == old | new | {"updates": 3}


def test_only_the_authors_redundancy_has_figures_of_the_paper():
    columns = Redundancy.columns
    assert {name for name in columns if columns[name].paper} == {
        "LR_divergence_encoder",
        "HR_divergence_encoder",
    }
    for name, column in columns.items():
        measure, definition, maps = name.split("_")
        assert column.heading == f"{measure} ({definition}, {'all maps' if maps == 'all' else maps})"
        assert column.paper in ("", f"paper: {column.heading}")
        assert column.instead in ("", f"{measure}_divergence_encoder")


class Sparse(Constant):
    """An evaluation that has a value for even seeds only."""

    def measure(self, of, say):
        return {"constant": None if of.run.seed % 2 else 2.0}


def test_a_measurement_without_a_value_leaves_its_cell_empty(tmp_path, constant):
    of = [measured(tmp_path, Sparse(), seed) for seed in (1, 2)]
    row = SimpleNamespace(name="row", percent=100, pretrained=False)
    assert Results(row, None, [Trial({}, of)]).numbers("constant") == [2.0]
    assert Results(row, None, [Trial({}, of[:1])]).numbers("constant") == []
    (tmp_path / "base").mkdir()
    base = [measured(tmp_path / "base", constant, seed) for seed in (1, 2)]
    assert difference(Sparse(), of, base, 10).values == [-2.0]
    assert difference(Sparse(), of[:1], base, 10) is None


def test_differences_are_of_equal_seeds_and_the_same_data(tmp_path, constant):
    (tmp_path / "base").mkdir()
    base = [measured(tmp_path / "base", constant, seed) for seed in (1, 2, 4)]
    ours = [measured(tmp_path, constant, seed) for seed in (1, 2, 3)]
    assert difference(constant, ours, base, 10).values == [0.0, 0.0]
    assert difference(constant, ours, base[1:2], 10).values == [-2.0, 0.0, 2.0]
    other = [each._replace(subset="valid") for each in base]
    assert difference(constant, ours, other, 10) is None


@pytest.mark.parametrize(
    ("values", "pattern", "text"),
    [
        ([], "{:.2f}", ""),
        ([1.5], "{:.2f}", "1.50"),
        ([1.0, 2.0], "{:+.2f}", "+1.50 ± 0.71"),
        ([7, 7], "{:,.0f}", "7"),
        ([7.0, 7.0], "{:.2f}", "7.00 ± 0.00"),
        ([math.nan, 1.0], "{:.2f}", "nan"),
        ([math.inf, 1.0], "{:.2f}", "inf"),
    ],
)
def test_numbers_over_seeds_are_a_mean_and_a_deviation(values, pattern, text):
    assert shown(values, pattern) == text


def test_a_table_in_three_forms(tmp_path):
    lines = [Line(["long name", "1"]), Line(["b", "22.5"])]
    sheet = Sheet("Title", ["", "n"], lines, [["name", "n"], ["a", None], ["b", 22.5]], ["A note."])
    text = sheet.write(str(tmp_path / "new"))
    assert (
        text
        == (tmp_path / "new/table.txt").read_text()
        == ("Title\n\n              n\n---------  ----\nlong name     1\nb          22.5\n\nA note.\n")
    )
    assert (tmp_path / "new/table.tsv").read_text() == "name\tn\na\t\nb\t22.5\n"
    assert (tmp_path / "new/table.md").read_text() == (
        "**Title**\n\n| model | n |\n| --- | ---: |\n| long name | 1 |\n| b | 22.5 |\n\n- A note.\n"
    )
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="--out: the table cannot be written to .*file"):
        sheet.write(str(tmp_path / "file/folder"))


def test_a_table_of_the_papers_is_found_by_its_name(tmp_path, monkeypatch):
    assert find_table("mae-3").endswith("configs/mae-3/table.yaml")
    assert find_table("some/table.yaml") == "some/table.yaml"
    with pytest.raises(
        UsageError, match="there is no table mae-9; give the path of a table.yaml, or one of .*mae-3"
    ):
        find_table("mae-9")


def test_a_short_training_is_asked_for_unless_the_user_says_otherwise():
    def words(arch, epochs, options=""):
        criterion = ["--criterion", "modular_cross_entropy", "--lr", "1", "--max-epoch", str(epochs)]
        return short_training(["--arch", arch, *criterion, *options.split()], 400)

    gates = ["--mae-gate-interval", "2", "--mae-gate-lr", "0.5"]
    assert words("mae_transformer", 5) == gates
    for given in ("--mae-gate-lr 0.3", "--mae-gate-lr 0.1", "--mae-gate-loss sentence"):
        assert words("mae_transformer", 5, given) == gates[:2]
    assert words("mae_transformer", 1) == ["--mae-gate-interval", "1", "--mae-gate-lr", "0.5"]
    assert words("mae_transformer", 12) == []
    assert words("mae_transformer", 5, "--mae-gating uniform") == []
    assert words("mae_transformer", 5, "--mae-training joint") == []
    assert words("mae_transformer", 5, "--finetune-from-model a.pt") == []
    assert words("mae_transformer", 5, "--attention-type plain") == []
    assert words("dma_transformer", 12) == ["--aux-warmup-updates", "400"]
    assert words("dma_transformer", 12, "--qq-weight 0") == ["--aux-warmup-updates", "400"]
    assert words("dma_transformer", 12, "--kl-weight 0 --qq-weight 0 --xq-weight 0") == []
    assert words("dma_transformer", 12, "--aux-warmup-updates 100") == []
    both = words("mae_transformer", 5, "--attention-type mae+dma")
    assert both == [*gates, "--aux-warmup-updates", "400"]
    assert words("transformer", 5) == []
    assert words("mae_transformer", 0) == []  # no limit
    scheduled = ["--arch", "dma_transformer", "--criterion", "modular_cross_entropy", "--lr", "1"]
    scheduled += ["--max-epoch", "5", "--lr-scheduler", "inverse_sqrt", "--warmup-updates", "70"]
    assert short_training(scheduled) == ["--aux-warmup-updates", "70"]


def test_mechanisms_of_an_arch_are_those_of_its_defaults():
    kinds = {
        arch: {each.kind for each in mechanisms_of(arch)}
        for arch in ("transformer", "modular_transformer", "mae_transformer", "dma_transformer_tiny_cpu")
    }
    assert list(kinds.values()) == [set(), set(), {"gate"}, {"mask"}]
    assert [each.name for each in mechanisms_of("tim_transformer_tiny_cpu")] == ["tim"]
    assert [each.name for each in mechanisms_of("multistream_transformer")] == ["stream"]


def test_the_demo_refuses_options_that_it_sets_itself(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="the demo itself sets --lr, --dropout, the same .*; leave them out"):
        cli.main(["demo", "mae_transformer", "--lr", "1e-9", "--mae-gate-dim", "8", "--dropout=0.3"])
    with pytest.raises(
        SystemExit, match="--no-save cannot be given among OPTIONS, because this command sets"
    ):
        cli.main(["demo", "mae_transformer", "--no-save"])
    for words in (["--no-epoch-checkpoints"], ["--save-interval", "3"], ["--save-interval=2"]):
        option = words[0].partition("=")[0]
        with pytest.raises(SystemExit, match=f"{option} cannot be given among OPTIONS, because the checkp"):
            cli.main(["demo", "mae_transformer", *words])
    assert not list(tmp_path.iterdir())


def test_the_demo_of_an_unknown_arch_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="no arch mea_transformer with a size _tiny_cpu; give modular_trans"):
        cli.main(["demo", "mea_transformer"])
    assert not list(tmp_path.iterdir())


def trained(monkeypatch, tmp_path, *options, **own):
    """Return the run that train-and-score makes, the options of its decoding, and those of `modular-fairseq
    score`.

    Args:
        options: ARCH and OPTIONS.
        own: options of the command itself.
    """
    seen = SimpleNamespace()
    monkeypatch.setattr(train_and_score, "prepare_raw", lambda *words: None)
    monkeypatch.setattr(Run, "check", lambda self: None)

    def train(run, say):
        os.makedirs(run.folder, exist_ok=True)
        seen.run = run

    monkeypatch.setattr(Run, "train", train)
    monkeypatch.setattr(
        train_and_score,
        "translate",
        lambda run, decoding, say: setattr(seen, "decoding", decoding) or "generate.out",
    )
    score = SimpleNamespace(main=lambda words: setattr(seen, "score", words))
    monkeypatch.setattr(train_and_score, "main", score)
    first = [f"--{name}={value}" for name, value in own.items()]
    cli.main(["train-and-score", *first, "text", "de", "en", str(tmp_path / "out"), *options])
    return seen


def test_train_and_score_takes_options_of_its_own_and_of_fairseq(tmp_path, monkeypatch):
    plain = trained(monkeypatch, tmp_path, "dma_transformer", "--max-epoch", "3", "--seed", "7")
    words = " ".join(plain.run.train_command)
    assert plain.run.folder == f"{tmp_path}/out/dma_transformer_max_epoch_3_seed_7"
    assert "--encoder-layers 3 --decoder-layers 3 " in words and " --aux-warmup-updates 600 " in words
    assert words.index("--max-epoch 12") < words.index("--max-epoch 3") and words.endswith(
        f"--save-dir {tmp_path}/out/dma_transformer_max_epoch_3_seed_7/ --seed 7 --log-format json"
    )
    assert plain.score == [
        *("score", "--reference", f"{tmp_path}/out/raw/test.en", "generate.out"),
        *("--target-lang", "en", "--json", f"{plain.run.folder}/score.json"),
    ]
    named = trained(monkeypatch, tmp_path, "tim_transformer", name="mine", size="", generate="--lenpen 2")
    assert named.run.folder == f"{tmp_path}/out/mine" and "--encoder-layers" not in named.run.words
    assert named.decoding == ["--beam", "5", "--batch-size", "64", "--remove-bpe", "--lenpen", "2"]
    unnamed = trained(monkeypatch, tmp_path, "tim_transformer")
    assert "--encoder-layers 4 " in " ".join(unnamed.run.words)
    assert trained(monkeypatch, tmp_path, "tim_transformer", size="").run.folder != unnamed.run.folder
    one = {"size": "--share-all-embeddings", "generate": "--sacrebleu"}
    short = trained(monkeypatch, tmp_path, "tim_transformer", name="mine", **one)
    assert "--share-all-embeddings" in short.run.words and short.decoding[-1] == "--sacrebleu"
    for words in ('{"mae_inference":"specialised"}', "{'attention_dropout':0.1,'model':{'dropout':0.2}}"):
        changed = {"generate": f"--model-overrides {words}"}
        assert trained(monkeypatch, tmp_path, "tim_transformer", name="mine", **changed).decoding[-1] == words


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--path other.pt", "--path cannot be given in --generate"),
        ("--beam 3 --quiet", "--quiet cannot be given in --generate"),
        (
            "--score-reference",
            "--score-reference cannot be given in --generate",
        ),
        ("--beam x", "fairseq-generate refuses --generate --beam x: argument --beam: invalid int value: 'x'"),
        ("--bean 3", "refuses --generate --bean 3: unrecognized arguments: --bean 3"),
        (
            "--model-overrides {'drpout':0}",
            "drpout is no option of the model that can have the value 0; p",
        ),
        ("--model-overrides [1]", "give a dictionary of options of the model and values"),
    ],
)
def test_train_and_score_refuses_options_of_decoding_before_it_trains(tmp_path, monkeypatch, words, said):
    with pytest.raises(SystemExit) as caught:
        trained(monkeypatch, tmp_path, "tim_transformer", name="mine", generate=words)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    "option", ["--arch", "-a", "--save-dir", "--log-format", "--name", "--valid-subset", "--no-save"]
)
def test_train_and_score_refuses_what_it_sets_itself(tmp_path, monkeypatch, option):
    with pytest.raises(SystemExit, match=f"{option} cannot be given among OPTIONS[;,] "):
        trained(monkeypatch, tmp_path, "tim_transformer", option, "simple", name="mine")


@pytest.mark.parametrize("name", ["", "a/b", "a:b", "..", "bin", "text", "settings"])
def test_train_and_score_refuses_a_name_that_is_none_of_a_new_folder(tmp_path, monkeypatch, name):
    with pytest.raises(
        SystemExit, match=f"--name {name}: it names a folder in .*; give a name without / and :"
    ):
        trained(monkeypatch, tmp_path, "tim_transformer", name=name)


def test_train_and_score_adapts_mechanisms_to_the_length_of_the_training(tmp_path, monkeypatch):
    options = ["mae_transformer", "--attention-type", "mae+dma", "--max-epoch", "4", "--warmup-updates", "80"]
    words = " ".join(trained(monkeypatch, tmp_path, *options, name="mine").run.words)
    assert "--mae-gate-interval 2 --mae-gate-lr 0.5 --aux-warmup-updates 80" in words


def test_train_and_score_refuses_the_folder_of_another_model(tmp_path, monkeypatch):
    """Both have the same name, which a user gave. The folder is left as it is."""
    monkeypatch.setattr(train_and_score, "prepare_raw", lambda *words: None)
    monkeypatch.setattr(Corpus, "check", lambda self, name: None)
    monkeypatch.setattr(Corpus, "sums", lambda self: {})
    folder = tmp_path / "out/mine"
    folder.mkdir(parents=True)
    (folder / "settings.json").write_text(json.dumps({"--arch": "modular_transformer"}))
    (folder / "training.json").write_text("{}")
    with pytest.raises(SystemExit, match="holds a run with --arch modular_transformer .now dma_transformer."):
        words = ["--name", "mine", "text", "de", "en", str(tmp_path / "out"), "dma_transformer"]
        cli.main(["train-and-score", *words])
    assert sorted(path.name for path in folder.iterdir()) == ["settings.json", "training.json"]


def test_the_help_of_train_and_score_shows_its_recipe(capsys):
    with pytest.raises(SystemExit, match="0"):
        cli.main(["train-and-score", "--help"])
    shown = capsys.readouterr().out.partition("recipe (")[2].replace("'", "").split()
    for words in (train_and_score.RECIPE, train_and_score.SIZE.format("N")):
        assert " ".join(words.split()) in " ".join(shown)


@pytest.mark.parametrize(
    ("arch", "said"),
    [
        (
            "mae_transformr",
            "no arch mae_transformr; give modular_transformer, .*mae_transformer, .* or",
        ),
        (
            "mae_roberta",
            "--arch mae_roberta is a model for --task masked_lm; give --arch mae_transformer f",
        ),
    ],
)
def test_train_and_score_refuses_an_arch_that_does_not_translate(tmp_path, monkeypatch, arch, said):
    with pytest.raises(SystemExit, match=said):
        trained(monkeypatch, tmp_path, arch)


def test_train_and_score_refuses_a_seed_that_is_no_number(tmp_path, monkeypatch):
    with pytest.raises(SystemExit, match="argument --seed: invalid int value: 'one'"):
        trained(monkeypatch, tmp_path, "tim_transformer", "--seed", "one")


@pytest.mark.parametrize(
    "command", [["demo", "mae_transformer"], ["train-and-score", *["FOLDER", "de", "en", "OUT"], "a"]]
)
def test_another_plugin_is_refused_and_nothing_is_written(command, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit, match="error: --user-dir cannot be given: this command"):
        cli.main([*command, "--user-dir", "examples/distance"])
    assert not list(tmp_path.iterdir())


class Counted(Evaluation):
    """Count how often this evaluation measures. Its result is valid for one decoding."""

    decoding = "old"

    def __init__(self, name):
        self.columns, self.times = {name: Column(name, "")}, 0

    def is_done(self, of, found):
        return found.get(self.key) == self.decoding

    def commands(self, of):
        return []

    def measure(self, of, say):
        self.times += 1
        return {self.key: self.decoding}


def test_a_new_column_is_measured_alone_and_another_decoding_drops_all_results(tmp_path):
    run = Run("run", str(tmp_path), Corpus("data"), (), 1)
    (tmp_path / "training.json").write_text('{"checkpoint": "sum", "updates": 3}')
    first, second = Counted("first"), Counted("second")
    Measurement(run, (first,)).finish(print)
    both = Measurement(run, (first, second))
    assert both.result is None
    both.finish(print)
    result = {"checkpoint": "sum", "updates": 3, "first": "old", "second": "old", "data": {}, "overrides": []}
    assert both.result == result
    assert (first.times, second.times) == (1, 1)
    first.decoding = "new"  # only this one sees that the decoding has changed
    assert both.result is None
    both.finish(print)
    assert both.result["first"] == "new" and (first.times, second.times) == (2, 2)


def test_the_name_of_a_measurement_has_the_option_of_true_and_false():
    overrides = (("mae_inference", "random"), ("no_residual", True), ("stream_skip", False))
    of = Measurement(Run("run", "folder", Corpus("data"), (), 1), (), "valid", overrides)
    assert of.name == "valid-random-no_residual-True-stream_skip-False"


def test_other_overrides_drop_the_results_though_their_values_are_the_same(tmp_path):
    """The name of the file has the values of overrides. Early results did not note overrides."""
    run = Run("run", str(tmp_path), Corpus("data"), (), 1)
    (tmp_path / "training.json").write_text('{"checkpoint": "sum"}')
    evaluation = Counted("first")
    one, other = (
        Measurement(run, (evaluation,), "test", ((f"{side}_layerdrop", 0.1),))
        for side in ("encoder", "decoder")
    )
    one.finish(print)
    assert one.path("json") == other.path("json") and one.result is not None and other.result is None
    other.finish(print)
    assert evaluation.times == 2 and other.result is not None and one.result is None
    (tmp_path / "test-0.1.json").write_text(json.dumps({"checkpoint": "sum", "first": "old"}))
    assert one.result is not None


@pytest.mark.parametrize("trains", [True, False])
def test_a_result_of_another_checkpoint_to_start_from_is_refused(tmp_path, trains):
    """A run that is trained from a checkpoint, or evaluates it as it is, is not one of a later checkpoint."""
    start = tmp_path / "start.pt"
    torch.save({"model": {"a": torch.zeros(1)}}, start)
    valid = '2030-01-01 | INFO | valid | {"epoch": 1, "valid_ppl": "2.5"}\n'
    corpus = SimpleNamespace(check=lambda name: None, sums=lambda: {})
    run = write_run(tmp_path, COUNTED + valid, start=str(start), settings={}, trains=trains, corpus=corpus)
    last = {
        "model": {},
        "optimizer_history": [{"num_updates": 12}],
        "extra_state": {"train_iterator": {"epoch": 2}},
    }
    torch.save(last, tmp_path / "run/checkpoint_last.pt")
    (tmp_path / "run/settings.json").write_text("{}")  # early runs did not note what they started from
    run = run._replace(words=["--max-update", "12"])
    run.train(print)
    run.check()
    assert json.loads((tmp_path / "run/settings.json").read_text()).keys() == {"starting weights"}
    torch.save({"model": {"a": torch.zeros(1)}, "extra_state": {"time": 1}}, start)  # it was made again
    run.check()
    torch.save({"model": {"a": torch.ones(1)}}, start)
    for method in (run.check, lambda: run.train(print)):
        with pytest.raises(
            UsageError, match="holds a run with starting weights .* .now .*.; use the earlier"
        ):
            method()
    start.unlink()  # results may be shown without it
    run.check()
    torch.save({"model": {"a": torch.ones(1)}}, start)
    (tmp_path / "run/settings.json").write_text("{}")
    run.check()


def test_the_best_validation_is_a_number_if_there_is_one(tmp_path):
    for perplexities, best in ((("nan", "8.5", "9"), 8.5), (("8.5", "nan"), 8.5)):
        lines = [f'2030-01-01 | INFO | valid | {{"valid_ppl": "{each}"}}\n' for each in perplexities]
        assert write_run(tmp_path, COUNTED + "".join(lines)).statistics()["valid_perplexity"] == best
    valid = '2030-01-01 | INFO | valid | {"valid_ppl": "nan"}\n'
    assert math.isnan(write_run(tmp_path, COUNTED + valid).statistics()["valid_perplexity"])


def test_train_and_score_refuses_a_file_as_its_folder(tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    words = ["train-and-score", str(tmp_path), "de", "en", str(tmp_path / "file"), "mae_transformer"]
    with pytest.raises(SystemExit, match="OUT .*file: cannot be made .File exists.; give another folder"):
        cli.main(words)


@pytest.mark.parametrize("name", ["bin/test.de-en.en.bin", "bin/dict.en.txt", "raw/test.en", "text/test.txt"])
def test_other_data_drop_the_results_of_every_evaluation(tmp_path, name):
    """Other parts of the corpus do not matter, nor does its absence."""
    files = [
        tmp_path / each for each in (name, "bin/valid.de-en.en.bin", "bin/preprocess.log", "raw/valid.en")
    ]
    for file in files:
        file.parent.mkdir(exist_ok=True)
        file.write_text("old")
    run = Run("run", str(tmp_path / "run"), Corpus(str(tmp_path / "bin"), ("de", "en")), (), 1)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/training.json").write_text('{"checkpoint": "sum"}')
    evaluation = Counted("first")
    measurement = Measurement(run, (evaluation,))
    measurement.finish(print)
    for file in files[1:]:
        file.write_text("new")
    measurement.finish(print)
    assert evaluation.times == 1
    files[0].write_text("new")
    assert measurement.result is None
    measurement.finish(print)
    assert evaluation.times == 2 and measurement.result is not None
    for part in ("bin", "raw", "text"):
        shutil.rmtree(tmp_path / part, ignore_errors=True)
        assert measurement.result is not None


def test_results_without_digests_stay_and_get_none(tmp_path):
    """Version 0.1 noted no digests, and early language models a list."""
    (tmp_path / "run").mkdir()
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/test.de-en.en.bin").write_text("old")
    (tmp_path / "run/training.json").write_text('{"checkpoint": "sum"}')
    run = Run("run", str(tmp_path / "run"), Corpus(str(tmp_path / "bin"), ("de", "en")), (), 1)
    for more in ({}, {"data": ["a", "b"]}):
        (tmp_path / "run/test.json").write_text(json.dumps({"checkpoint": "sum", "first": "old", **more}))
        second = Counted("second")
        measurement = Measurement(run, (Counted("first"), second))
        measurement.finish(print)
        assert measurement.evaluations[0].times == 0 and second.times == 1
        assert measurement.result == {"checkpoint": "sum", "first": "old", "second": "old", **more}


def test_weights_that_are_fine_tuned_belong_to_the_settings_of_train_and_score(tmp_path):
    path = tmp_path / "c.pt"
    words = ["--arch", "modular_transformer", "--finetune-from-model", str(path)]
    found = [train_and_score._settings(words)]
    for number in (1, 2):
        torch.save({"model": {"a": torch.full((1,), float(number))}}, path)
        found.append(train_and_score._settings(words))
    assert len({json.dumps(each) for each in found}) == 3 and len(found[0]) == 2


def test_a_bleu_of_version_01_is_dropped_if_the_references_have_changed(tmp_path):
    """It has no digests of the data, but a copy of the references."""
    (tmp_path / "raw").mkdir()
    (tmp_path / "raw/test.en").write_text("a\n")
    (tmp_path / "test.ref.en").write_text("a\n")
    (tmp_path / "test.out").write_text("")
    (tmp_path / "training.json").write_text('{"checkpoint": "sum"}')
    (tmp_path / "test.json").write_text('{"checkpoint": "sum", "bleu": 33.0, "generate": []}')
    run = Run("run", str(tmp_path), Corpus(str(tmp_path / "bin"), ("de", "en")), (), 1)
    (bleu,) = evaluations_of(["bleu"])
    assert Measurement(run, (bleu,)).result == {"checkpoint": "sum", "bleu": 33.0, "generate": []}
    (tmp_path / "raw/test.en").write_text("b\n")
    assert Measurement(run, (bleu,)).result is None
    (tmp_path / "raw/test.en").write_text("a\n")
    (tmp_path / "test.out").unlink()  # which differences would need
    assert Measurement(run, (bleu,)).result is None


def test_a_name_that_is_too_long_for_a_folder_is_refused_before_any_work(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    options = ["--mae-gate-dropout", "0." + "1" * 200]
    with pytest.raises(SystemExit, match="characters for the folder in OUT; give a --name of at most 200"):
        cli.main(["train-and-score", "FOLDER", "de", "en", "OUT", "mae_transformer", *options])
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("a/seed-1: fairseq-train failed", "a/seed-1: fairseq-train failed"),
        ("a/seed-1 needs a dictionary", "a/seed-1 needs a dictionary"),
        ("a/seed-10: fairseq-train failed", "a/seed-1: a/seed-10: fairseq-train failed"),
        ("the disk is full", "a/seed-1: the disk is full"),
    ],
)
def test_a_failure_names_its_run_once(message, named):
    assert name_failure("a/seed-1", UsageError(message)) == named
