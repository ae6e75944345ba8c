"""Test tests/system/compare_versions.py, which compares the weights of two checkouts."""

import copy
import json

import pytest
import torch

from tests.places import ROOT
from tests.system import compare_versions


def test_the_command_of_a_record_is_the_one_of_its_training():
    command = compare_versions.command_of(ROOT / "results/evidence/multi30k/mae-7/seed-1.json")
    assert command[0].startswith(compare_versions.DATA) and "--mae-gate-interval" in command


@pytest.mark.parametrize(
    "content", [{"commands": ["fairseq-train x --finetune-from-model y"]}, {"commands": []}, [1], {}]
)
def test_what_is_no_record_of_a_training_from_scratch_is_refused(tmp_path, content):
    path = tmp_path / "seed-1.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ValueError, match=r"seed-1.json is no record of a training from scratch"):
        compare_versions.command_of(path)


def test_each_name_has_a_line_and_those_that_differ_or_fail_are_counted(tmp_path, capsys):
    state = {"model": {"w": torch.ones(2)}, "last_optimizer_state": {"step": 3}}
    other = copy.deepcopy(state)
    other["model"]["w"][1] += 1e-7
    lines = ["H-1 -0.5000 a b"]
    of_other = {
        "differs": (other, lines),
        "optimizer": (state | {"last_optimizer_state": {"step": 4}}, lines),
        "text": (state, ["H-1 -0.5000 a c"]),
        "number": (state, ["H-1 -0.5001 a b"]),
        "ftg": (state, ["H-1 -0.5001 a b"]),  # whose numbers are rounded
    }

    def train(name, side, checkout):
        if name == "broken":
            raise RuntimeError("it stops")
        return of_other.get(name, (state, lines)) if side == "other" else (state, lines)

    names = ["same", "broken", *of_other]
    assert compare_versions.compare(names, train, {"here": ROOT, "other": tmp_path}) == 5
    same, broken, differs, optimizer, text, number, rounded = capsys.readouterr().out.splitlines()
    assert same.endswith("equal: 1 tensors, 1 lines") and broken.endswith("failed: it stops")
    assert differs.endswith("s  1 of 1 values of model differ, the first is w")
    assert optimizer.endswith("s  1 of 1 values of last_optimizer_state differ, the first is step")
    assert text.endswith("s  1 lines of output differ, 1 and 1 in all")
    assert number.endswith("s  1 lines of output differ, 1 and 1 in all")
    assert rounded.endswith("equal: 1 tensors, 1 lines")
