"""Find files that are installed together with the project."""

from pathlib import Path

PACKAGE = Path(__file__).resolve().parent


def configs() -> Path:
    """Return the folder configs/ with the rows and tables of the papers.

    A wheel has a copy of it in this package (see setup.py); otherwise it is the folder of the repository.
    """
    installed = PACKAGE / "configs"
    return installed if installed.is_dir() else PACKAGE.parent / "configs"
