"""Read YAML files that users write."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml

from modular_fairseq_cli.errors import UsageError, why


def read_yaml(
    path: str | os.PathLike, remedy: str, option: str = "", load: Callable[[str], Any] = yaml.safe_load
) -> Any:
    """Return the content of a YAML file.

    Args:
        path: the file, in UTF-8.
        remedy: the end of the message, which says what would be right.
        option: the option that names the file, for the message.
        load: reads the text.

    Raises:
        UsageError: the file cannot be opened, or its text is not YAML or is nested too deeply.
    """
    try:
        return load(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError, RecursionError) as error:
        raise UsageError(f"{option} {path}: cannot be read ({why(error)}); {remedy}".strip()) from None
