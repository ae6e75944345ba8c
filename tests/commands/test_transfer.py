"""Test section 5.2 of the MAE paper: subsets of training data, the runs on them, and the figure."""

import json
import os
import re
import shutil
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from statistics import mean, stdev

import pytest
import yaml
from fairseq.data import indexed_dataset
from fairseq.tasks.translation import TranslationConfig, TranslationTask

from modular_fairseq.runs import subsets
from modular_fairseq.runs.config import read_config
from modular_fairseq.runs.papers import figure
from modular_fairseq.runs.papers import plan as planning
from modular_fairseq.runs.papers.table import read_table
from modular_fairseq.runs.sizes import on_subset, read_scale, scaled
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from tests import table_folders
from tests.fairseq_commands import binarize, write_reversal_corpus
from tests.places import ROOT
from tests.refusals import refusal

TABLE = ROOT / "configs/transfer/table.yaml"
PERCENT = (5, 10, 25, 50, 75)
PAIRS = 60


@pytest.fixture(scope="module")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("corpus")
    (folder / "raw").mkdir()
    write_reversal_corpus(folder / "raw", PAIRS)
    binarize(folder / "raw", folder / "bin")
    return folder / "bin"


@pytest.fixture
def corpus(original, tmp_path):
    """Make a copy of the binarized corpus that a test may damage."""
    shutil.copytree(original, tmp_path / "bin")
    return tmp_path / "bin"


def sentences(folder, language, split="train"):
    data = indexed_dataset.make_dataset(f"{folder}/{split}.de-en.{language}", "mmap")
    return [data[number].tolist() for number in range(len(data))]


def test_subsets_are_nested_aligned_and_of_their_sizes(corpus):
    cli.main(["subset", str(corpus), "--percent", *map(str, PERCENT)])
    whole = {language: sentences(corpus, language) for language in ("de", "en")}
    smaller = set()
    for percent in PERCENT:
        folder = f"{corpus}.{percent}-percent"
        rows = subsets.chosen(PAIRS, percent)
        assert len(rows) == len(set(rows)) == round(PAIRS * percent / 100) and list(rows) == sorted(rows)
        assert smaller < set(rows)
        smaller = set(rows)
        for language, lines in whole.items():
            assert sentences(folder, language) == [lines[row] for row in rows]
        for source, target in zip(sentences(folder, "de"), sentences(folder, "en"), strict=True):
            assert source[:-1] == target[-2::-1]  # a translation is the sentence backwards
        for file in (
            "dict.de.txt",
            "dict.en.txt",
            *(f"{split}.de-en.en.{kind}" for split in ("valid", "test") for kind in ("bin", "idx")),
        ):
            assert Path(folder, file).read_bytes() == (corpus / file).read_bytes()
        record = json.loads(Path(folder, "subset.json").read_text())
        assert (record["percent"], record["seed"], record["pairs"], record["of"]) == (
            percent,
            1,
            len(rows),
            PAIRS,
        )


@pytest.mark.parametrize("implementation", ["mmap", "cached", "lazy"])
def test_data_of_every_format_of_fairseq_has_the_same_subset(original, tmp_path, implementation):
    raw = original.parent / "raw"
    binarize(raw, tmp_path / "bin", "--dataset-impl", implementation)
    drawn, expected = (
        subsets.draw(str(folder), 50, out=str(tmp_path / "out" / kind))
        for kind, folder in (("this", tmp_path / "bin"), ("default", original))
    )
    for language in ("de", "en"):
        assert sentences(drawn, language) == sentences(expected, language)


def test_a_subset_of_the_present_folder_is_beside_it(tmp_path, monkeypatch):
    (tmp_path / "bin").mkdir()
    monkeypatch.chdir(tmp_path / "bin")
    assert subsets.name(".", 5) == str(tmp_path / "bin.5-percent") and subsets.name("a/", 5) == "a.5-percent"


def test_fairseq_trains_on_a_subset(corpus):
    plain = {"dataset_impl": None, "train_subset": "train", "required_seq_len_multiple": 1}
    config = TranslationConfig(
        data=subsets.draw(str(corpus), 25), source_lang="en", target_lang="de", **plain
    )
    task = TranslationTask.setup_task(config)
    for split, size in (("train", 15), ("valid", 12)):
        task.load_dataset(split)
        assert len(task.dataset(split)) == size
    assert [pair["source"].tolist() for pair in task.dataset("valid")] == sentences(corpus, "en", "valid")


