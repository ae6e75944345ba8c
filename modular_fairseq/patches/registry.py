"""How a patch is declared: one function, what it changes, and why.

A subject of this package (`trainer.py`, `data.py`, ...) declares its patches with two decorators, and
importing it adds them to `PATCHES`. Nothing is changed before `modular_fairseq.patches.apply`.
"""

import functools
import inspect
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Patch:
    """One change to fairseq, torch, numpy or the process.

    Args:
        name: of the function that makes the change.
        targets: dotted names of everything that is changed; `*` stands for any part of a name.
        reason: the docstring of the function: what is wrong without the patch, and in which lines of fairseq.
        apply: makes the change, when it is called for the first time.
    """

    name: str
    targets: tuple[str, ...]
    reason: str
    apply: Callable[[], None]


PATCHES: list[Patch] = []


def replace(*targets: str) -> Callable[[Callable], Callable]:
    """Let the decorated function run in place of each of `targets`, which are functions or methods.

    It is called with what it replaces as its first argument, then with the arguments of the call. A function
    that modules import by its name is a target in each of them.
    """

    def register(function: Callable) -> Callable:
        def apply() -> None:
            for target in targets:
                owner, _, name = target.rpartition(".")
                _replace(pkgutil.resolve_name(owner), name, function)

        PATCHES.append(Patch(function.__name__, targets, inspect.getdoc(function), apply))
        return function

    return register


def change(*targets: str) -> Callable[[Callable], Callable]:
    """Let the decorated function, which takes no arguments, make a change to `targets` of any other kind."""

    def register(function: Callable) -> Callable:
        PATCHES.append(Patch(function.__name__, targets, inspect.getdoc(function), function))
        return function

    return register


def _replace(owner: object, name: str, function: Callable) -> None:
    original = getattr(owner, name)

    @functools.wraps(original)
    def replacement(*args, **kwargs):
        return function(original, *args, **kwargs)

    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(replacement) if is_static else replacement)
