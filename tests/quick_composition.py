"""Compose fairseq's configurations in less time than hydra, with the same result.

fairseq's commands give hydra every option as an override (fairseq/dataclass/utils.py:386-400). hydra parses
these 300 texts, looks all of them up among its groups, and reads the source of every frame of the stack to
learn who calls it, which takes more than half of the time of many tests. Here hydra parses each text once and
composes each choice of groups once. It then sets the options in a copy of what it has composed.
"""

from __future__ import annotations

import copy
import functools
import importlib
import logging
import sys
import warnings
from typing import TYPE_CHECKING, Any

from fairseq import options
from fairseq.dataclass import utils
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf

if TYPE_CHECKING:
    import pytest

initialize = importlib.import_module("hydra.initialize")  # in the package, the class has this name
hydras_caller = initialize.detect_calling_file_or_module_from_stack_frame
hydras_compose = utils.compose
hydras_parse_rule = OverridesParser.parse_rule


@functools.lru_cache(maxsize=10_000)
def parsed(text: str, rule: str) -> Any:
    return hydras_parse_rule(OverridesParser.create(), text, rule)


def parse_rule(parser: OverridesParser, text: str, rule: str) -> Any:
    """Parse an override, or return a copy of what was parsed before; an error is not kept."""
    return copy.copy(parsed(text, rule))


@functools.lru_cache(maxsize=100)
def composed(name: str, groups: tuple[str, ...], nodes: tuple[int, ...], strict: bool | None) -> DictConfig:
    return hydras_compose(name, overrides=list(groups), strict=strict)


def compose(config_name: str, overrides: list[str], strict: bool | None = None) -> DictConfig:
    """Return what `hydra.experimental.compose` returns for the overrides of a command of fairseq.

    Groups are the overrides without a dot, and are chosen before all others.
    """
    groups = tuple(each for each in overrides if "." not in each.partition("=")[0])
    found = OverridesParser.create().parse_overrides([each for each in overrides if each not in groups])
    ConfigLoaderImpl.validate_sweep_overrides_legal(found, RunMode.RUN, from_shell=False)
    config = copy.deepcopy(composed(config_name, groups, tuple(map(registered, groups)), strict))
    OmegaConf.set_struct(config, True)
    ConfigLoaderImpl._apply_overrides_to_config(found, config)
    if strict is not None:
        OmegaConf.set_struct(config, strict)
    return config


KEPT: list[Any] = []  # so that no other node gets the same id


def registered(group: str) -> int:
    """Return a number that changes if the choice of a group, such as "model=NAME", is registered again."""
    name, _, choice = group.partition("=")
    nodes = ConfigStore.instance().repo.get(name)
    node = nodes.get(f"{choice}.yaml") if isinstance(nodes, dict) else None
    if not any(node is each for each in KEPT):
        KEPT.append(node)
    return id(node)


def caller(stack_depth: int) -> tuple[str | None, str | None]:
    """Return the file and the module of a function on the stack; a method is left to hydra."""
    frame = sys._getframe(stack_depth)
    function = frame.f_globals.get(frame.f_code.co_name)
    if function is None:
        return hydras_caller(stack_depth + 1)
    return frame.f_code.co_filename, function.__module__


def install() -> None:
    """Let fairseq's commands in this process compose their configurations by `compose`."""
    initialize.detect_calling_file_or_module_from_stack_frame = caller
    OverridesParser.parse_rule = parse_rule
    utils.compose = compose


def warm_up() -> None:
    """Parse the defaults of fairseq's commands, for processes that are forked from this one.

    No composition is kept: a plugin may change what it is made of.
    """
    logging.disable()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for parser, words in (
            (options.get_training_parser(), ["DATA", "--arch", "transformer"]),
            (options.get_generation_parser(), ["DATA"]),
        ):
            utils.convert_namespace_to_omegaconf(options.parse_args_and_arch(parser, words))
    logging.disable(logging.NOTSET)
    composed.cache_clear()


def leave_to_hydra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let hydra compose in the rest of a test."""
    monkeypatch.setattr(initialize, "detect_calling_file_or_module_from_stack_frame", hydras_caller)
    monkeypatch.setattr(OverridesParser, "parse_rule", hydras_parse_rule)
    monkeypatch.setattr(utils, "compose", hydras_compose)
