"""Tests of `modular-fairseq report`.

Logs are read exactly, the page and the pictures show every number, and bad input is refused before anything
is written.
"""

import base64
import html.parser
import json
import os
import re
import shutil
import struct
import sys
import zlib
from importlib.resources import files

import numpy as np
import pytest

from modular_fairseq_cli import report
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.main import main
from modular_fairseq_cli.report.checkpoint import Checkpoint, read_analysis
from modular_fairseq_cli.report.page import (
    LEVELS,
    SCRIPTS,
    SIZE,
    build_page,
    content_of,
    largest_error,
    pack,
    page_of,
    quantize,
)
from modular_fairseq_cli.training_log import parse, read_log
from tests.refusals import refusal
from tests.report_folders import CLASSES, CROSS, DECODER, attention, module_list, write_analysis

STAMP = "2026-01-01 10:00:00 | INFO |"
SIMPLE = f"""{STAMP} fairseq_cli.train | begin validation on "valid" subset
{STAMP} train_inner | epoch 001:     50 / 178 loss=7.591, nll_loss=7.36, ppl=164.32, wps=4035.3, num_updates=50, lr=1e-05, kl=inf
{STAMP} train_inner | epoch 002:    1000 / 1178 loss=5.28, nll_loss=4.683, ppl=25.69, num_updates=1100, g_loss=2.393, lr=0.002
{STAMP} valid | epoch 001 | valid on 'valid' subset | loss 2.556 | nll_loss 1.4 | ppl 2.64 | gate_max_share 0.2864 | num_updates 178
{STAMP} train | epoch 001 | loss 5.094 | nll_loss 4.443 | ppl 21.74 | num_updates 178 | lr 0.00356 | gate_rare_experts 0
"""
JSON = f"""{STAMP} train_inner | {{"epoch": 1, "update": 0.281, "loss": "7.591", "ppl": "164.32", "num_updates": "50", "lr": "1e-05"}}
{STAMP} valid | {{"epoch": 1, "valid_loss": "2.556", "valid_ppl": "2.64", "valid_gate_entropy": "2.03", "valid_num_updates": "178"}}
{STAMP} train | {{"epoch": 1, "train_loss": "5.094", "train_ppl": "21.74", "train_num_updates": "178", "train_train_wall": "38"}}
"""


def log_of(folder, text):
    path = folder / "train.log"
    path.write_text(text)
    return path


def inner(update, loss):
    return f"{STAMP} train_inner | epoch 001:     {update} / 178 loss={loss}, num_updates={update}\n"


def content(page):
    """Return the data that the page holds."""
    return json.loads(
        re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)[1]
    )


def block(page, run, sentence):
    return zlib.decompress(
        base64.b64decode(re.search(rf'id="block-{run}-{sentence}">(.*?)</script>', page)[1])
    )


