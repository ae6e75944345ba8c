"""Import the packages of the extra `pixels`, or say in one sentence how to install them."""

import importlib
from types import ModuleType

from modular_fairseq_cli.errors import UsageError

PACKAGES = {"PIL": "pillow", "sklearn": "scikit-learn"}


def optional(module: str) -> ModuleType:
    """Import a module of an optional package, such as PIL.Image.

    Raises:
        UsageError: the package is not installed.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] != module.partition(".")[0]:
            raise
        package = PACKAGES[module.partition(".")[0]]
        raise UsageError(
            f"this needs the package {package}, which is not installed; install it by: "
            "pip install 'modular_fairseq[pixels]'"
        ) from None
