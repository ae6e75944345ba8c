"""Test learning curves over seeds, from logs alone."""

import csv
import errno
from pathlib import Path

import pytest
from matplotlib.axes import Axes
from scipy.stats import t

from modular_fairseq_cli.curves import average
from modular_fairseq_cli.main import main

STAMP = "2026-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset"


@pytest.fixture
def logs(tmp_path):
    """Write logs of three seeds of "a", which end at the same value, and of one seed of "b"."""
    values = {"a1": [9, 6, 5, 3], "a2": [8, 7, 4, 3], "a3": [10, 5, 3, 3], "b1": [9, 8]}
    for name, numbers in values.items():
        lines = [f"{STAMP} | ppl {ppl} | num_updates {10 * n}" for n, ppl in enumerate(numbers, 1)]
        (tmp_path / name).write_text("\n".join(lines) + "\n")
    return {name: str(tmp_path / name) for name in values}


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def test_curves_are_means_with_intervals_of_student(logs, tmp_path, capsys):
    systems = ["--system", "A", logs["a1"], logs["a2"], logs["a3"], "--system", "B", logs["b1"]]
    main(["curves", *systems, "--out", str(tmp_path / "out")])
    assert capsys.readouterr().out == f"{tmp_path}/out.tsv, {tmp_path}/out.svg, {tmp_path}/out.png\n"
    found = rows(tmp_path / "out.tsv")
    assert [(row["system"], row["update"], float(row["mean"]), row["seeds"]) for row in found] == [
        *(("A", "10", 9.0, "3"), ("A", "20", 6.0, "3"), ("A", "30", 4.0, "3"), ("A", "40", 3.0, "3")),
        *(("B", "10", 9.0, "1"), ("B", "20", 8.0, "1")),
    ]
    half = t.ppf(0.975, 2) / 3**0.5  # the standard deviation of the first points of A is 1
    assert float(found[1]["low"]) == pytest.approx(6 - half)
    assert float(found[1]["high"]) == pytest.approx(6 + half)
    assert found[3]["low"] == found[3]["high"] == found[4]["low"] == found[4]["high"] == ""
    assert "A (3)" in (tmp_path / "out.svg").read_text() and (tmp_path / "out.png").stat().st_size > 1000


def test_only_updates_of_all_seeds_count():
    assert [(point.update, point.mean) for point in average([{1: 1.0, 3: 2.0}, {2: 5.0, 3: 4.0}])] == [
        (3, 3.0)
    ]


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--system", "A"], "--system A has no log; give each system once"),
        (["--system", "A", "a1", "--system", "A", "a2"], "--system A is given twice"),
        (
            ["--system", "A", "a1", "./a1", "a2"],
            "--system A: a1 is given twice; give the log of each seed once",
        ),
        (["--system", "A", "a1", "--number", "bleu"], "has no bleu of valid; it has valid ppl"),
        (["--system", "A", "a1", "--split", "train"], "has no ppl of train; it has valid ppl"),
        (["--system", "A", "missing"], "missing: cannot be read"),
        (["--system", "A", "a1", "c1"], "--system A: its logs have no update in common"),
        (
            ["--system", "a1", "a2"],
            "--system a1: the first word is the name of the system, and this is a file",
        ),
        (["--system", "A", "a1", "--out", "./"], "--out ./: give the beginning of the names of the files"),
        (["--system", "A", "a1", "--out", "no/where"], "--out no/where: the files cannot be written"),
    ],
)
def test_what_cannot_be_drawn_is_refused(logs, tmp_path, monkeypatch, words, sentence):
    (tmp_path / "c1").write_text(f"{STAMP} | ppl 3 | num_updates 7\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as error:
        main(["curves", *words])
    assert sentence in str(error.value)
    assert not list(tmp_path.glob("*.svg"))


@pytest.mark.parametrize(("number", "scale"), [("ppl", "log"), ("loss", "linear")])
def test_the_interval_is_a_band_and_the_axis_of_perplexities_is_logarithmic(number, scale, logs, monkeypatch):
    drawn = []
    monkeypatch.setattr(Axes, "legend", lambda axes: drawn.append(axes))
    for path in map(Path, logs.values()):
        path.write_text(path.read_text().replace("ppl", number))
    out = Path(logs["a1"]).with_name("out")
    systems = ["--system", "A", logs["a1"], logs["a2"], "--system", "B", logs["b1"]]
    main(["curves", *systems, "--number", number, "--out", str(out)])
    (axes,) = drawn
    assert axes.get_yscale() == scale
    (band,) = axes.collections
    (outline,) = band.get_paths()
    expected = {
        (int(row["update"]), float(row[end]))
        for row in rows(f"{out}.tsv")
        for end in ("low", "high")
        if row[end]
    }
    assert {tuple(vertex) for vertex in outline.vertices} == expected and len(expected) == 6


def test_a_name_is_no_formula(logs, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    names = []
    monkeypatch.setattr(Axes, "legend", lambda axes: names.extend(axes.get_legend_handles_labels()[1]))
    main(["curves", "--system", r"$\x$", "a1", "a2", "--system", "_hidden", "b1"])
    assert Path("curves.svg").exists() and names == [r"\$\x\$ (2)", "\u200b_hidden (1)"]


def test_a_figure_is_written_whole_or_not_at_all(logs, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    main(["curves", "--system", "A", "a1", "a2"])
    before = Path("curves.svg").read_bytes()

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with (
        monkeypatch.context() as disk,
        pytest.raises(SystemExit, match="--out curves: the files cannot be w"),
    ):
        disk.setattr("os.replace", full)
        main(["curves", "--system", "A", "a1"])
    assert Path("curves.svg").read_bytes() == before
    assert not list(tmp_path.glob("*.tmp"))
    Path("folder.svg").mkdir()
    with pytest.raises(SystemExit, match="--out folder: the files cannot be written .Is a directory.; give"):
        main(["curves", "--system", "A", "a1", "--out", "folder"])
