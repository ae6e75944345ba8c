"""Record the state of the process and of the packages that patches change, to compare it with a later one."""

import logging
import sys
import warnings
from collections.abc import Callable
from types import ModuleType
from typing import NamedTuple

import torch

PACKAGES = ("fairseq", "fairseq_cli", "torch", "numpy", "logging")
LEFT_OUT = {
    # `register_model` and similar functions fill these.
    "fairseq.models": {"MODEL_REGISTRY", "MODEL_DATACLASS_REGISTRY", "ARCH_MODEL_REGISTRY"}
    | {"ARCH_MODEL_NAME_REGISTRY", "ARCH_MODEL_INV_REGISTRY", "ARCH_CONFIG_REGISTRY"},
    "fairseq.criterions": {"CRITERION_REGISTRY", "CRITERION_DATACLASS_REGISTRY"},
    "fairseq.optim": {"OPTIMIZER_REGISTRY", "OPTIMIZER_DATACLASS_REGISTRY"},
    # `state` records it under the name `get_safe_globals`.
    "torch._weights_only_unpickler": {"_marked_safe_globals_set"},
}


class Same:
    """Wrap a value so that it equals itself and nothing else, whatever its own `==` says."""

    def __init__(self, value: object):
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Same) and self.value is other.value


class State(NamedTuple):
    names: dict[str, object]  # by dotted name
    modules: set[str]


def state() -> State:
    """Return the attributes of the loaded modules of `PACKAGES` and of the classes that they define.

    Containers are recorded with their contents, one level deep. The state also has the filters, hooks, log
    levels and safe globals of the process.
    """
    names = {}
    for module_name, module in list(sys.modules.items()):
        if module_name.partition(".")[0] in PACKAGES and isinstance(module, ModuleType):
            for name, value in list(vars(module).items()):
                if name in LEFT_OUT.get(module_name, ()) or issubclass(type(value), ModuleType):
                    continue
                names[f"{module_name}.{name}"] = contents(value)
                if issubclass(type(value), type) and value.__module__ == module_name:
                    for key, attribute in vars(value).items():
                        names[f"{module_name}.{name}.{key}"] = contents(attribute)
    names["sys.excepthook"] = Same(sys.excepthook)
    names["warnings.filters"] = list(warnings.filters)
    names["torch.serialization.get_safe_globals()"] = list(torch.serialization.get_safe_globals())
    for name, logger in logging.root.manager.loggerDict.items():
        if isinstance(logger, logging.Logger) and logger.level:
            names[f"logging.getLogger({name!r}).level"] = logger.level
    return State(names, set(sys.modules))


def contents(value: object) -> object:
    if type(value) is dict:
        return {key: Same(item) for key, item in value.items()}
    return [Same(item) for item in value] if type(value) in (list, set) else Same(value)


def changed_by(action: Callable[[], object]) -> set[str]:
    """Return the names of everything that `action` changes, adds or removes outside the modules that it
    imports.
    """
    before = state()
    action()
    after = state()
    imported = tuple(f"{name}." for name in after.modules - before.modules)
    names = {name for name in before.names | after.names if not name.startswith(imported)}
    absent = object()
    return {name for name in names if before.names.get(name, absent) != after.names.get(name, absent)}
