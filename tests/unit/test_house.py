"""How the house is built: imports run one way, without circles, and shared rooms name no mechanism."""

import ast
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import ROOT

MARK = "# The analysis follows. In the package it would be a file of its own in analysis/.\n"
# A file may import from its own floor and from those below. What stands beside these folders is above them.
FLOORS = [
    ["modular_fairseq_cli"],
    ["modular_fairseq.modules"],
    ["modular_fairseq.models"],
    [
        "modular_fairseq.criterions",
        "modular_fairseq.training",
        "modular_fairseq.patches",
        "modular_fairseq.user_dir",
    ],
    ["modular_fairseq.analysis", "modular_fairseq.benchmark", "modular_fairseq.runs"],
]
# The files that may name a mechanism: its own, and those that exist for it. All others must work with every
# one.
OF_MECHANISMS = [
    *(f"models/{name}.py" for name in ("mae", "dma", "tim", "multistream", "ensemble", "layers")),
    *(
        str(path.relative_to(ROOT / "modular_fairseq"))
        for path in (ROOT / "modular_fairseq/modules").glob("*.py")
    ),
    *(
        str(path.relative_to(ROOT / "modular_fairseq"))
        for path in (ROOT / "modular_fairseq/analysis").glob("*.py")
    ),
    *("training/bcd.py", "patches/trainer.py", "patches/errors.py"),
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


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of both packages by their dotted name."""
    paths = [
        path for name in ("modular_fairseq_cli", "modular_fairseq") for path in (root / name).rglob("*.py")
    ]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imports(path: Path, known: set[str]) -> set[str]:
    """Return the files of the packages that a file imports, wherever in it."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name in known}


def floor(module: str) -> int:
    for number, rooms in enumerate(FLOORS):
        if any(module == room or module.startswith(f"{room}.") for room in rooms):
            return number
    return len(FLOORS)


def graph(root: Path = ROOT) -> dict[str, set[str]]:
    files = modules(root)
    return {name: imports(path, set(files)) - {name} for name, path in files.items()}


def upward(root: Path = ROOT) -> list[str]:
    """Return the imports from a floor above. The top floors may import the door, to have everything
    registered.
    """
    return [
        f"{name} imports {other}"
        for name, others in graph(root).items()
        for other in others
        if floor(other) > floor(name) and not (other == "modular_fairseq" and floor(name) == len(FLOORS) - 1)
    ]


def test_no_file_imports_from_a_floor_above():
    assert not upward()


def test_no_circle_of_imports():
    """The doors of packages, which only hand names on or import what registers, are no part of one."""
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


def test_a_mechanism_moves_in_without_a_change_of_any_other_file(tmp_path):
    """The example, as a file of models/ and one of analysis/: attention type, option, arch and analysis
    work.
    """
    for package in ("modular_fairseq", "modular_fairseq_cli"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    text = (ROOT / "examples/distance/__init__.py").read_text()
    head, _, body = text.partition("@dataclass\n")
    mechanism, _, analysis = body.partition(MARK)
    of_analysis = [line for line in head.splitlines() if "analysis" in line or "tabulate" in line]
    kept = "\n".join(line for line in head.splitlines() if line not in of_analysis)
    (tmp_path / "modular_fairseq/models/distance.py").write_text(f"{kept}\n@dataclass\n{mechanism}")
    needed = [*of_analysis, "import torch", "from dataclasses import dataclass"]
    needed += ["from modular_fairseq.models.distance import DistancePenalty"]
    needed += ["from modular_fairseq_cli.errors import UsageError"]
    (tmp_path / "modular_fairseq/analysis/distance.py").write_text("\n".join(needed) + "\n\n\n" + analysis)
    assert not upward(tmp_path)
    (tmp_path / "task.py").write_text(
        "from types import SimpleNamespace\n"
        "import modular_fairseq\n"
        "from fairseq.data import Dictionary\n"
        "from fairseq.models import ARCH_CONFIG_REGISTRY\n"
        "from modular_fairseq.analysis import ANALYSES\n"
        "from modular_fairseq.models.options import FAMILIES\n"
        "from modular_fairseq.models.translation import ModularTransformer\n"
        "from argparse import Namespace\n"
        "args = Namespace(encoder_embed_dim=16, distance_slope=0.25)\n"
        "ARCH_CONFIG_REGISTRY['distance_transformer_tiny_cpu'](args)\n"
        "task = SimpleNamespace(source_dictionary=Dictionary(), target_dictionary=Dictionary())\n"
        "model = ModularTransformer.build_model(FAMILIES['modular_transformer'](**vars(args)), task)\n"
        "print(model.encoder.layers[0].self_attn.mask.slope.flatten().tolist(), 'distance' in ANALYSES)\n"
    )
    done = subprocess.run([sys.executable, "task.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout == f"{[0.25] * 8} True\n", done.stderr
