"""Import a plugin for some tests only: what it registers is forgotten afterwards."""

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from fairseq import criterions, models, tasks, utils

from modular_fairseq.analysis import ANALYSES
from modular_fairseq.models.architectures import PEERS
from modular_fairseq.models.options import FAMILIES, PRESETS
from modular_fairseq.models.registry import CRITERIA, MECHANISMS, _publish
from modular_fairseq.runs import config

REGISTRIES = [
    MECHANISMS,
    PRESETS,
    PEERS,
    ANALYSES,
    models.MODEL_REGISTRY,
    models.MODEL_DATACLASS_REGISTRY,
    models.ARCH_CONFIG_REGISTRY,
    models.ARCH_MODEL_NAME_REGISTRY,
    models.ARCH_MODEL_REGISTRY,
    tasks.TASK_REGISTRY,
    tasks.TASK_DATACLASS_REGISTRY,
    criterions.CRITERION_REGISTRY,
    criterions.CRITERION_DATACLASS_REGISTRY,
]


@contextmanager
def registries() -> Iterator[None]:
    """Restore all registries after the block, so that no other test sees what is registered in it."""
    before, families, of_losses = [dict(each) for each in REGISTRIES], dict(FAMILIES), dict(CRITERIA)
    modules, memo = set(sys.modules), getattr(utils.import_user_module, "memo", set())
    folders = set(memo)
    archs = {model: list(names) for model, names in models.ARCH_MODEL_INV_REGISTRY.items()}
    # fairseq keeps these names in a variable that only the function sees.
    of_criterions = inspect.getclosurevars(criterions.register_criterion).nonlocals["REGISTRY_CLASS_NAMES"]
    sets = [tasks.TASK_CLASS_NAMES, of_criterions]
    names = [set(each) for each in sets]
    try:
        yield
    finally:
        for registry, entries in zip(REGISTRIES, before, strict=True):
            registry.clear()
            registry.update(entries)
        for each, entries in zip(sets, names, strict=True):
            each.clear()
            each.update(entries)
        for model, family in families.items():
            FAMILIES[model] = family
            _publish("model", model, family, models.MODEL_REGISTRY, models.MODEL_DATACLASS_REGISTRY)
        for criterion, options in of_losses.items():
            CRITERIA[criterion] = options
            _publish(
                "criterion",
                criterion,
                options,
                criterions.CRITERION_REGISTRY,
                criterions.CRITERION_DATACLASS_REGISTRY,
            )
        config._actions.cache_clear()
        memo = getattr(utils.import_user_module, "memo", memo)
        forget(modules, {Path(folder).name for folder in memo - folders})
        memo &= folders
        models.ARCH_MODEL_INV_REGISTRY.clear()
        models.ARCH_MODEL_INV_REGISTRY.update(archs)


@contextmanager
def imported(folder: Path) -> Iterator[ModuleType]:
    """Import the plugin of a folder as --user-dir does, and forget it after the block."""
    name, known = folder.name, set(sys.modules)
    with registries():
        sys.path.insert(0, str(folder.parent))
        try:
            yield importlib.import_module(name)
        finally:
            sys.path.remove(str(folder.parent))
            forget(known, {name})


def forget(known: set[str], packages: set[str]) -> None:
    """Forget the modules of some packages that were imported after those in `known`."""
    for module in set(sys.modules) - known:
        if module.partition(".")[0] in packages:
            del sys.modules[module]
