"""Test that imports run one way and without cycles, and that shared files name no mechanism."""

import ast
import re
from pathlib import Path

import pytest

from modular_fairseq.models.registry import MECHANISMS
from tests.import_graph import graph, modules, upward
from tests.places import ROOT

# The registered mechanisms, and other words for their parts. Names of tables, such as mae-3, and of archs,
# such as mae_transformer, are data.
NAMES = "|".join([*MECHANISMS, "multistream", "streams"])
MECHANISM = re.compile(
    rf"\b_*({NAMES})(?!-\d|_transformer)(_|\b)|centroid|gate_network|mixtures?\b", re.IGNORECASE
)
# The files that may name a mechanism: the one that registers it, and those that exist for it. All others must
# work with every one.
FOR_MECHANISMS = {
    *("models/mae_options.py", "models/dma_losses.py"),
    *(
        f"modules/{name}.py"
        for name in (
            *("disentangled_heads", "expert_mixture", "gaussian_mixture", "mask_losses", "semantic_mask"),
            "streams",
        )
    ),
    *(
        f"analysis/{name}.py"
        for name in (
            *("clusters", "competition", "gates", "pictures", "redundancy", "samples", "single_expert"),
        )
    ),
    *(
        f"training/{name}.py"
        for name in (
            *("g_steps", "gate_checks", "gate_monitor", "gate_sgd", "gate_trainer", "gates_only"),
            *("joint_training", "optimizer_state"),
        )
    ),
    "export/gates.py",
}
OWN_FILES = {
    f"{mechanism.build.__module__.split('.', 1)[1].replace('.', '/')}.py" for mechanism in MECHANISMS.values()
}
SHARED = sorted(
    path
    for path in (
        str(path.relative_to(ROOT / "modular_fairseq")) for path in (ROOT / "modular_fairseq").rglob("*.py")
    )
    if path not in FOR_MECHANISMS | OWN_FILES
)


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


def names_a_mechanism(file: str) -> bool:
    code = code_without_docstrings(ROOT / "modular_fairseq" / file)
    if file.startswith("analysis/"):  # a stream is a place, as a layer is
        code = re.sub(r"\bstreams?\b", "place", code)
    return any(map(MECHANISM.search, code.splitlines()))


@pytest.mark.parametrize("file", SHARED)
def test_shared_rooms_name_no_mechanism(file):
    assert not names_a_mechanism(file)


# The shared files that import a file of a mechanism, and why.
IMPORTERS = {
    "__init__.py": "registers the hook that trains gates",
    "analysis/analyses.py": "lists the analyses",
    "analysis/command.py": "runs analyses that need samples of images or single experts",
    "benchmark/jobs.py": "times G steps",
    "device_check/formats.py": "takes G steps in every format",
    "export/command.py": "exports gates that are constant",
    "export/fixed_heads.py": "exports gates that are constant",
    "patches/continuing.py": "refuses to continue a training of gates by another optimizer",
    "training/former_defaults.py": "names the epochs of G steps",
}


def imported_mechanisms(file: str) -> set[str]:
    """Return the files of mechanisms that a file imports."""
    dotted = {
        "modular_fairseq." + each.removesuffix(".py").replace("/", "."): each
        for each in FOR_MECHANISMS | OWN_FILES
    }
    module = f"modular_fairseq.{file.removesuffix('.py').replace('/', '.')}".removesuffix(".__init__")
    return {dotted[name] for name in graph()[module] & dotted.keys()}


@pytest.mark.parametrize("file", SHARED)
def test_shared_rooms_import_no_mechanism(file):
    assert bool(imported_mechanisms(file)) == (file in IMPORTERS)


@pytest.mark.parametrize("file", sorted(FOR_MECHANISMS))
def test_only_files_that_need_a_mechanism_are_left_out(file):
    assert names_a_mechanism(file) or imported_mechanisms(file)
