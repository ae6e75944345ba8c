"""Files that belong to the project and are no Python: where they are."""

from pathlib import Path


def configs() -> Path:
    """Return the folder of the tables and their rows."""
    return Path(__file__).resolve().parents[1] / "configs"
