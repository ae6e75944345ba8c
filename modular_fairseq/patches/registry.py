"""Declare patches: each is one function, with the names that it changes and the reason in its docstring.

A module of this package (`trainer.py`, `data.py`, ...) declares its patches with the decorators `replace` and
`change`. Importing the module adds them to `PATCHES`, but changes nothing else.
`modular_fairseq.patches.apply` makes the changes.
"""

import functools
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Patch:
    """One change to fairseq, torch, numpy or the process.

    Attributes:
        name: the name of the function that makes the change.
        targets: the dotted names of everything that is changed; `*` stands for any part of a name.
        reason: the docstring of the function. It says what the patch does, what is wrong without it, and in
            which lines of fairseq.
        apply: the function that makes the change. It must be called only once.
    """

    name: str
    targets: tuple[str, ...]
    reason: str
    apply: Callable[[], None]


PATCHES: list[Patch] = []


def replace(*targets: str) -> Callable[[Callable], Callable]:
    """Return a decorator that lets a function run in place of `targets`, which are functions or methods.

    The decorated function gets the replaced function as its first argument, followed by the arguments of the
    call. If other modules import a function by its name, its name in each of these modules is a target too.
    """

    def register(function: Callable) -> Callable:
        def apply() -> None:
            for target in targets:
                owner, _, name = target.rpartition(".")
                _replace(pkgutil.resolve_name(owner), name, function)

        PATCHES.append(Patch(function.__name__, targets, _reason(function), apply))
        return function

    return register


def change(*targets: str) -> Callable[[Callable], Callable]:
    """Return a decorator for a function without arguments that changes `targets` of any other kind."""

    def register(function: Callable) -> Callable:
        PATCHES.append(Patch(function.__name__, targets, _reason(function), function))
        return function

    return register


def _reason(function: Callable) -> str:
    return inspect.getdoc(function) or ""  # python -OO removes docstrings


def _replace(owner: object, name: str, function: Callable) -> None:
    original, found = getattr(owner, name), inspect.getattr_static(owner, name)

    @functools.wraps(original)
    def replacement(*args: Any, **kwargs: Any) -> Any:
        return function(original, *args, **kwargs)

    @functools.wraps(original)
    def of_class(cls: type, *args: Any, **kwargs: Any) -> Any:
        return function(functools.partial(original.__func__, cls), *args, **kwargs)

    if isinstance(found, classmethod):  # a subclass that inherits it must remain what it builds
        setattr(owner, name, classmethod(of_class))
    else:
        setattr(owner, name, staticmethod(replacement) if isinstance(found, staticmethod) else replacement)
