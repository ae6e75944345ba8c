"""Read YAML files that users write."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import yaml
from omegaconf.errors import OmegaConfBaseException

from modular_fairseq_cli.errors import UsageError, why

Kind = tuple[tuple[type, ...], str]  # the types that a value may have, and what they are called


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
    except (OSError, ValueError, yaml.YAMLError, OmegaConfBaseException, RecursionError) as error:
        raise UsageError(f"{option} {path}: cannot be read ({why(error)}); {remedy}".strip()) from None


def check_values(owner: str, values: dict[str, Any], kinds: dict[str, Kind]) -> None:
    """Refuse values of another type than their keys need.

    Args:
        owner: the beginning of the message, such as "FILE: ", or "".
        values: values of known keys. True and False are no numbers.
        kinds: the kind of each key.

    Raises:
        UsageError: a value has another type; the message names its key.
    """
    for key, value in values.items():
        types, told = kinds[key]
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise UsageError(f"{owner}{key} is {value!r}; it must be {told}")
