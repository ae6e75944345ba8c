"""What parts of a model compute as it runs, and where in the model they are.

with recorded({"encoder.layers.2": layer.competition}) as outputs:
    model(**batch["net_input"])
outputs["encoder.layers.2"]     # one output for each call
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor, nn

LAYER = re.compile(r"(?:layers|streams\.(\d+))\.(\d+)(?:\.|$)")


@contextmanager
def recorded(
    modules: Mapping[str, nn.Module], take: Callable[[nn.Module, tuple, Any], Any] = lambda module, args, output: output
) -> Iterator[dict[str, list[Any]]]:
    """Inside it, every call of a module adds what `take(module, args, output)` makes of it to the list of that name.

    The lists are the caller's to clear. The model computes what it did.
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
    """What each module computed in its first call since the last `pop`; LayerDrop and the like may leave modules out."""
    first = {name: calls[0] for name, calls in outputs.items() if calls}
    for calls in outputs.values():
        calls.clear()
    return first


def place(name: str, names: Mapping[str, Any]) -> tuple[int, int | None]:
    """The layer of a module, from 1, as a word passes them, and its stream, from 1, or None outside streams.

    `names`: of all modules of the model: the last layer of an encoder comes after the streams.
    """
    stream, layer = LAYER.search(name).groups()
    if stream is not None:
        return int(layer) + 2, int(stream) + 1
    in_streams = [int(found[2]) + 1 for other in names if (found := LAYER.search(other)) and found[1] is not None]
    stack = name.split(".")[0]
    return int(layer) + 1 + (max(in_streams) if in_streams and stack == "encoder" and layer != "0" else 0), None


def in_order(modules: Mapping[str, Any]) -> dict[str, Any]:
    """Modules of layers by name, in the order in which a word passes them; those of a layer, and of streams, as they were."""
    return dict(sorted(modules.items(), key=lambda item: (side_of(item[0]) == TARGET, place(item[0], modules)[0])))


SOURCE, TARGET = SIDES = ("source", "target")


def side_of(name: str) -> str:
    """Of which tokens the positions of a module are: those of its encoder, or those that its decoder (or language model) reads."""
    return TARGET if "decoder" in name.split(".") else SOURCE


def tokens_of(side: str, batch: dict) -> Tensor:
    """The tokens that encoder or decoder reads, [B, T]."""
    net_input = batch["net_input"]
    return net_input["prev_output_tokens"] if side == TARGET and "prev_output_tokens" in net_input else net_input["src_tokens"]


def dictionary_of(side: str, model: nn.Module) -> Dictionary:
    return (model.decoder if side == TARGET else model.encoder).dictionary
