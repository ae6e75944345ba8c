"""Find which module of the packages imports which."""

import ast
import functools
from pathlib import Path

from tests.places import ROOT

# A file may import from its own floor and from those below. Files beside these folders are above them.
FLOORS = [
    ["modular_fairseq_cli"],
    ["modular_fairseq.modules"],
    ["modular_fairseq.models"],
    [
        "modular_fairseq.criterions",
        "modular_fairseq.optim",
        "modular_fairseq.search",
        "modular_fairseq.training",
        "modular_fairseq.patches",
        "modular_fairseq.user_dir",
    ],
    ["modular_fairseq.loading"],
    [
        "modular_fairseq.analysis",
        "modular_fairseq.benchmark",
        "modular_fairseq.device_check",
        "modular_fairseq.drawing",
        "modular_fairseq.export",
        "modular_fairseq.prediction",
        "modular_fairseq.runs",
    ],
]


def modules(root: Path = ROOT) -> dict[str, Path]:
    """Return the files of both packages, keyed by their dotted names."""
    paths = [
        path for name in ("modular_fairseq_cli", "modular_fairseq") for path in (root / name).rglob("*.py")
    ]
    return {
        ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): path
        for path in paths
    }


def imports(path: Path, known: set[str]) -> set[str]:
    """Return the files of the packages that a file imports, at its top or inside its functions."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write the whole name of the module"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {node.module}
    return {name for name in found if name in known}


def floor(module: str) -> int:
    for number, rooms in enumerate(FLOORS):
        if any(module == room or module.startswith(f"{room}.") for room in rooms):
            return number
    return len(FLOORS)


@functools.cache
def graph(root: Path = ROOT) -> dict[str, set[str]]:
    files = modules(root)
    return {name: imports(path, set(files)) - {name} for name, path in files.items()}


def upward(root: Path = ROOT) -> list[str]:
    """Return the imports that lead from a lower layer of the packages to a higher one.

    The top layers may import the `__init__` of the plugin, so that everything is registered.
    """
    return [
        f"{name} imports {other}"
        for name, others in graph(root).items()
        for other in others
        if floor(other) > floor(name) and not (other == "modular_fairseq" and floor(name) == len(FLOORS) - 1)
    ]
