"""Test that imports run one way and without cycles, and that shared files name no mechanism."""

import ast
import re
from pathlib import Path

import pytest

from tests.import_graph import graph, modules, upward
from tests.places import ROOT

# The files that may name a mechanism: its own, and those that exist for it. All others must work with every
# one.
OF_MECHANISMS = [
    *(
        f"models/{name}.py"
        for name in ("mae", "mae_options", "dma", "dma_losses", "tim", "multistream", "ensemble", "layers")
    ),
    *(
        f"modules/{name}.py"
        for name in (
            *(
                "disentangled_heads",
                "divided_input",
                "expert_mixture",
                "gate_inputs",
                "gate_statistics",
                "gates",
            ),
            *("gaussian_densities", "gaussian_mixture", "grouped", "independent_mechanisms", "mask_losses"),
            *("mutual_information", "semantic_mask", "streams"),
        )
    ),
    *(
        f"analysis/{name}.py"
        for name in (
            *("attention_maps", "clusters", "competition", "gates", "patterns", "pictures", "places"),
            *("redundancy", "samples", "single_expert", "tokens"),
        )
    ),
    *(
        f"training/{name}.py"
        for name in (
            "bcd",
            "gate_checks",
            "gate_monitor",
            "gate_sgd",
            "joint_training",
            "optimizer_state",
        )
    ),
    *("export/gates.py", "patches/trainer.py"),
]
SHARED = sorted(
    path
    for path in (
        str(path.relative_to(ROOT / "modular_fairseq")) for path in (ROOT / "modular_fairseq").rglob("*.py")
    )
    if path not in OF_MECHANISMS
)
# Names of tables, such as mae-3, and of archs, such as mae_transformer, are data.
MECHANISM = re.compile(
    r"\b_*(mae|dma|tim|multistream|streams?)(?!-\d|_transformer)(_|\b)|centroid|gate_network|mixtures?\b",
    re.IGNORECASE,
)


def test_the_files_of_mechanisms_exist():
    assert [file for file in OF_MECHANISMS if not (ROOT / "modular_fairseq" / file).exists()] == []


def test_no_file_imports_from_a_floor_above():
    assert not upward()


def test_no_circle_of_imports():
    """The `__init__` of a package only passes on names or imports what registers, so it does not count."""
    edges = {
        name: {other for other in others if modules()[other].name != "__init__.py"}
        for name, others in graph().items()
        if modules()[name].name != "__init__.py"
    }
    while True:
        leaves = {name for name, others in edges.items() if not others & edges.keys()}
        if not leaves:
            break
        edges = {name: others for name, others in edges.items() if name not in leaves}
    assert not edges


def test_the_ground_imports_nothing_of_the_plugin():
    ground = {name: others for name, others in graph().items() if name.startswith("modular_fairseq_cli")}
    assert len(ground) > 20
    assert not {
        other for others in ground.values() for other in others if not other.startswith("modular_fairseq_cli")
    }


def code_without_docstrings(path: Path) -> str:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node):
            node.body[0].value.value = ""
    return ast.unparse(tree)


@pytest.mark.parametrize("file", SHARED)
def test_shared_rooms_name_no_mechanism(file):
    code = code_without_docstrings(ROOT / "modular_fairseq" / file)
    found = [line for line in code.splitlines() if MECHANISM.search(line)]
    assert not found