def test_every_asset_is_installed():
    """The installed files of assets/ are exactly those from which a page is made."""
    assert {path.name for path in (files("modular_fairseq_cli.report") / "assets").iterdir()} == {
        "page.html",
        "page.css",
        *SCRIPTS,
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("analysis")
    write_analysis(folder)
    return folder


def test_log_in_simple_format(tmp_path):
    curves = read_log(log_of(tmp_path, SIMPLE))
    assert curves["train_inner"]["loss"] == [(50, 7.591), (1100, 5.28)]
    assert curves["train_inner"]["lr"] == [(50, 1e-05), (1100, 0.002)]
    assert curves["train_inner"]["g_loss"] == [(1100, 2.393)]
    assert curves["valid"] == {
        "loss": [(178, 2.556)],
        "nll_loss": [(178, 1.4)],
        "ppl": [(178, 2.64)],
        "gate_max_share": [(178, 0.2864)],
    }
    assert curves["train"]["gate_rare_experts"] == [(178, 0.0)]
    # wps is not drawn, and kl is not finite.
    assert "wps" not in curves["train_inner"] and "kl" not in curves["train_inner"]


def test_log_in_json_format(tmp_path):
    curves = read_log(log_of(tmp_path, JSON))
    assert curves["train_inner"] == {"loss": [(50, 7.591)], "ppl": [(50, 164.32)], "lr": [(50, 1e-05)]}
    assert curves["valid"] == {"loss": [(178, 2.556)], "ppl": [(178, 2.64)], "gate_entropy": [(178, 2.03)]}
    assert curves["train"] == {"loss": [(178, 5.094)], "ppl": [(178, 21.74)]}


def test_log_of_fairseqs_own_progress_bars(tmp_path, caplog):
    """The log has the lines that fairseq's own classes print."""
    from fairseq.logging.meters import AverageMeter
    from fairseq.logging.progress_bar import JsonProgressBar, SimpleProgressBar

    meter = AverageMeter()
    meter.update(2.5)
    stats = {"loss": meter, "ppl": 5.66, "num_updates": 20}
    for kind in (SimpleProgressBar, JsonProgressBar):
        caplog.clear()
        bar = kind(list(range(10)), epoch=3, prefix=None, log_interval=10)
        for _ in bar:
            pass
        with caplog.at_level("INFO"):
            bar.log(stats, tag="train_inner", step=20)
            bar.print(stats, tag="valid", step=20)
        lines = [
            f"{STAMP} {tag} | {record.getMessage()}"
            for tag, record in zip(("train_inner", "valid"), caplog.records, strict=True)
        ]
        assert read_log(log_of(tmp_path, "\n".join(lines))) == {
            "train_inner": {"loss": [(20, 2.5)], "ppl": [(20, 5.66)]},
            "valid": {"loss": [(20, 2.5)], "ppl": [(20, 5.66)]},
        }, kind


def test_a_resumed_run_replaces_what_it_repeats(tmp_path):
    """The first run was killed after update 400; the second continued from update 250, with other steps."""
    text = "".join(inner(update, 5) for update in (100, 200, 300, 400)) + inner(260, 3) + inner(360, 2)
    assert read_log(log_of(tmp_path, text))["train_inner"]["loss"] == [(100, 5), (200, 5), (260, 3), (360, 2)]


def test_lines_of_other_things_are_no_numbers():
    assert parse(f"{STAMP} fairseq_cli.train | Namespace(loss=3, num_updates=4)")[1] == {}
    assert parse(f"{STAMP} train | {{broken json}}")[1] == {}
    assert parse("epoch 1 loss=3")[1] == {}


@pytest.mark.parametrize(
    "text, message",
    [
        (f"{STAMP} fairseq_cli.train | begin training\n", "has no numbers of a training"),
        ("Epoch 1: loss 3.2\n", "is in an unknown format"),
        ("", "is in an unknown format"),
    ],
)
def test_a_log_without_curves_is_refused(tmp_path, text, message):
    with pytest.raises(UsageError, match=message):
        read_log(log_of(tmp_path, text))


@pytest.mark.parametrize("levels", LEVELS)
def test_quantisation_is_as_near_as_it_says(levels):
    weights = np.concatenate([np.linspace(0, 1, 5001), np.geomspace(1e-6, 1, 5001)])
    error = np.abs((quantize(weights, levels) / levels) ** 2 - weights)
    assert error.max() <= largest_error(levels)
    assert error.max() > 0.9 * largest_error(levels)  # the bound is tight
    assert error[weights < 0.01].max() <= 0.11 * largest_error(levels)
    assert quantize(np.array([0, 1, 1.0005, -0.0001]), levels).tolist() == [0, levels, levels, 0]


def test_the_page_holds_every_number(folder, tmp_path):
    out = tmp_path / "report.html"
    log = log_of(tmp_path, SIMPLE)
    main(["report", str(folder), "--log", str(log), "--out", str(out)])
    page = out.read_text()
    [run] = content(page)["checkpoints"]
    given = json.loads((folder / "analysis.json").read_text())
    assert run["label"] == "mae_transformer_tiny_cpu"
    assert run["facts"]["parameters"] == 1054768
    assert run["log"]["train_inner"]["loss"] == [[50, 7.591], [1100, 5.28]]
    for name in ("gates", "experts", "redundancy", "clusters", "competition", "patterns"):
        assert flatten(run["analyses"][name]) == pytest.approx(flatten(given["analyses"][name]), rel=1e-5), (
            name
        )
    arrays = np.load(folder / "samples.npz")
    for i, shapes in enumerate(run["shapes"]):
        values, offset = np.frombuffer(block(page, 0, i), dtype=np.uint8), 0
        assert {name.replace("/", f"/{i}/", 1) for name in shapes} == {
            name for name in arrays.files if name.split("/")[1] == str(i)
        }
        for name, shape in shapes.items():
            source = arrays[name.replace("/", f"/{i}/", 1)]
            assert tuple(shape) == source.shape
            shown = (values[offset : offset + source.size].reshape(shape) / 255) ** 2
            assert np.abs(shown - source).max() <= largest_error(255)
            offset += source.size
        assert offset == len(values)


def flatten(data):
    """Return all numbers of nested lists and dictionaries in their order."""
    if isinstance(data, dict | list):
        return [
            number for part in (data.values() if isinstance(data, dict) else data) for number in flatten(part)
        ]
    return [data] if isinstance(data, int | float) else []


class Tags(html.parser.HTMLParser):
    def __init__(self, page):
        super().__init__()
        self.seen = []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        self.seen.append((tag, dict(attributes)))


def test_the_page_asks_for_nothing_outside_it(folder):
    page = build_page([read_analysis(folder)])
    tags = Tags(page).seen
    assert not [(tag, a) for tag, a in tags if {"src", "srcset"} & set(a) or (a.get("href", "#")[0] != "#")]
    assert not [tag for tag, _ in tags if tag in ("link", "img", "iframe", "object", "embed")]
    [policy] = [a["content"] for tag, a in tags if a.get("http-equiv") == "Content-Security-Policy"]
    assert policy.startswith("default-src 'none';") and "unsafe" not in policy
    assert not re.search(r"fetch\(|XMLHttpRequest|import\(|url\(", page)


def test_a_page_can_be_taken_apart_and_put_together(folder):
    made = build_page([read_analysis(folder)])
    found = content_of(made)
    assert set(found) == {"title", "data", "blocks"} and len(found["blocks"]) > 1
    assert found["data"] == content(made)
    assert page_of(json.loads(json.dumps(found))) == made
    with pytest.raises(ValueError, match="no page of modular-fairseq report"):
        content_of("<title>another page</title>")


def test_tokens_cannot_leave_their_place(tmp_path):
    hostile = ("</script><b>", "<!--", "]]>", "\u2028", "&lt;", "\ud800")
    write_analysis(tmp_path / "a", layers=1, sentences=1, first_tokens=hostile, parts="samples")
    page = build_page([read_analysis(tmp_path / "a")])
    assert content(page)["checkpoints"][0]["sentences"][0]["source"][:6] == list(hostile)
    page.encode()  # a lone surrogate in the text would not be UTF-8
    assert "<b>" not in [f"<{tag}>" for tag, _ in Tags(page).seen]
    assert page.count("</script>") == 3  # data, script, one block


def test_a_label_is_text(folder, tmp_path):
    """Text in UTF-8 cannot have a lone surrogate, which is a question mark in the title."""
    label = "<i>old & new</i>\ud800"
    main(["report", str(folder), "--label", label, "--out", str(tmp_path / "r.html")])
    page = (tmp_path / "r.html").read_text()
    assert "<title>&lt;i&gt;old &amp; new&lt;/i&gt;?</title>" in page
    assert content(page)["checkpoints"][0]["label"] == label


def test_numbers_of_a_training_that_diverged_are_left_out_and_this_is_said(tmp_path, capsys):
    stamp = "2026-01-01 10:00:00 | INFO | valid | epoch 001 | valid on 'valid' subset"
    values = enumerate((400, 90, "inf", "nan"), 1)
    lines = [f"{stamp} | loss {ppl} | ppl {ppl} | num_updates {100 * i}\n" for i, ppl in values]
    (tmp_path / "train.log").write_text("".join(lines))
    assert read_log(tmp_path / "train.log")["valid"]["ppl"] == [(100, 400), (200, 90)]
    said = (
        f"{tmp_path}/train.log: valid has ppl inf at update 300; its values that are not finite, at 2 updates"
    )
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("value", ["NaN", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_left_out(tmp_path, value):
    write_analysis(tmp_path, parts="redundancy")
    text = (tmp_path / "analysis.json").read_text()
    (tmp_path / "analysis.json").write_text(
        text.replace('"LR_distance_all": 0.5512', f'"LR_distance_all": {value}')
    )
    assert (
        content(build_page([read_analysis(tmp_path)]))["checkpoints"][0]["analyses"]["redundancy"][
            "LR_distance_all"
        ]
        is None
    )


def checkpoint_of(layers, heads, sentences, length, sharpness):
    rng = np.random.default_rng(1)
    maps = {
        f"attention/{m['module']}": attention(rng, heads, length, length, m["kind"] == DECODER, sharpness)
        for m in module_list(layers, heads)
    }
    return Checkpoint("big", {"arch": "big"}, {}, arrays=[maps] * sentences)


def test_a_six_layer_model_with_twenty_sentences_fits():
    """The maps are of random scores, which deflate least; the rest of such a page is under a megabyte."""
    page = build_page([checkpoint_of(6, 8, 20, 64, sharpness=1)])
    assert content(page)["levels"] == 255
    assert len(page) < SIZE - 1_000_000


def test_what_does_not_fit_is_kept_less_exactly(monkeypatch, capsys):
    checkpoint = checkpoint_of(2, 4, 4, 32, sharpness=1)
    whole = len(build_page([checkpoint]).encode())
    assert capsys.readouterr().err == ""
    monkeypatch.setattr("modular_fairseq_cli.report.page.SIZE", whole)
    assert content(build_page([checkpoint]))["levels"] == 255
    monkeypatch.setattr("modular_fairseq_cli.report.page.SIZE", whole - 1)
    page = build_page([checkpoint])
    data = content(page)
    assert data["levels"] == 127
    assert (
        "weights are exact to ± 0.008 instead of ± 0.004, to keep the page under" in capsys.readouterr().err
    )
    monkeypatch.setattr("modular_fairseq_cli.report.page.SIZE", 1000)
    assert content(build_page([checkpoint]))["levels"] == 31
    assert re.search(
        r"± 0.032 instead of ± 0.004, and the page still has 0.[12] MB, over the 0 MB; ",
        capsys.readouterr().err,
    )
    assert data["levels"] < 255 and data["error"] == pytest.approx(1 / data["levels"], abs=1e-6)
    assert max(block(page, 0, 0)) <= data["levels"]


def test_pack_keeps_order_and_shape():
    shapes, packed = pack({"a/x": np.array([[0.0, 1.0]]), "b/y": np.full((1, 2, 2), 0.25)}, 255)
    assert shapes == {"a/x": [1, 2], "b/y": [1, 2, 2]}
    assert list(zlib.decompress(base64.b64decode(packed))) == [0, 255, 128, 128, 128, 128]


def test_several_checkpoints_have_different_names(folder, tmp_path):
    other = tmp_path / "other"
    write_analysis(other, parts="gates")
    for given, names in (([], [folder.name, "other"]), (["--label", "old", "new"], ["old", "new"])):
        main(["report", str(folder), str(other), *given, "--out", str(tmp_path / "r.html")])
        assert [run["label"] for run in content((tmp_path / "r.html").read_text())["checkpoints"]] == names


def test_checkpoints_of_one_folder_name_are_named_by_what_differs(tmp_path):
    for name in ("a", "b"):
        write_analysis(tmp_path / name / "inside", parts="gates")
    main(
        ["report", str(tmp_path / "a/inside"), str(tmp_path / "b/inside"), "--out", str(tmp_path / "r.html")]
    )
    assert [run["label"] for run in content((tmp_path / "r.html").read_text())["checkpoints"]] == [
        "a/inside",
        "b/inside",
    ]


def test_the_page_says_no_folder(folder):
    [run] = content(build_page([read_analysis(folder)]))["checkpoints"]
    assert (run["facts"]["checkpoint"], run["facts"]["data"]) == ("averaged.pt", "bin")


def test_a_log_belongs_to_the_analysis_in_its_place(folder, tmp_path):
    main(
        [
            "report",
            str(folder),
            str(folder),
            "--label",
            "a",
            "b",
            "--log",
            str(log_of(tmp_path, JSON)),
            "--out",
            str(tmp_path / "r.html"),
        ]
    )
    first, second = content((tmp_path / "r.html").read_text())["checkpoints"]
    assert first["log"]["valid"]["ppl"] == [[178, 2.64]] and second["log"] == {}


def test_pictures_of_everything(folder, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    pictures = tmp_path / "pictures"
    arguments = [
        "--label",
        "../old $1",
        "--log",
        str(log_of(tmp_path, SIMPLE)),
        "--out",
        str(tmp_path / "r.html"),
        "--pictures",
        str(pictures),
    ]
    main(["report", str(folder), *arguments])
    subjects = ["assignment", "gate-entropy", "competition-entropy", "patterns", "redundancy-pairs"]
    subjects += ["competition-encoder", "competition-decoder"]
    subjects += [
        f"{what}-{kind.replace(' ', '-')}"
        for what in ("attention", "mask")
        for kind in ("encoder self-attention", DECODER, CROSS)
    ]
    names = {f"old-1-{subject}" for subject in subjects} | {
        "learning-curves",
        "gates-over-training",
        "losses-over-training",
        "redundancy",
    }
    assert {path.name for path in pictures.iterdir()} == {
        f"{name}.{kind}" for name in names for kind in ("svg", "png")
    }
    for path in pictures.iterdir():
        start = path.read_bytes()[:400]
        if path.suffix == ".png":
            assert start[:8] == b"\x89PNG\r\n\x1a\n" and min(struct.unpack(">II", start[16:24])) > 100
        else:
            assert b"<svg" in start or b"<!DOCTYPE svg" in start
    assert f"{pictures}: {2 * len(names)} files" in capsys.readouterr().out


def test_pictures_of_one_format_where_little_is_known(tmp_path):
    pytest.importorskip("matplotlib")
    write_analysis(tmp_path / "a", parts="gates")
    main(
        [
            "report",
            str(tmp_path / "a"),
            "--out",
            str(tmp_path / "r.html"),
            "--pictures",
            str(tmp_path / "p"),
            "--format",
            "svg",
        ]
    )
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        f"mae_transformer_tiny_cpu-{n}.svg" for n in ("assignment", "gate-entropy")
    ]


@pytest.fixture
def figures():
    """Return a function that draws the figures of checkpoints, keyed by name."""
    pictures = pytest.importorskip("modular_fairseq_cli.report.pictures")

    def draw(*checkpoints):
        return dict(pictures._figures(checkpoints))

    return draw


def some(label="a", log=None, **analyses):
    return Checkpoint(label, {"arch": label}, analyses, log=log or {})


def test_the_picture_of_gates_has_shares_in_percent(figures):
    modules = [
        {"module": "m1", "kind": CROSS, "entropy": 1.2, "uniform": 1.5, "shares": [0.1, 0.2, 0.7]},
        {"module": "m2", "kind": CROSS, "entropy": 0.4, "uniform": 0.7, "shares": [0.25, 0.75]},
    ]
    drawn = figures(some(gates={"modules": modules}))
    [ax] = drawn["a-assignment"].axes
    np.testing.assert_allclose(ax.images[0].get_array().filled(-1), [[10, 20, 70], [25, 75, -1]])
    assert [text.get_text() for text in ax.texts] == ["10.0", "20.0", "70.0", "25.0", "75.0"]
    [ax] = drawn["a-gate-entropy"].axes
    assert [bar.get_width() for bar in ax.patches] == [1.2, 0.4]
    assert [line.get_xdata()[0] for line in ax.lines] == [1.5, 0.7]


def test_the_picture_of_patterns_stacks_shares_in_their_order(figures):
    modules = [
        {"module": "m1", "shares": [0.1, 0.3, 0.6, 0, 0, 0]},
        {"module": "m2", "shares": [0.5, 0.25, 0, 0, 0, 0.25]},
    ]
    drawn = figures(some(patterns={"classes": CLASSES, "modules": modules}))["a-patterns"]
    [ax] = drawn.axes
    bars = [(bar.get_x(), bar.get_width()) for bar in ax.patches]
    np.testing.assert_allclose(bars[:6], [(0, 0.1), (0, 0.5), (0.1, 0.3), (0.5, 0.25), (0.4, 0.6), (0.75, 0)])
    assert bars[-1] == (0.75, 0.25)
    assert [text.get_text() for text in drawn.legends[0].get_texts()] == CLASSES


def test_the_picture_of_competition_has_percentiles_and_correlation(figures):
    percentiles = [
        {"5": 0.1, "25": 0.2, "50": 0.3, "75": 0.4, "95": 0.5},
        {"5": 0.05, "25": 0.1, "50": 0.2, "75": 0.3, "95": 0.6},
    ]
    layers = [
        {"module": f"encoder.layers.{i}", "side": "source", "uniform": 0.7, "percentiles": p}
        for i, p in enumerate(percentiles)
    ]
    layers[0] |= {"layer": 1, "stream": None}
    layers[1] |= {"layer": 2, "stream": 2}
    others = {name: value + 0.1 for name, value in percentiles[1].items()}
    layers.append({"module": "decoder.layers.1", "side": "target", "uniform": 0.8, "percentiles": others})
    correlation = [
        {
            "side": "source",
            "layers": ["encoder.layers.0", "encoder.layers.1"],
            "matrix": [[1, -0.25], [-0.25, None]],
        }
    ]
    drawn = figures(some(competition={"layers": layers, "correlation": correlation}))
    ax, target = drawn["a-competition-entropy"].axes
    assert (ax.get_title(), target.get_title()) == ("source", "target")
    assert [list(line.get_ydata()) for line in target.lines] == [
        *([value] for value in others.values()),
        [0.8],
    ]
    assert [label.get_text() for label in target.get_xticklabels()] == ["decoder.layers.1"]
    lines = {
        line.get_label(): list(line.get_ydata()) for line in ax.lines if not line.get_label().startswith("_")
    }
    assert lines == {
        "5 and 95 %": [0.1, 0.05],
        "25 and 75 %": [0.2, 0.1],
        "median": [0.3, 0.2],
        "uniform": [0.7] * 2,
    }
    assert [list(line.get_ydata()) for line in ax.lines[3:5]] == [[0.4, 0.3], [0.5, 0.6]]
    assert [line.get_linestyle() for line in ax.lines[:5]] == [":", "--", "-", "--", ":"]
    assert [text.get_text() for text in ax.get_legend().get_texts()] == [
        "5 and 95 %",
        "25 and 75 %",
        "median",
        "uniform",
    ]
    names = ["encoder, layer 1", "encoder, layer 2, stream 2"]
    assert [label.get_text() for label in ax.get_xticklabels()] == names
    [ax] = drawn["a-competition-correlation"].axes
    assert [label.get_text() for label in ax.get_yticklabels()] == names
    assert [text.get_text() for text in ax.texts] == ["1.00", "-0.25", "-0.25"]


def test_redundancy_that_is_not_known_has_no_bar(figures):
    types = [
        {
            "type": CROSS,
            "LR_distance": None,
            "HR_distance": 0.5,
            "modules": [{"module": name, "heads": 2} for name in ("m1", "m2")],
            "pairs_distance": np.linspace(0, 1, 16).reshape(4, 4).tolist(),
        }
    ]
    names = ("LR_distance_all", "HR_distance_all", "LR_divergence_encoder", "HR_divergence_encoder")
    first = {"types": types} | dict(zip(names, (None, 0.4, 0.8, None), strict=True))
    second = {"types": []} | dict(zip(names, (0.25, 0.75, 0.85, 0.9), strict=True))
    drawn = figures(some("a", redundancy=first), some("none"), some("b", redundancy=second))
    [ax] = drawn["redundancy"].axes
    np.testing.assert_array_equal(
        [bar.get_height() for bar in ax.patches], [np.nan, 0.4, 0.8, np.nan, 0.25, 0.75, 0.85, 0.9]
    )
    shown = ["", "0.400", "0.800", "", "0.250", "0.750", "0.850", "0.900"]
    assert [text.get_text() for text in ax.texts] == shown
    assert [label.get_text() for label in ax.get_xticklabels()] == [
        *("LR\ndistance, all", "HR\ndistance, all", "LR\ndivergence, encoder", "HR\ndivergence, encoder"),
    ]
    assert len({bar.get_facecolor() for bar in ax.patches}) == 2
    pairs = drawn["a-redundancy-pairs"].axes[0]
    assert pairs.get_title() == "cross-attention: LR –, HR 0.500"
    np.testing.assert_array_equal(pairs.images[0].get_array(), types[0]["pairs_distance"])
    for axis in (pairs.xaxis, pairs.yaxis):
        assert axis.get_ticklocs().tolist() == [0, 2]
        assert [label.get_text() for label in axis.get_ticklabels()] == ["m1", "m2"]


def test_timelines_of_plugins_have_pictures(figures, tmp_path):
    write_analysis(tmp_path, parts="plugin")
    checkpoint = read_analysis(tmp_path)
    [(name, drawn)] = figures(checkpoint).items()
    assert name == "mae_transformer_tiny_cpu-plugin-1"
    [timeline] = checkpoint.analyses["plugin"]["timelines"]
    images = [np.reshape(image["values"], (image["height"], image["width"])) for image in timeline["images"]]
    rows = [[row] for row in timeline["rows"].values()]
    shown = [ax.images[0] for ax in drawn.axes]
    for image, expected in zip(shown, [*images, *rows], strict=True):
        np.testing.assert_array_equal(image.get_array(), expected)
    assert [image.get_clim() for image in shown[len(images) :]] == [(0, 1)] * len(rows)
    assert [ax.get_ylabel() for ax in drawn.axes] == ["noisy", "clean", "speech", "c1"]


def test_the_pictures_of_activations_have_a_row_for_each_picture_and_one_of_the_mean(figures, tmp_path):
    write_analysis(tmp_path, parts="pictures")
    checkpoint = read_analysis(tmp_path)
    found = checkpoint.analyses["pictures"]
    axes = figures(checkpoint)["mae_transformer_tiny_cpu-activations"].axes
    shown = [ax.images[0].get_array() for ax in axes]
    for row, picture in enumerate(found["pictures"]):
        brightness, *activations = shown[3 * row : 3 * row + 3]
        np.testing.assert_array_equal(brightness[:, :, 0].ravel(), np.ravel(found["palette"])[picture])
        expected = [np.reshape(layer["single"][row][0], (3, 4)) for layer in found["layers"]]
        np.testing.assert_array_equal(activations, expected)
    means = [np.reshape(layer["mean"][0], (3, 4)) for layer in found["layers"]]
    np.testing.assert_array_equal(shown[-2:], means)


def test_the_pictures_of_curves_have_the_points_of_the_log(figures):
    logs = [{"train": {"kl": [(10, 2.0)]}, "valid": {"ppl": [(10, 30 - i), (20, 20 - i)]}} for i in range(6)]
    drawn = figures(*[some(f"run {i}", log) for i, log in enumerate(logs)])
    [ax] = drawn["learning-curves"].axes
    assert (ax.get_ylabel(), ax.get_yscale()) == ("Perplexity", "log")
    assert [list(line.get_ydata()) for line in ax.lines] == [[30 - i, 20 - i] for i in range(6)]
    assert [line.get_label() for line in ax.lines][0] == "run 0, validation"
    assert len({line.get_color() for line in ax.lines}) == len({line.get_marker() for line in ax.lines}) == 6
    assert [ax.get_ylabel() for ax in drawn["losses-over-training"].axes] == [
        "KL of the mixtures, nats per dimension"
    ]


def test_the_pictures_of_curves_name_the_parts_of_the_log(figures):
    """The training has its curve within epochs, or between epochs if the log has no other."""
    log = {
        "train_inner": {"ppl": [(5, 40), (10, 35)]},
        "train": {"ppl": [(10, 38)], "kl": [(10, 2.0)]},
        "valid": {"ppl": [(10, 30)]},
        "valid1": {"ppl": [(10, 25)]},
    }
    drawn = figures(some(log=log))

    def points(name):
        return [
            (line.get_label(), line.get_xydata().tolist()) for ax in drawn[name].axes for line in ax.lines
        ]

    assert points("learning-curves") == [
        ("a, training", [[5, 40], [10, 35]]),
        ("a, validation", [[10, 30]]),
        ("a, valid1", [[10, 25]]),
    ]
    assert points("losses-over-training") == [("a, training", [[10, 2.0]])]


def test_the_same_numbers_give_the_same_files_on_another_day(monkeypatch):
    pictures = pytest.importorskip("modular_fairseq_cli.report.pictures")
    drawn = []
    for date in ("0", "86400"):  # seconds
        monkeypatch.setenv("SOURCE_DATE_EPOCH", date)
        drawn.append(pictures.draw([some(log={"valid": {"ppl": [(10, 30), (20, 20)]}})], ("svg", "png")))
    assert len(drawn[0]) == 2 and drawn[0] == drawn[1]


def test_the_legend_has_the_lines_of_all_axes(figures):
    logs = {"mae": {"valid": {"g_loss": [(10, 2.0)]}}, "dma": {"valid": {"kl": [(10, 1.0)]}}}
    drawn = figures(*[some(label, log) for label, log in logs.items()])["losses-over-training"]
    assert [[line.get_label() for line in ax.lines] for ax in drawn.axes] == [
        ["mae, validation"],
        ["dma, validation"],
    ]
    legend = drawn.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["mae, validation", "dma, validation"]
    colours = [line.get_color() for ax in drawn.axes for line in ax.lines]
    assert [line.get_color() for line in legend.get_lines()] == colours


def test_each_label_has_a_file_name_of_its_own():
    pictures = pytest.importorskip("modular_fairseq_cli.report.pictures")
    assert pictures._file_names(["mae", "a/b", "a:b", "?"]) == ["mae", "a-b-2", "a-b-3", "checkpoint-4"]
    assert pictures._file_names(["a/b", "a:b", "a-b-1"]) == ["a-b-1", "a-b-2", "a-b-1-3"]


def test_the_page_knows_which_checkpoints_are_of_one_training():
    checkpoints = [some(label) for label in "abcd"]
    for checkpoint, path in zip(checkpoints, ("x/1.pt", "y/1.pt", "x/2.pt"), strict=False):
        checkpoint.facts["checkpoint"] = path
    found = content_of(build_page(checkpoints))["data"]["checkpoints"]
    assert [each["training"] for each in found] == [0, 1, 0, 3]
    assert "x/" not in json.dumps(found)


def test_one_training_is_drawn_once(figures):
    log, other = {"valid": {"ppl": [(10, 30), (20, 20)]}}, {"valid": {"ppl": [(10, 25)]}}
    [ax] = figures(some("last", log), some("none"), some("else", other), some("averaged", dict(log)))[
        "learning-curves"
    ].axes
    assert [line.get_label() for line in ax.lines] == ["last and averaged, validation", "else, validation"]
    assert [list(line.get_ydata()) for line in ax.lines] == [[30, 20], [25]]


def test_pictures_call_places_as_the_page_does(figures, tmp_path):
    write_analysis(tmp_path, 4, 3, 1, streams=2)
    drawn = figures(read_analysis(tmp_path))
    inner = [
        "layer 1",
        "layer 2, stream 1",
        "layer 2, stream 2",
        "layer 3, stream 1",
        "layer 3, stream 2",
        "layer 4",
    ]
    encoder = [f"encoder, {where}" for where in inner]

    def names(subject):
        return [
            label.get_text()
            for label in drawn[f"mae_transformer_tiny_cpu-{subject}"].axes[0].get_yticklabels()
        ]

    for subject in ("assignment", "gate-entropy", "patterns"):
        assert names(subject)[:6] == encoder
        assert [name for name in names(subject) if "cross" in name] == [
            f"cross-attention, layer {i}" for i in (1, 2, 3, 4)
        ]
    assert names("redundancy-pairs") == names("attention-encoder-self-attention") == inner
    assert names("competition-encoder") == encoder[1:]
    assert drawn["mae_transformer_tiny_cpu-competition-encoder"].axes[1].get_ylabel() == "mechanism 1"


def test_the_picture_of_a_sentence_has_roots_of_weights_and_tokens_as_they_are(figures):
    checkpoint = some()
    checkpoint.modules = [
        {
            "module": "encoder.layers.0.self_attn",
            "kind": "encoder self-attention",
            "layer": 1,
            "stream": None,
            "heads": 2,
        }
    ]
    checkpoint.competition_layers = ["encoder.layers.0", "decoder.layers.0"]
    checkpoint.sentences = [{"source": ["$5", "</s>"], "target_in": ["</s>", "$6"], "target": ["$6", "</s>"]}]
    maps = {
        "attention": np.array([[[0.25, 0.75], [1, 0]], [[0.5, 0.5], [0.04, 0.96]]]),
        "mask": np.array([[[0.64, 0.36], [0.16, 0.84]], [[0.09, 0.91], [0, 1]]]),
    }
    strips = {"encoder": np.array([[0.3, 0.7], [0.6, 0.4]]), "decoder": np.array([[0.1, 0.9], [0.8, 0.2]])}
    checkpoint.arrays = [
        {
            **{f"{what}/encoder.layers.0.self_attn": heads for what, heads in maps.items()},
            **{f"competition/{side}.layers.0": strip for side, strip in strips.items()},
        }
    ]
    drawn = figures(checkpoint)
    for what, heads in maps.items():
        mosaic = drawn[f"a-{what}-encoder-self-attention"].axes[0].images[0].get_array().filled(-1)
        np.testing.assert_allclose(mosaic[:2, :2], heads[0] ** 0.5)
        np.testing.assert_allclose(mosaic[:2, 3:5], heads[1] ** 0.5)
        assert (mosaic[2:] == -1).all() and (mosaic[:, 2] == -1).all()
    for side, words in (("encoder", [r"\$5", "</s>"]), ("decoder", ["</s>", r"\$6"])):
        competition = drawn[f"a-competition-{side}"].axes[0]
        np.testing.assert_array_equal(competition.images[0].get_array(), [strips[side][:, 0]])
        assert [label.get_text() for label in competition.get_xticklabels()] == words


# What is removed from a file, by the name of the test case: FILE/KEY/KEY/...
LEFT_OUT = {
    **{
        f"no modules in {name}": f"analysis.json/analyses/{name}/modules"
        for name in ("gates", "experts", "clusters", "patterns")
    },
    "no rows": "analysis.json/analyses/single-expert/rows",
    "no layers": "analysis.json/analyses/competition/layers",
    "no name of a layer": "analysis.json/analyses/competition/layers/0/module",
    "no types": "analysis.json/analyses/redundancy/types",
    "no sentences": "samples.json/sentences",
    "no target": "samples.json/sentences/0/target_in",
    "no modules": "samples.json/modules",
}


def change(file, at=None, offset=0, to=None):
    """Change one byte of a file: the one in the middle, or the one `offset` bytes after the bytes `at`."""
    content = bytearray(file.read_bytes())
    place = (content.index(at) if at else len(content) // 2) + offset
    content[place] = content[place] ^ 0xFF if to is None else to
    file.write_bytes(content)


def damage(folder, what):
    write_analysis(
        folder, parts="gates experts single-expert redundancy clusters competition patterns samples"
    )
    if what == "no folder":
        return folder / "missing"
    if what == "another folder":
        (folder / "analysis.json").unlink()
    elif what == "format":
        (folder / "analysis.json").write_text('{"format": 9, "analyses": {}}')
    elif what == "no format":
        (folder / "analysis.json").write_text('{"bleu": 3}')
    elif what == "no json":
        (folder / "analysis.json").write_text('{"format": 2, "ana')
    elif what == "no arch":
        (folder / "analysis.json").write_text('{"format": 2, "analyses": {}}')
    elif what == "nothing":
        (folder / "analysis.json").write_text('{"format": 2, "arch": "x", "analyses": {}}')
        (folder / "samples.json").unlink()
    elif what == "no arrays":
        (folder / "samples.npz").unlink()
    elif what == "cut arrays":
        (folder / "samples.npz").write_bytes((folder / "samples.npz").read_bytes()[:3000])
    elif what == "no archive":
        with open(folder / "samples.npz", "wb") as file:
            np.save(file, np.ones((2, 2)))
    elif what == "bytes":
        change(folder / "samples.npz")
    elif what == "first block":
        # The block begins after the name and the extra field of zip64.
        change(folder / "samples.npz", at=b".npy", offset=4 + 20, to=0xFF)
    elif what == "compression":
        for start in (b"PK\x03\x04", b"PK\x01\x02"):
            change(folder / "samples.npz", at=start, offset=8 if start[2] == 3 else 10, to=99)
    elif what == "before the first":
        np.savez(folder / "samples.npz", **{"attention/-1/x": np.ones((1, 2, 2))})
    elif what == "diverged":
        with np.load(folder / "samples.npz") as archive:
            arrays = dict(archive)
        arrays["attention/1/encoder.layers.0.self_attn"][0, 1, 1] = np.nan
        np.savez(folder / "samples.npz", **arrays)
    elif what in LEFT_OUT:
        file, *path, last = LEFT_OUT[what].split("/")
        part = content = json.loads((folder / file).read_text())
        for key in path:
            part = part[0 if key == "0" else key]
        del part[last]
        (folder / file).write_text(json.dumps(content))
    elif what == "other arrays":
        np.savez(folder / "samples.npz", **{"attention/9/x": np.ones((1, 2, 2))})
    elif what == "unreadable":
        (folder / "samples.npz").unlink()
        (folder / "samples.npz").mkdir()
    elif what == "one dimension":
        np.savez(folder / "samples.npz", **{"attention/0/x": np.ones(2)})
    elif what in ("too large", "negative"):
        value = 7.0 if what == "too large" else -1.0
        np.savez(folder / "samples.npz", **{"attention/0/x": np.full((1, 2, 2), value)})
    elif what == "format of samples":
        (folder / "samples.json").write_text('{"format": "2b"}')
    return folder


@pytest.mark.parametrize(
    "what, message",
    [
        ("no folder", "there is no such folder"),
        (
            "another folder",
            "analysis.json is missing; give a folder that `modular-fairseq analyze --out` wrote",
        ),
        ("format", "has format 9, and this version reads format 2"),
        ("no format", "names no format"),
        ("no json", "is not JSON, or is cut short"),
        ("no arch", "has no analyses or no arch"),
        ("nothing", "has no analysis; write the folder again"),
        ("no arrays", "samples.npz is missing"),
        ("cut arrays", "is damaged, or does not belong to these sentences"),
        ("other arrays", "is damaged, or does not belong to these sentences"),
        ("no archive", "it is not an archive of arrays"),
        ("bytes", "is damaged, or does not belong to these sentences"),
        ("first block", "invalid block type"),
        ("compression", "compression method is not supported"),
        ("before the first", "belongs to a sentence that samples.json does not have"),
        (
            "diverged",
            "attention/encoder.layers.0.self_attn of sentence 2 has values that are not numbers (NaN)",
        ),
        *(
            (f"no modules in {name}", f'{name} has no list "modules"')
            for name in ("gates", "experts", "clusters", "patterns")
        ),
        ("no layers", 'competition has no list "layers" of entries with a "module"'),
        ("no name of a layer", 'competition has no list "layers" of entries with a "module"'),
        ("no rows", 'single-expert has no list "rows" of entries with a "inference"'),
        ("no types", 'redundancy has no list "types" of entries with a "type"'),
        ("no sentences", 'samples.json has no list "sentences"'),
        ("no target", 'samples.json has no list "sentences" of entries with a "target_in"'),
        ("no modules", 'samples.json has no list "modules"'),
        ("unreadable", "samples.npz: cannot be read (Is a directory); make it readable"),
        *(
            (what, "attention/0/x is not a table of numbers from 0 to 1")
            for what in ("one dimension", "too large", "negative")
        ),
        ("format of samples", "has format 2b"),
    ],
)
def test_damaged_folders_are_refused(tmp_path, what, message):
    folder = damage(tmp_path / "a", what)
    refused(["report", str(folder), "--out", str(tmp_path / "r.html")], message, tmp_path)


def test_a_missing_folder_is_one_complaint(tmp_path):
    with pytest.raises(
        UsageError,
        match=f"^{re.escape(str(tmp_path))}/x: there is no such folder; give one that `modular-fairseq "
        "analyze --out` wrote$",
    ):
        read_analysis(tmp_path / "x")


def refused(arguments, message, folder):
    """Check that the command ends with one sentence, and writes no file."""
    before = sorted(folder.rglob("*"))
    assert message in refusal(main, arguments)
    assert sorted(folder.rglob("*")) == before


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--out", "{tmp}"], "is a folder; give the name of a file"),
        (["--out", "{tmp}/no/r.html"], "does not exist"),
        (["--out", "{tmp}/r.html", "--pictures", "{tmp}/file"], "is a file; give a folder"),
        (["--out", "{tmp}/r.html", "--pictures", "{tmp}/no/p"], "does not exist"),
        (["--out", "{tmp}/r.html", "--format", "svg"], "--format has no effect without --pictures"),
        (["--out", "{tmp}/r.html", "--label", "a", "b"], "2 name(s) for 1 ANALYSIS"),
        (["--out", "{tmp}/r.html", "--log", "{tmp}/file", "{tmp}/file"], "2 files for 1 ANALYSIS"),
        (["--out", "{tmp}/r.html", "--log", "{tmp}/file"], "is in an unknown format"),
        (["--out", "{tmp}/r.html", "--log", "{tmp}/missing"], "cannot be read (No such file or directory)"),
    ],
)
def test_wrong_options_are_refused(folder, tmp_path, arguments, message):
    (tmp_path / "file").write_text("no log")
    refused(
        ["report", str(folder), *[argument.format(tmp=tmp_path) for argument in arguments]], message, tmp_path
    )


def test_pictures_without_matplotlib_are_refused(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "modular_fairseq_cli.report.pictures", raising=False)
    monkeypatch.delattr(report, "pictures", raising=False)
    arguments = ["--out", str(tmp_path / "r.html"), "--pictures", str(tmp_path / "pictures")]
    refused(["report", str(folder), *arguments], "--pictures needs matplotlib (", tmp_path)


TRAINED = """2026-01-01 10:00:00 | INFO | fairseq_cli.train | {{'model': Namespace(arch='{arch}', seed=1)}}
2026-01-01 10:00:00 | INFO | fairseq_cli.train | num. shared model params: 1,234 (num. trained: 1,000)
"""


def trained(folder, arch="mae_transformer_lm"):
    folder.mkdir(parents=True)
    return log_of(folder, TRAINED.format(arch=arch) + SIMPLE)


def test_trainings_are_shown_from_their_logs_alone(tmp_path):
    """The page and the pictures have their curves; the names tell the folders apart."""
    logs = [trained(tmp_path / row / "seed-1") for row in ("base", "mae-7")]
    out, pictures = tmp_path / "r.html", tmp_path / "pictures"
    main(["report", "--log", *map(str, logs), "--out", str(out), "--pictures", str(pictures)])
    runs = content(out.read_text())["checkpoints"]
    assert [run["label"] for run in runs] == ["base/seed-1", "mae-7/seed-1"]
    assert runs[0]["facts"] == {"arch": "mae_transformer_lm", "parameters": 1234}
    assert runs[1]["log"]["train_inner"]["loss"] == [[50, 7.591], [1100, 5.28]]
    assert (pictures / "learning-curves.png").exists() and (pictures / "gates-over-training.svg").exists()


@pytest.mark.parametrize(
    ("folders", "archs", "labels"),
    [
        (["a"], ["plain"], ["plain"]),
        (["a", "b"], ["plain", "mae"], ["plain", "mae"]),
        (["a/x", "b/y"], ["mae", "mae"], ["x", "y"]),
        (["a/x", "b/x"], ["mae", ""], ["a/x", "b/x"]),
    ],
)
def test_trainings_are_named_by_arch_or_folder(tmp_path, folders, archs, labels):
    logs = [trained(tmp_path / folder, arch) for folder, arch in zip(folders, archs, strict=True)]
    main(["report", "--log", *map(str, logs), "--out", str(tmp_path / "r.html")])
    assert [run["label"] for run in content((tmp_path / "r.html").read_text())["checkpoints"]] == labels


def test_logs_of_one_folder_have_their_own_names(tmp_path):
    one = trained(tmp_path / "a")
    other = one.with_name("other.log")
    other.write_text(one.read_text())
    main(["report", "--log", str(one), str(other), "--out", str(tmp_path / "r.html")])
    assert [run["label"] for run in content((tmp_path / "r.html").read_text())["checkpoints"]] == [
        "train.log",
        "other.log",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "there is nothing to show; give ANALYSIS folders, or the logs of trainings by --log"),
        (["--log", *["{log}"] * 7], "7 logs are too many to tell apart; give at most 6"),
        (["--log", "{log}", "--label", "a", "b"], "2 name(s) for 1 log(s); give one for each"),
        (["--log", "{log}", "--label", ""], "two checkpoints have the same name, or one has none"),
        (["--log", "{log}", "{log}"], "two checkpoints have the same name, or one has none"),
    ],
)
def test_wrong_logs_are_refused(tmp_path, arguments, message):
    log = trained(tmp_path / "run")
    words = [argument.format(log=log) for argument in arguments]
    refused(["report", *words, "--out", str(tmp_path / "r.html")], message, tmp_path)


