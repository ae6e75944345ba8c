"""Test that docs/mechanisms has the options, defaults, arch sizes and names of the code."""

import csv
import re
from dataclasses import fields
from enum import Enum
from statistics import mean

import pytest

from modular_fairseq.analysis import ANALYSES
from modular_fairseq.models.dma_losses import DmaLossOptions
from modular_fairseq.models.ensemble import AttentionDropoutOptions, ResidualOptions
from modular_fairseq.models.options import PRESETS, flag
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq.runs.papers.table import COLUMNS
from tests.documents import names_in, resolve, tables
from tests.helpers import build_preset
from tests.places import ROOT

FOLDER = ROOT / "docs/mechanisms"
PAGES = {
    path.stem: re.sub(r"^```.*?^```$", "", path.read_text(), flags=re.MULTILINE | re.DOTALL)
    for path in sorted(FOLDER.glob("*.md"))
}
# Each page has a table of the options of these dataclasses.
OPTIONS = {
    "mae": [MECHANISMS["mae"].options],
    "dma": [MECHANISMS["dma"].options, DmaLossOptions],
    "multistream": [MECHANISMS["stream"].options],
    "tim": [MECHANISMS["tim"].options],
}
PLAIN = {
    "plain attention": "plain",
    "DMA, [to the letter](#where-the-defaults-depart-from-the-paper)": "to the letter",
}
DOTTED = re.compile(r"(?:modules|models|criterions|training|analysis|runs)(?:\.[A-Za-z]\w*)+")
SHARED = {True: {"share_all_embeddings": True}, False: {"share_decoder_input_output_embed": True}}
ARCHS = [
    (page, dict(zip(headings, row, strict=True)))
    for page, text in PAGES.items()
    for headings, rows in tables(text)
    if headings[0] == "arch"
    for row in rows
]


def defaults(options: type) -> dict[str, str]:
    """Return the default of each option, as a page shows it."""
    values = {f.name: f.default for f in fields(options) if f.name != "_name"}
    return {
        flag(name): str(value.value if isinstance(value, Enum) else value) for name, value in values.items()
    }


@pytest.mark.parametrize(("page", "options"), OPTIONS.items())
def test_tables_have_every_option_with_its_default(page, options):
    found = [rows for headings, rows in tables(PAGES[page]) if headings == ["option", "default", "effect"]]
    shown = [{names_in(option)[0]: names_in(default)[0] for option, default, _ in rows} for rows in found]
    assert shown == [defaults(each) for each in options]
    assert all(len(effect) > 10 for rows in found for _, _, effect in rows)


def test_every_mechanism_has_a_page():
    shown = [each for classes in OPTIONS.values() for each in classes]
    switches = [ResidualOptions, AttentionDropoutOptions]
    for mechanism in MECHANISMS.values():
        assert mechanism.options in [*shown, *switches], mechanism.name
    names = [name for options in switches for name in defaults(options)]
    assert all(name in PAGES["ensemble"] for name in names)


def test_every_arch_of_a_mechanism_is_shown():
    shown = {names_in(row["arch"])[0] for _, row in ARCHS}
    plain = {arch for arch in PRESETS if arch.startswith("modular_")}
    language_models = {arch for arch in PRESETS if "_lm" in arch}
    masked = {arch for arch in PRESETS if "_roberta" in arch}
    assert shown == set(PRESETS) - plain - language_models - masked
    for arch in (masked | language_models) - plain:
        assert f"`{arch}`" in PAGES[arch.partition("_")[0]]


@pytest.mark.parametrize(("page", "row"), ARCHS, ids=lambda value: value if isinstance(value, str) else "")
def test_an_arch_has_the_size_that_is_shown(page, row):
    [arch] = names_in(row["arch"])
    source, _, target = row["dictionary"].partition("/")
    types = (int(source), int(target or source))
    model = build_preset(arch, types, **SHARED[not target])
    encoder, decoder = model.cfg.encoder, model.cfg.decoder
    assert f"{sum(p.numel() for p in model.parameters()):,}" == row["parameters"]
    assert (str(encoder.embed_dim), str(encoder.ffn_embed_dim)) == (row["d"], row["f"])
    assert str(encoder.attention_heads) == str(decoder.attention_heads) == row["heads"]
    assert f"{encoder.layers}+{decoder.layers}" == row["layers"]
    assert str(PRESETS[arch].get("dma_clusters")) == row.get("clusters", "None")
    assert str(PRESETS[arch].get("tim_mechanisms")) == row.get("mechanisms", "None")
    streams = PRESETS[arch].get("streams", 1)
    assert "K(L)" not in row or row["K(L)"] == f"{streams}({(encoder.layers - 2) // streams})"


@pytest.mark.parametrize("page", PAGES)
def test_names_of_code_exist(page):
    names = [name for name in names_in(PAGES[page]) if DOTTED.fullmatch(name)]
    assert names or page == "index"
    for name in names:
        resolve(name)


def test_the_redundancy_of_dma_is_that_of_its_file():
    """The page shows means over seeds, and in brackets the mean difference from plain attention."""
    columns = ["perplexity", "LR_divergence_encoder", "HR_divergence_encoder", "BLEU"]
    runs: dict[str, dict[str, dict[str, dict[str, str]]]] = {}
    with open(FOLDER / "dma-redundancy.csv", encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file):
            runs.setdefault(row["size"], {}).setdefault(row["model"], {})[row["seed"]] = row
    shown = [rows for headings, rows in tables(PAGES["dma"]) if headings[-4:-1] == ["perplexity", "LR", "HR"]]
    shown += [rows for headings, rows in tables(PAGES["dma"]) if headings[-3:] == ["perplexity", "LR", "HR"]]
    assert len(shown) == 2
    for rows, models in zip(shown, reversed(runs.values()), strict=True):
        assert len(rows) == len(models)
        for name, *cells in rows:
            seeds = models[next((each for each in models if f"`{each}`" in name), PLAIN.get(name, name))]
            if cells[0] == ", ".join(seeds):
                cells = cells[1:]
            for cell, column in zip(cells, columns, strict=False):
                number, *difference = map(float, re.findall(r"[+-]?\d*\.\d+", cell))
                half = 0.5 * 10.0 ** -len(cell.split()[0].partition(".")[2]) + 1e-9
                assert abs(number - mean(float(row[column]) for row in seeds.values())) <= half, (name, cell)
                gaps = [
                    float(row[column]) - float(models["plain"][seed][column]) for seed, row in seeds.items()
                ]
                assert all(abs(each - mean(gaps)) <= half for each in difference), (name, cell)


def test_documents_name_every_column_and_every_analysis():
    tables_page, inside = ((ROOT / f"docs/{name}.md").read_text() for name in ("tables", "looking-inside"))
    exchanged = re.compile("[LH]R_(distance_encoder|divergence_all)")  # the page says how these are named
    assert len(COLUMNS) > 20
    assert [
        name for name in COLUMNS if f"`{name}`" not in tables_page and not exchanged.fullmatch(name)
    ] == []
    assert [name for name in ANALYSES if f"`{name}`" not in inside] == []
