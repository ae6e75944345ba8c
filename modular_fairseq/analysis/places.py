"""Where in a model a module is: its side, layer and stream, by its name; and which tokens it sees."""

import re
from collections.abc import Mapping
from typing import Any

from fairseq.data import Dictionary
from torch import Tensor, nn

LAYER = re.compile(r"(?:layers|streams\.(\d+))\.(\d+)(?:\.|$)")
SOURCE, TARGET = SIDES = ("source", "target")


def place(name: str, names: Mapping[str, Any]) -> tuple[int, int | None]:
    """The layer of a module, from 1, as a word passes them (0 outside layers), and its stream, from 1, or
    None outside streams.

    Args:
        name: such as encoder.streams.0.1.self_attn.
        names: of all modules of its sort in the model, as the last layer of an encoder comes after the
            streams.
    """
    found = LAYER.search(name)
    if found is None:
        return 0, None
    stream, layer = found.groups()
    if stream is not None:
        return int(layer) + 2, int(stream) + 1
    in_streams = [
        int(found[2]) + 1 for other in names if (found := LAYER.search(other)) and found[1] is not None
    ]
    stack = name.split(".")[0]
    return int(layer) + 1 + (
        max(in_streams) if in_streams and stack == "encoder" and layer != "0" else 0
    ), None


def in_order(modules: Mapping[str, Any]) -> dict[str, Any]:
    """Modules of layers by name, in the order in which a word passes them; those of a layer, and of streams,
    as they were.
    """
    return dict(
        sorted(modules.items(), key=lambda item: (side_of(item[0]) == TARGET, place(item[0], modules)[0]))
    )


def side_of(name: str) -> str:
    """Of which tokens the positions of a module are: those of its encoder, or those that its decoder (or
    language model) reads.
    """
    return TARGET if "decoder" in name.split(".") else SOURCE


def tokens_of(side: str, batch: dict) -> Tensor:
    """The tokens that encoder or decoder reads, [B, T]."""
    net_input = batch["net_input"]
    return (
        net_input["prev_output_tokens"]
        if side == TARGET and "prev_output_tokens" in net_input
        else net_input["src_tokens"]
    )


def dictionary_of(side: str, model: nn.Module) -> Dictionary:
    """Of these tokens."""
    return (model.decoder if side == TARGET else model.encoder).dictionary
