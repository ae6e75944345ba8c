"""Import Python scripts of the folder scripts, which is no package."""

import importlib.util
from types import ModuleType

from tests.places import ROOT


def script(name: str) -> ModuleType:
    """Return scripts/NAME.py as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