def test_the_same_pairs_everywhere_and_others_for_another_seed():
    assert subsets.chosen(40, 25).tolist() == [2, 3, 19, 21, 22, 26, 27, 29, 31, 39]
    assert set(subsets.chosen(40, 25, seed=2)) != set(subsets.chosen(40, 25))
    assert len(subsets.chosen(160_239, 5)) == 8012 and len(subsets.chosen(1, 1)) == 1


def test_what_a_killed_one_left_is_cleared_and_what_is_there_stays(corpus):
    part = Path(f"{corpus}.50-percent.part")
    part.mkdir()
    (part / "train.de-en.de.bin").write_text("half")
    drawn = subsets.draw(str(corpus), 50)
    assert not part.exists() and len(sentences(drawn, "de")) == 30
    before = {path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(drawn).iterdir()}
    assert subsets.draw(f"{corpus}/", 50) == drawn
    assert {
        path.name: (path.stat().st_ino, path.stat().st_mtime_ns) for path in Path(drawn).iterdir()
    } == before
    elsewhere = subsets.draw(str(corpus), 50, out=str(corpus.parent / "new/folder"))
    assert elsewhere == f"{corpus.parent}/new/folder/bin.50-percent" and sentences(
        elsewhere, "en"
    ) == sentences(drawn, "en")


def test_a_failed_one_leaves_nothing(corpus, monkeypatch):
    monkeypatch.setattr(
        shutil, "copyfile", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device"))
    )
    with pytest.raises(UsageError, match="No space left on device"):
        subsets.draw(str(corpus), 50)
    assert os.listdir(corpus.parent) == ["bin"]


def refused(*words):
    return refusal(cli.main, [str(word) for word in words])


@pytest.mark.parametrize(
    ("spoil", "words", "sentence"),
    [
        (None, ["--percent", 0], "--percent 0: the numbers must be from 1 to 99"),
        (None, ["--percent", 5, 100], "--percent 100: the numbers must be from 1 to 99"),
        (None, ["--percent", 5, "--seed", -1], "--seed -1: the seed must be 0 or more"),
        (None, ["--percent", 5, "--seed", 2**32], "4294967296: the seed must be 0 or more, and below 2^32"),
        (shutil.rmtree, ["--percent", 5], "bin: No such file or directory"),
        (lambda bin: (bin / "dict.en.txt").unlink(), ["--percent", 5], "has no dict.en.txt"),
        (
            lambda bin: (bin / "train.de-en.en.bin").unlink(),
            ["--percent", 5],
            "train.de-en.en.idx is no index of fairseq, or has no .bin",
        ),
        (
            lambda bin: (bin / "train1.de-en.en.bin").write_text("x"),
            ["--percent", 5],
            "and no other training data",
        ),
        (
            lambda bin: [path.unlink() for path in bin.glob("train*")],
            ["--percent", 5],
            "the folder must have train.SOURCE-TARGET.SOURCE.idx",
        ),
        (
            lambda bin: os.truncate(bin / "train.de-en.en.bin", 20),
            ["--percent", 50],
            "train.de-en.en.bin is cut short",
        ),
        (
            lambda bin: [
                shutil.copy(bin / f"valid.de-en.de.{kind}", bin / f"train.de-en.de.{kind}")
                for kind in ("bin", "idx")
            ],
            ["--percent", 50],
            "its training data have 12 and 60 sentences",
        ),
    ],
)
def test_what_no_subset_can_be_drawn_of_is_one_sentence(corpus, spoil, words, sentence):
    if spoil:
        spoil(corpus)
    assert sentence in refused("subset", corpus, *words)
    assert {path.name for path in corpus.parent.iterdir()} <= {"bin"}


