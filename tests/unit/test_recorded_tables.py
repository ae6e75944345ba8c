"""Compare the tables of docs/speech.md and docs/toolkits.md with the records in results/."""

import json
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from scipy.stats import t

from tests.places import ROOT
from tests.scripts import script

LABELS = {"noisy": "noisy", "plain": "plain", "tim-nocomp": "TIM without competition", "tim": "TIM"}


def rows_of(text: str) -> list[list[str]]:
    """Return the cells of the rows of all tables in a Markdown text, without their heads."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)
    ]
    rules = [index for index, row in enumerate(rows) if all(re.fullmatch(":?-+:?", cell) for cell in row)]
    return [row for index, row in enumerate(rows) if index not in rules and index + 1 not in rules]


@pytest.fixture
def speech():
    evidence = script("speech_evidence")
    claims = yaml.safe_load((ROOT / "results/speech/claims.yaml").read_text())
    records = evidence.comparison_of(claims).records()
    assert len(records) == len(claims["rows"]) * len(claims["seeds"])
    return evidence, claims, records


def test_the_page_of_speech_has_the_scores_of_the_records(speech):
    evidence, claims, records = speech
    page = rows_of((ROOT / "docs/speech.md").read_text())
    part, shown = "", {}
    for row in page:
        if named := re.search(r"\(`(\S+)`, \d+\)", row[0]):
            part = named[1]
        if len(row) == 5 and row[1] in LABELS.values():
            shown[part, row[1]] = row[2:]
    wanted = {}
    for row in rows_of(evidence.scores(records, claims)):
        pesq, si_sdr, stoi = (float(row[index]) for index in (3, 5, 6))
        if row[0] != "valid":
            wanted[row[0], LABELS[row[1]]] = pesq, si_sdr, stoi
    assert shown.keys() == wanted.keys()
    for key, cells in shown.items():
        for cell, value, rounding in zip(cells, wanted[key], (0.005, 0.05, 0.0005), strict=True):
            assert float(cell) == pytest.approx(value, abs=rounding + 0.0005), (key, cell, value)


def test_the_page_of_speech_has_the_intervals_of_all_claims(speech):
    evidence, claims, records = speech
    page = rows_of((ROOT / "docs/speech.md").read_text())
    wanted = [row[3:5] for row in rows_of(evidence.claimed(records, claims))]
    assert [row[1:] for row in page if re.search(r"\[.*, .*\]", row[-1])] == wanted


def test_the_page_of_toolkits_has_the_table_of_the_records(capsys, monkeypatch):
    toolkits = script("toolkits")
    monkeypatch.setattr(toolkits, "write_file", lambda path, text: None)
    toolkits.table(SimpleNamespace())
    table = rows_of(capsys.readouterr().out)
    assert [row[0] for row in table][:3] == list(toolkits.ROWS.values())
    page = rows_of((ROOT / "docs/toolkits.md").read_text())
    assert [row for row in page if len(row) == len(table[0])] == table
    scores = {
        row: [
            json.loads((ROOT / f"results/toolkits/{row}-{seed}.json").read_text())["bleu"]
            for seed in (1, 2, 3)
        ]
        for row in toolkits.ROWS
    }
    stock = scores.pop("fairseq")
    for of_row, cells in zip(scores.values(), table[1:3], strict=True):
        squares = [np.var(each, ddof=1) / 3 for each in (of_row, stock)]
        error = math.sqrt(sum(squares))
        freedom = sum(squares) ** 2 / sum(square**2 / 2 for square in squares)
        difference, half = np.mean(of_row) - np.mean(stock), error * t.ppf(0.975, freedom)
        assert cells[2] == f"{difference:+.2f} [{difference - half:+.2f}, {difference + half:+.2f}]"