def test_one_name_twice_is_refused(folder, tmp_path):
    refused(
        ["report", str(folder), str(folder), "--out", str(tmp_path / "r.html")],
        "two checkpoints have the same name",
        tmp_path,
    )


def test_more_than_six_are_refused(folder, tmp_path):
    refused(
        ["report", *[str(folder)] * 7, "--out", str(tmp_path / "r.html")],
        "7 ANALYSIS folders are too many to tell apart",
        tmp_path,
    )


def test_a_picture_of_unknown_format_is_refused(folder, tmp_path, capsys):
    with pytest.raises(SystemExit):
        main(
            [
                "report",
                str(folder),
                "--out",
                str(tmp_path / "r.html"),
                "--pictures",
                str(tmp_path / "p"),
                "--format",
                "pdf",
            ]
        )
    assert "pdf: use svg, png or svg,png" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["analysis.json", "train.log"])
def test_a_file_that_is_read_is_not_replaced(folder, tmp_path, name):
    shutil.copytree(folder, tmp_path / "inside")
    log_of(tmp_path / "inside", SIMPLE)
    [path] = (tmp_path / "inside").glob(name)
    before = path.read_bytes()
    log = ["--log", str(path)] if path.suffix == ".log" else []
    words = ["report", str(tmp_path / "inside"), *log, "--out", str(path)]
    refused(words, f"{name} is a file that the report is made of; give another file", tmp_path)
    assert path.read_bytes() == before


def test_an_old_report_survives_a_failure(folder, tmp_path, monkeypatch):
    (tmp_path / "r.html").write_text("old")

    def fail(*args):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    refused(
        ["report", str(folder), "--out", str(tmp_path / "r.html")],
        "cannot be written (No space left on device)",
        tmp_path,
    )
    assert (tmp_path / "r.html").read_text() == "old"