def test_another_subset_is_never_taken_for_this_one(corpus):
    drawn = Path(subsets.draw(str(corpus), 50))
    assert "was drawn with seed 1, not seed 2; remove it" in refused(
        "subset", corpus, "--percent", 50, "--seed", 2
    )
    drawn.rename(corpus.parent / "bin.25-percent")
    assert "bin.25-percent was drawn with percent 50, not percent 25; remove it" in refused(
        "subset", corpus, "--percent", 25
    )
    (corpus.parent / "bin.25-percent").rename(drawn)
    with open(corpus / "dict.en.txt", "a") as file:
        file.write("word 1\n")
    assert "was drawn from other files than those that are in " in refused("subset", corpus, "--percent", 50)
    (drawn / "subset.json").unlink()
    assert "exists and is no subset" in refused("subset", corpus, "--percent", 50)


def arguments(folder, **changes):
    paths = {"data": str(folder / "data"), "out": str(folder)}
    return Namespace(**table_folders.table_arguments(TABLE, **paths) | changes)


def test_the_commands_of_the_script(tmp_path):
    done = subprocess.run(
        [
            "bash",
            str(ROOT / "scripts/transfer.sh"),
            "--dry-run",
            "--data",
            str(tmp_path / "data"),
            "--out",
            str(tmp_path / "out"),
        ],
        capture_output=True,
        text=True,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert not list(tmp_path.iterdir())
    commands = [line for line in done.stdout.splitlines() if not line.startswith("#")]
    corpus = f"{tmp_path}/data/iwslt14.de-en.like-wmt14"
    for method, epochs in (("ftg", 10), ("ftg-plus", 10), ("ftall", 20)):
        for percent in PERCENT:
            run = f"{tmp_path}/out/paper/mae-7/{method}-{percent}/seed-1/"
            at = next(
                number
                for number, line in enumerate(commands)
                if line.startswith("fairseq-train") and f" --save-dir {run} " in line
            )
            assert commands[at - 1] == f"modular-fairseq subset {corpus}/bin --percent {percent}"
            assert commands[at].startswith(
                f"fairseq-train {corpus}/bin.{percent}-percent --task translation "
            )
            assert (
                f" --finetune-from-model {tmp_path}/out/paper/mae-2/mae-7/seed-1/averaged.pt " in commands[at]
            )
            assert f" --max-epoch {round(epochs * 100 / percent)} " in commands[at]
            assert f" --path {run}checkpoint_best.pt --gen-subset valid " in commands[at + 1]
            assert commands[at + 2] == f"cp {corpus}/raw/valid.de {run}valid.ref.de"
    # WMT14, SCRATCH, and fine-tuning.
    assert sum(line.startswith("fairseq-train ") for line in commands) == 1 + 1 + 3 + 15
    assert sum(line.startswith("modular-fairseq subset ") for line in commands) == 15


@pytest.mark.parametrize("scale", ["paper", "small", "smoke"])
def test_as_many_updates_whatever_the_data_and_the_last_epoch_is_saved(scale, tmp_path):
    for found in planning.plan(read_table(TABLE), arguments(tmp_path, scale=scale)).values():
        config = found.config
        whole = scaled(read_config(found.row.config), read_scale(TABLE, scale)).get("optimization.max_epoch")
        epochs, interval = config.get("optimization.max_epoch"), config.get("checkpoint.save_interval", 1)
        assert config.percent == found.row.percent
        assert epochs * config.percent / 100 == pytest.approx(whole, abs=config.percent / 200 * interval)
        assert epochs % interval == 0 and config.get("dataset.validate_interval", 1) == interval
        assert interval == 1 or interval * config.percent <= 10


def test_a_subset_of_a_config_is_another_run_of_the_same_corpus():
    config = read_config(ROOT / "configs/mae-7/ftg-plus.yaml")
    small = on_subset(config, 5)
    assert (small.name, small.get("task.data")) == (
        "mae-7/ftg-plus-5",
        "iwslt14.de-en.like-wmt14/bin.5-percent",
    )
    assert small.data == config.data
    assert small.corpus("data").whole == config.corpus("data").whole == f"data/{config.get('task.data')}"
    assert (
        small.get("optimization.max_epoch") == 200
        and small.get("checkpoint.save_interval") == small.get("dataset.validate_interval") == 2
    )
    assert (
        on_subset(config, 10).get("checkpoint.save_interval") == 1
        and on_subset(config, 75).get("checkpoint.save_interval") == 1
    )
    assert on_subset(config, 100) == config and config.get("checkpoint.save_interval") is None
    for limit, updates in ((None, 9), (0, 9), (8, 8), (10, 9)):  # the learning rate decays in 9 updates
        optimization = {**config.values["optimization"], "max_update": limit}
        values = {**config.values, "optimization": optimization, "lr_scheduler": {"total_num_update": 9}}
        limited = config._replace(values=values)
        assert on_subset(limited, 50).get("optimization.max_update") == updates


def test_each_share_is_compared_with_ftall_on_the_same_data():
    rows = {row.name: row for row in read_table(TABLE).rows}
    for percent in PERCENT:
        for method in ("ftg", "ftg-plus"):
            assert rows[f"{method}-{percent}"].baseline == f"ftall-{percent}"
            assert rows[f"{method}-{percent}"].percent == rows[f"ftall-{percent}"].percent == percent
    assert rows["ftg-plus"].baseline == "ftall" and rows["ftall"].baseline == "noft"


@pytest.fixture
def place(tmp_path):
    """Make a folder with a table of subsets and its figure in configs/mine."""
    (tmp_path / "configs/mine").mkdir(parents=True)
    table_folders.write_configs(tmp_path / "configs/mine")
    rows = [
        {"name": "untuned", "label": "NoFT", "pretrained": True},
        {"name": "gates", "label": "FTG"},
        *(
            {"name": f"gates-{percent}", "label": "FTG", "config": "gates.yaml", "percent": percent}
            for percent in (50, 5)
        ),
        {"name": "plain", "label": "SCRATCH"},
    ]
    table = {
        "title": "Mine",
        "columns": ["percent", "bleu", "updates"],
        "figure": ["bleu", "updates"],
        "rows": rows,
    }
    (tmp_path / "configs/mine/table.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    return tmp_path


def write_results(place):
    """Write results of two seeds, in which gates-50 lacks both, and plain lacks one."""
    return {
        (row, seed): table_folders.write_result(place, row, seed, spoilt)
        for row, seed, spoilt in (
            ("untuned", 1, 25),
            ("gates-5", 1, 20),
            ("gates-5", 2, 9),
            ("gates", 1, 3),
            ("gates", 2, 8),
            ("plain", 1, 9),
        )
    }


def test_the_figure_has_what_the_result_files_say(place):
    bleu = write_results(place)
    table = read_table(place / "configs/mine/table.yaml")
    found = planning.plan(table, Namespace(**vars(table_folders.arguments(place, "1,2"))))
    few, all_data = ([bleu[row, seed] for seed in (1, 2)] for row in ("gates-5", "gates"))
    drawn = figure.draw(table, found)
    axes, updates = drawn.axes
    flat = next(line for line in axes.lines if line.get_label() == "NoFT")
    assert list(flat.get_ydata()) == [bleu["untuned", 1]] * 2
    tuned, scratch = axes.containers
    assert tuned.get_label() == "FTG" and scratch.get_label() == "SCRATCH"
    points, _, (bars,) = tuned
    assert list(points.get_xdata()) == [5, 100] and list(points.get_ydata()) == [mean(few), mean(all_data)]
    for segment, values in zip(bars.get_segments(), (few, all_data), strict=True):
        assert segment[:, 1] == pytest.approx([mean(values) - stdev(values), mean(values) + stdev(values)])
    assert list(scratch[0].get_xdata()) == [100] and list(scratch[0].get_ydata()) == [bleu["plain", 1]]
    assert points.get_marker() != scratch[0].get_marker() and points.get_color() != scratch[0].get_color()
    assert (
        axes.get_xlabel() == "training data (%)"
        and axes.get_ylabel() == "BLEU (test)"
        and drawn.get_suptitle() == "Mine"
    )
    assert list(axes.get_xticks()) == [5, 100]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["NoFT", "FTG", "SCRATCH"]
    assert "scale smoke" in figure.draw(table, found, "smoke").get_suptitle()
    assert updates.get_ylabel() == "updates"
    counts = [
        [
            json.loads((place / f"results/paper/mine/{row}/seed-{s}/training.json").read_text())["updates"]
            for s in (1, 2)
        ]
        for row in ("gates-5", "gates")
    ]
    assert list(updates.containers[0][0].get_ydata()) == [mean(each) for each in counts]


def test_the_legend_tells_how_many_parameters_are_trained(place):
    write_results(place)
    path = place / "configs/mine/table.yaml"
    path.write_text(path.read_text().replace("- updates\nfigure", "- updates\n- trained_parameters\nfigure"))
    table = read_table(path)
    found = planning.plan(table, Namespace(**vars(table_folders.arguments(place, "1,2"))))
    trained = found["gates"].numbers("trained_parameters")[0]
    texts = [text.get_text() for text in figure.draw(table, found).axes[0].get_legend().get_texts()]
    assert f"FTG: {trained:,} parameters" in texts


def test_table_and_figure_from_result_files_alone(place, capsys):
    bleu = write_results(place)
    command = table_folders.command(place, "--seeds", "1,2")[3:]
    assert "gates-50, plain missing for seeds 1,2" in refused(*command)
    shown = capsys.readouterr().out
    lines = [re.split(r"\s{2,}", line.strip()) for line in shown.splitlines()]
    assert ["NoFT", "0 %", f"{bleu['untuned', 1]:.2f}", "0"] in lines and ["FTG", "50 %", "missing"] in lines
    few = [bleu["gates-5", seed] for seed in (1, 2)]
    assert ["FTG", "5 %", f"{mean(few):.2f} ± {stdev(few):.2f}", "15 ± 7"] in lines
    folder = place / "results/paper/mine"
    pictures = {kind: (folder / f"figure.{kind}").read_bytes() for kind in ("svg", "png")}
    assert pictures["svg"].startswith(b"<?xml") and pictures["png"].startswith(b"\x89PNG")
    refused(*command)
    assert {kind: (folder / f"figure.{kind}").read_bytes() for kind in ("svg", "png")} == pictures
    assert not list(folder.glob("*.tmp"))


def test_without_matplotlib_there_is_a_table_and_a_sentence(place, monkeypatch):
    write_results(place)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    sentence = refused(*table_folders.command(place)[3:])
    assert "gates-50 missing" in sentence and "the figure needs matplotlib; install it" in sentence
    assert (place / "results/paper/mine/table.txt").exists() and not (
        place / "results/paper/mine/figure.svg"
    ).exists()


def test_a_row_on_a_subset_through_the_real_commands(original, tmp_path, monkeypatch, capsys):
    """The subset is drawn, trained on and translated.

    Its row is compared with the row on all of the data, because both have the same references.
    """
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    shutil.copytree(original.parent, tmp_path / "data/toy.de-en")
    (tmp_path / "configs/mine").mkdir(parents=True)
    table_folders.write_configs(tmp_path / "configs/mine", optimization={"max_epoch": 2})
    rows = [
        {"name": "plain", "label": "Plain"},
        {"name": "half", "label": "Plain", "config": "plain.yaml", "percent": 50},
    ]
    table = {
        "title": "Mine",
        "baseline": "plain",
        "columns": ["percent", "bleu", "updates"],
        "figure": ["bleu", "updates"],
        "rows": rows,
    }
    (tmp_path / "configs/mine/table.yaml").write_text(yaml.safe_dump(table, sort_keys=False))
    done = table_folders.call(tmp_path, "--run")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "matplotlib" not in done.stderr and "fairseq.data" not in done.stderr
    whole, half = (tmp_path / "results/paper/mine" / name / "seed-1" for name in ("plain", "plain-50"))
    assert "bin.50-percent train de-en 30 examples" in (half / "train.log").read_text()
    updates = [json.loads((run / "training.json").read_text())["updates"] for run in (whole, half)]
    assert updates[1] == pytest.approx(updates[0], rel=0.25)
    assert (half / "test.ref.en").read_bytes() == (tmp_path / "data/toy.de-en/raw/test.en").read_bytes()
    line = next(line for line in done.stdout.splitlines() if " 50 % " in line)
    assert re.search(r"[+-]\d+\.\d+ .*\((p|seeds|[0-9.]+)", line), line  # a difference and its p
    assert (tmp_path / "results/paper/mine/figure.png").exists()
    shutil.rmtree(tmp_path / "data/toy.de-en/bin")
    cli.main(table_folders.command(tmp_path)[3:])  # results are enough
    assert capsys.readouterr().out == done.stdout
