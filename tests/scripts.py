"""Import Python scripts of the folder scripts, which is no package."""

import importlib.util
import sys
from types import ModuleType

from tests.places import ROOT


def script(name: str) -> ModuleType:
    """Return scripts/NAME.py as a module. It finds other scripts, as if it was started."""
    if str(ROOT / "scripts") not in sys.path:
        sys.path.append(str(ROOT / "scripts"))
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
