"""Find the options of mechanisms that have an effect in a row of a table, by the checks of the options."""

import argparse
import dataclasses
from collections.abc import Iterator
from enum import Enum
from typing import Any

from modular_fairseq.models.checks import check_options
from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.mechanism import Mechanism
from modular_fairseq.models.options import FAMILIES, flag
from modular_fairseq.models.registry import CRITERIA, MECHANISMS
from modular_fairseq.runs.config import Config
from modular_fairseq_cli.errors import UsageError


def active_mechanisms(config: Config) -> list[Mechanism]:
    """Return the mechanisms that the model of a row has."""
    family = FAMILIES[config.get("model._name")]
    options = resolved(argparse.Namespace(**config.values["model"]), family)
    return [mechanism for mechanism in MECHANISMS.values() if mechanism.is_used(options)]


def options_of(
    mechanism: Mechanism, family: str = "modular_transformer"
) -> Iterator[tuple[str, dataclasses.Field]]:
    """Yield the options of a mechanism with their groups.

    Options of the model have the group "model". Options of a loss have the group "criterion".

    Args:
        family: the model family, which may have defaults of its own.
    """
    in_family = {field.name: field for field in dataclasses.fields(FAMILIES[family])}
    for field in mechanism.own_options:
        yield "model", in_family[field.name]
    for field in dataclasses.fields(mechanism.losses.options) if mechanism.losses else ():
        if field.name != "_name":
            yield "criterion", field


def effective_options(config: Config) -> dict[tuple[str, str], Any]:
    """Return the default values of all options that have an effect in a row, keyed by group and name.

    An option has none if every value but its default is refused because it "has no effect".
    """
    return {
        (group, field.name): field.default
        for mechanism in active_mechanisms(config)
        for group, field in options_of(mechanism, config.get("model._name"))
        if _has_effect(config, mechanism, group, field)
    }


def _has_effect(config: Config, mechanism: Mechanism, group: str, field: dataclasses.Field) -> bool:
    refusals = [_refusal(config, mechanism, group, field.name, value) for value in _other_values(field)]
    assert refusals, f"no other value of {field.name} is known; add one to _other_values"
    # A value may be refused for other reasons, or because it leaves another option without effect.
    return not all(refusal.startswith(f"{flag(field.name)} has no effect") for refusal in refusals)


def _other_values(field: dataclasses.Field) -> list[Any]:
    """Return values of an option that are not its default, as far as possible good ones."""
    if isinstance(field.type, type) and issubclass(field.type, Enum):
        values: list[Any] = [each.value for each in field.type]
    elif field.type is bool:
        values = [True, False]
    else:
        values = [1, 2, 3] if field.type is int or "int" in str(field.type) else [0.25, 0.5, 2.0]
    # A former default is never refused, because old checkpoints have it.
    defaults = (field.default, field.metadata.get("former_default", field.default))
    return [value for value in values if value not in defaults]


def _refusal(config: Config, mechanism: Mechanism, group: str, name: str, value: Any) -> str:
    """Return the sentence that refuses a value of an option in a row, or "" if the value is accepted."""
    values = {key: value for key, value in config.values[group].items() if key != "_name"} | {name: value}
    try:
        if group == "model":
            check_options(argparse.Namespace(**values), FAMILIES[config.get("model._name")])
        else:
            assert mechanism.losses is not None
            defaults = dataclasses.fields(CRITERIA[config.get("criterion._name")])
            mechanism.losses(argparse.Namespace(**{f.name: f.default for f in defaults} | values))
    except UsageError as error:
        return str(error)
    return ""
