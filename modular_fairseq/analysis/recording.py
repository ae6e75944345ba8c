"""Record the outputs of parts of a model while it runs, by forward hooks.

    with recorded({"encoder.layers.2": layer.competition}) as outputs:
        model(**batch["net_input"])
    outputs["encoder.layers.2"]     # one output for each call

The hooks do not change what the model computes.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def recorded(
    modules: Mapping[str, nn.Module],
    take: Callable[[Any, tuple, Any], Any] = lambda module, args, output: output,
) -> Iterator[dict[str, list[Any]]]:
    """Record every call of some modules inside the block. The caller clears the lists.

    Args:
        modules: the modules by name.
        take: called as `take(module, args, output)` after each call of a module. Its result is appended to
            the list of that name. By default it is the output of the module.
    """
    outputs: dict[str, list[Any]] = {name: [] for name in modules}

    def hook(name: str) -> Callable:
        def record(module: nn.Module, args: tuple, output: Any) -> None:
            outputs[name].append(take(module, args, output))

        return record

    handles = [module.register_forward_hook(hook(name)) for name, module in modules.items()]
    try:
        yield outputs
    finally:
        for handle in handles:
            handle.remove()


def pop(outputs: dict[str, list[Any]]) -> dict[str, Any]:
    """Return the recorded value of each module's first call since the last `pop`, and clear all lists.

    A module that was not called, for example because of LayerDrop, is left out.
    """
    first = {name: calls[0] for name, calls in outputs.items() if calls}
    for calls in outputs.values():
        calls.clear()
    return first
