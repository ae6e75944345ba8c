"""Test that docs/adding-a-mechanism.md shows the whole example and every field, and that its code works."""

import ast
import inspect
import os
import re
import subprocess
import sys
from dataclasses import fields

import pytest

from modular_fairseq.models.arrangement import Arrangement
from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.mechanism import LayerParts, Mechanism, Place
from tests.documents import names_in, tables
from tests.places import ROOT
from tests.processes import PATIENCE

PAGE = (ROOT / "docs/adding-a-mechanism.md").read_text()
EXAMPLE = (ROOT / "examples/distance/__init__.py").read_text()
PIECE = "<!-- not run: a piece of examples/distance/__init__.py -->\n```python\n"

# This program runs the blocks of the page that it gets, and then builds models with what they register.
TRY = """
from types import SimpleNamespace

import torch
from fairseq.criterions import CRITERION_REGISTRY

for block in {blocks!r}:
    exec(block, globals())

from modular_fairseq.models.registry import CRITERIA, register_attention
from tests.helpers import LENGTHS, batch, build, task
from tests.properties import PROPERTIES, logits, ready

for changes in (dict(attention_type="headscale"), dict(half_update=True), dict(twice=True)):
    for holds in PROPERTIES:
        holds(ready(**changes))
plain = logits(build().eval(), batch(LENGTHS))
assert not torch.equal(logits(ready(attention_type="headscale"), batch(LENGTHS)), plain)
for changes in (dict(half_update=True), dict(twice=True)):
    assert not torch.equal(logits(build(**changes).eval(), batch(LENGTHS)), plain), changes

register_attention("far", seam="mask", losses=DistanceLosses)(
    lambda options, place: DistancePenalty(4, -2.0) if place.self_attention else None
)
options = CRITERIA["modular_cross_entropy"](
    distance_weight=0.25, sentence_avg=False, kl_weight=0.0, qq_weight=0.0, xq_weight=0.0
)
criterion = CRITERION_REGISTRY["modular_cross_entropy"](
    options, SimpleNamespace(target_dictionary=task().target_dictionary)
)
model, sample = build(attention_type="far").train(), batch(LENGTHS)
loss, size, log = criterion(model, sample)
criterion.eval(), model.eval()
without = criterion(model, sample)[0]
assert torch.isclose(loss - without, torch.tensor(0.25 * 2.0 * size)), (loss, without)
assert log["slope"] == 2.0 * size
"""


def statements(code: str) -> list[str]:
    """Return the statements of a file without docstrings, as text that does not depend on layout."""
    tree = ast.parse(code)
    for node in list(ast.walk(tree)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            del node.body[0]
    return [ast.dump(node) for node in tree.body]


def pieces() -> list[str]:
    return [rest.partition("```\n")[0] for rest in PAGE.split(PIECE)[1:]]


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)


def block_with(language: str, text: str) -> str:
    (found,) = (block for block in blocks(language) if text in block)
    return found


def rows_of(heading: str) -> list[str]:
    """Return the names in the first column of the table whose first heading is `heading`."""
    (rows,) = (rows for headings, rows in tables(PAGE) if headings[0] == heading)
    return [names_in(row[0])[0] for row in rows]


def test_the_pieces_are_the_example():
    assert statements("".join(pieces())) == statements(EXAMPLE)


@pytest.mark.parametrize(
    ("heading", "names"),
    [
        ("field", [f.name for f in fields(Mechanism)]),
        ("field of `LayerParts`", [f.name for f in fields(LayerParts)]),
        ("field of `Place`", [f.name for f in fields(Place)]),
        ("member of `Arrangement`", [name for name in vars(Arrangement) if not name.startswith("_")]),
        (
            "member of `Choice`",
            [f.name for f in fields(Choice)]
            + [name for name, value in vars(Choice).items() if callable(value) and not name.startswith("_")],
        ),
        (
            "member of `AuxiliaryLosses`",
            list(AuxiliaryLosses.__annotations__)
            + [name for name in vars(AuxiliaryLosses) if not name.startswith("_")],
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tables_list_every_field(heading, names):
    assert rows_of(heading) == names


def test_the_arguments_of_run_are_those_of_an_arrangement():
    [row] = [line for line in PAGE.splitlines() if line.startswith("| `run` |")]
    named = re.search(r"\((.*?)\) -> x", row)[1].split(", ")
    assert named == [*inspect.signature(Arrangement.run).parameters][1:]
    assert f"def run(self, {', '.join(named)}):" in PAGE


def test_names_that_change_together_are_in_the_example():
    for name in rows_of("name in the example"):
        assert name in EXAMPLE or (ROOT / name).is_dir(), name


def run(*words, folder=ROOT, path=""):
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{path}"}
    done = subprocess.run(
        list(map(str, words)), cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return done.stdout


def test_a_copy_passes_the_test_of_the_page(tmp_path):
    """The steps are those of the page: copy the folder, change the names, write the test and run it."""
    (tmp_path / "examples/distance").mkdir(parents=True)
    (tmp_path / "examples/distance/__init__.py").write_text(EXAMPLE)
    run("bash", "-euc", block_with("bash", "cp -r examples/distance"), folder=tmp_path)
    copy = tmp_path / "examples/nearness/__init__.py"
    assert "istance" not in copy.read_text()
    test = tmp_path / "examples/test_nearness.py"
    test.write_text(block_with("python", "def test_a_model_with_nearness"))
    assert "10 passed" in run(sys.executable, "-m", "pytest", "-q", "-c", ROOT / "pyproject.toml", test)


def test_what_the_page_registers_works(tmp_path):
    """The gate, the layer, the encoder and the losses of the page run in a process of their own."""
    (tmp_path / "distance.py").write_text(EXAMPLE)
    names = ("class HeadScale", "class HalfOptions", "class Twice", "class DistanceLosses")
    code = TRY.format(blocks=[block_with("python", name) for name in names])
    assert "torch.Size([5, 2, 32])" in run(sys.executable, "-c", code, path=tmp_path)
