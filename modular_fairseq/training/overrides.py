"""Refuse options that are to replace those of a checkpoint, but that no checkpoint has."""

import difflib
from collections.abc import Mapping, Sequence
from typing import Any

from modular_fairseq.training.checkpoints import load_checkpoint, options_of
from modular_fairseq.training.command_line import family_of_arch
from modular_fairseq_cli.errors import UsageError


def refuse_unknown_options(overrides: Mapping[str, Any], paths: Sequence[str], given: str) -> None:
    """Refuse names that are an option of no checkpoint, because fairseq would ignore them.

    A name is known if a checkpoint has it in any of its groups, or if it is an option of the model family,
    which may be newer than the checkpoint. fairseq also takes the name of a group, with a dictionary of the
    options in it that change.

    Args:
        overrides: the options that replace those of the checkpoints, by name.
        paths: the checkpoints.
        given: where they were given, for the message, such as --model-overrides.

    Raises:
        UsageError: a name is unknown, or a checkpoint cannot be read.
    """
    states = [load_checkpoint(path) for path in paths]
    groups = {group for state in states for group in state.get("cfg") or {}}
    known = {group: {name for state in states for name in options_of(state, group)} for group in groups}
    every = groups.union(*known.values())
    for state in states:
        options = options_of(state, "model")
        every |= set(options)
        if family := family_of_arch(str(options.get("arch") or options.get("_name"))):
            every |= set(family.__dataclass_fields__)
    for name, value in overrides.items():
        inner = value if name in groups and isinstance(value, dict) else {}
        wrong = [name] if name not in every else [each for each in inner if each not in known[name]]
        if wrong:
            near = difflib.get_close_matches(str(wrong[0]), sorted(every), 1)
            remedy = f"perhaps {near[0]} is meant" if near else "give options of the model, such as dropout"
            raise UsageError(f"{given}: {wrong[0]} is no option of {' or '.join(paths)}; {remedy}")
