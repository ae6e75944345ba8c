"""Test scripts/same_updates.py, which compares the updates of two checkouts."""

import json
import sys

import pytest

from tests.places import ROOT
from tests.scripts import script

RECORD = {"commands": ["fairseq-train evidence/data/c/bin --lr 0.1 --mae-gate-interval 5 --seed 1"]}


@pytest.fixture
def same():
    return script("same_updates")


@pytest.fixture
def records(tmp_path):
    paths = [tmp_path / f"seed-{seed}.json" for seed in (1, 2)]
    for path in paths:
        path.write_text(json.dumps(RECORD))
    return [str(path) for path in paths]


@pytest.mark.parametrize(("other", "code", "word"), [("0", 0, "the same"), ("1", 1, "differs: 0 and 1")])
def test_each_record_has_a_line(same, records, tmp_path, monkeypatch, capsys, other, code, word):
    digests = {same.HERE: "0", tmp_path: other}
    (tmp_path / "modular_fairseq").mkdir()
    monkeypatch.setattr(same, "trained", lambda command, checkout, data, folder: digests[checkout])
    monkeypatch.setattr(sys, "argv", ["same_updates.py", str(tmp_path), *records, "--data", "data"])
    assert same.main() == code
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == [f"{record}: {word}" for record in records]
    assert lines[2].startswith(f"{2 - 2 * code} of 2 are the same in {same.HERE}")


def test_a_training_that_fails_or_takes_other_code_is_told(same, tmp_path, monkeypatch):
    command = same.command_of(str(ROOT / "results/evidence/multi30k/mae-7/seed-1.json"))
    assert command[0].startswith(same.DATA) and "--mae-gate-interval" in command
    with pytest.raises(RuntimeError, match="fails with .*none/multi30k"):
        same.trained(command, ROOT, f"{tmp_path}/none/", str(tmp_path))
    monkeypatch.setattr(same, "TRAIN", "print('plugin /elsewhere/modular_fairseq/__init__.py')")
    with pytest.raises(RuntimeError, match="Python did not take the code from"):
        same.trained(command, ROOT, f"{tmp_path}/none/", str(tmp_path))


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ({"commands": ["fairseq-train x --finetune-from-model y"]}, "is fine-tuned; give the record of"),
        ({"commands": []}, "has no command of a training; give a record, such as"),
        ([1], "has no command of a training; give a record, such as"),
    ],
)
def test_what_is_no_record_of_a_training_is_refused(same, tmp_path, content, sentence):
    path = tmp_path / "seed-1.json"
    path.write_text(json.dumps(content))
    with pytest.raises(SystemExit, match=sentence):
        same.command_of(str(path))
