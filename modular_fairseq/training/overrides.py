"""Read --model-overrides, and refuse options in it that fairseq would ignore without a message."""

import difflib
import functools
import os
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from fairseq.registry import REGISTRIES

from modular_fairseq.patches.literals import evaluate_literal
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError

READ = ("model", "task", "criterion", "bpe", "tokenizer")  # the groups that fairseq takes from a checkpoint


def read_overrides(text: str, given: str) -> dict[str, Any]:
    """Return the options of a text such as "{'dropout': 0.1}".

    Args:
        text: the text.
        given: where it was given, for the message, such as --model-overrides.

    Raises:
        UsageError: the text is no dictionary of Python literals.
    """
    try:
        overrides = evaluate_literal(text)
    except UsageError:
        overrides = None
    if not isinstance(overrides, dict):
        raise UsageError(
            f"{given} {text}: give a dictionary of options of the model and values, as in "
            "\"{'dropout': 0.1}\""
        )
    return overrides


def refuse_ignored_options(overrides: Mapping[str, Any], configs: Mapping[str, Any], given: str) -> None:
    """Refuse names that are an option of no model, because they would be ignored.

    fairseq changes every option of the name, in whatever group it is. It takes the name of a group, too, with
    a dictionary of the options in it that change or are added. In options that are a `Namespace`, it sets any
    name (fairseq/dataclass/utils.py:453-484, fairseq/checkpoint_utils.py:343-366). It takes only
    `READ` from a checkpoint, so a name in another group, such as `beam`, changes nothing.

    Args:
        overrides: the options that replace others, by name.
        configs: the options of each model in groups, or as a `Namespace`, by what messages call the model.
        given: where `overrides` were given, for the message, such as --model-overrides.

    Raises:
        UsageError: fairseq would ignore a name.
    """
    configs = {
        of: {group: config[group] for group in READ if group in config}
        if isinstance(config, Mapping)
        else config
        for of, config in configs.items()
    }
    added = {
        field
        for registry, choice in overrides.items()
        if registry in REGISTRIES and isinstance(choice, str)
        for field in getattr(
            REGISTRIES[registry]["dataclass_registry"].get(choice), "__dataclass_fields__", ()
        )
    }
    for name, value in overrides.items():
        if name not in added and not any(_takes(config, name, value) for config in configs.values()):
            known = sorted({each for config in configs.values() for each in _names(config)} - {name})
            near = difflib.get_close_matches(str(name), known, 1)
            perhaps = f"perhaps {near[0]} is meant" if near else "see docs/mechanisms for the options"
            raise UsageError(
                f"{given}: {name} is no option of {' or '.join(configs)} that can have the value {value!r}; "
                f"{perhaps}"
            )


def refuse_ignored_by_checkpoints(overrides: Mapping[str, Any], paths: Sequence[str], given: str) -> None:
    """Refuse names that are an option of no checkpoint, as `refuse_ignored_options` does.

    Raises:
        UsageError: fairseq would ignore a name, or a checkpoint cannot be read.
    """
    configs = {path: _config(path, os.stat(path).st_mtime_ns) for path in paths}
    if all(configs.values()):  # fairseq refuses a checkpoint that has none
        refuse_ignored_options(overrides, configs, given)


@functools.lru_cache(maxsize=64)
def _config(path: str, _modified: int) -> Any:
    """Return the options in a checkpoint, which are a `Namespace` in one from before 2021."""
    state = load_checkpoint(path)
    return state.get("cfg") or state.get("args")


def _takes(config: Any, name: str, value: Any) -> bool:
    """Tell whether fairseq uses a value for an option of this name."""
    if isinstance(config, Namespace):
        return True
    if not isinstance(config, Mapping):
        return False
    if name in config and (isinstance(value, dict) or not isinstance(config[name], Mapping)):
        return True
    return any(_takes(group, name, value) for group in config.values())


def _names(config: Any) -> Iterator[str]:
    """Yield the names of all options and groups."""
    for name, value in config.items() if isinstance(config, Mapping) else ():
        yield str(name)
        yield from _names(value)
