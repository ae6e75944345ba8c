"""What parts of a model compute as it runs, by forward hooks.

    with recorded({"encoder.layers.2": layer.competition}) as outputs:
        model(**batch["net_input"])
    outputs["encoder.layers.2"]     # one output for each call

The model computes what it did.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn


@contextmanager
def recorded(
    modules: Mapping[str, nn.Module],
    take: Callable[[nn.Module, tuple, Any], Any] = lambda module, args, output: output,
) -> Iterator[dict[str, list[Any]]]:
    """Inside it, every call of a module adds what `take(module, args, output)` makes of it to the list of
    that name.

    The lists are the caller's to clear.
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
    """What each module computed in its first call since the last `pop`; LayerDrop and the like may leave
    modules out.
    """
    first = {name: calls[0] for name, calls in outputs.items() if calls}
    for calls in outputs.values():
        calls.clear()
    return first
