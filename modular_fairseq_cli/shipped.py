"""Files that come with the project, wherever it is installed."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def configs() -> Path:
    """Return the folder configs/ with the rows and tables of the papers: that of the repository, or its copy
    in this package, which is where a wheel has it (setup.py).
    """
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"
