"""Find the layer, stream and side of a module from its name, and the tokens of its positions.

The side is "source" for an encoder, and "target" for a decoder or a language model.
"""

import re
from collections.abc import Mapping
from typing import Any, TypeVar

from fairseq.data import Dictionary
from fairseq.models import BaseFairseqModel
from torch import Tensor

LAYER = re.compile(r"(?:layers|streams\.(\d+))\.(\d+)(?:\.|$)")
SOURCE, TARGET = SIDES = ("source", "target")

Part = TypeVar("Part")


def place(name: str, names: Mapping[str, Any]) -> tuple[int, int | None]:
    """Return the number of the layer and of the stream that a module is in.

    Layers are counted from 1 in the order in which a word passes through them. The number is 0 outside
    layers. Streams are counted from 1. The number is None outside streams.

    Args:
        name: name of the module, such as encoder.streams.0.1.self_attn.
        names: the names of all modules of the same type in the model. They tell how deep the streams are,
            because the last layer of an encoder comes after its streams.
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


def in_order(modules: Mapping[str, Part]) -> dict[str, Part]:
    """Sort modules, keyed by name, in the order in which a word passes through their layers.

    Modules of the same layer, also in different streams, keep their order.
    """
    return dict(
        sorted(modules.items(), key=lambda item: (side_of(item[0]) == TARGET, place(item[0], modules)[0]))
    )


def side_of(name: str) -> str:
    """Return `SOURCE` for a module of an encoder, and `TARGET` for one of a decoder or language model."""
    return TARGET if "decoder" in name.split(".") else SOURCE


def tokens_of(side: str, batch: dict) -> Tensor:
    """Return the tokens of a batch that the encoder or the decoder reads, int64 [B, T]."""
    net_input = batch["net_input"]
    return (
        net_input["prev_output_tokens"]
        if side == TARGET and "prev_output_tokens" in net_input
        else net_input["src_tokens"]
    )


def dictionary_of(side: str, model: BaseFairseqModel) -> Dictionary:
    """Return the dictionary of the tokens that the encoder or the decoder reads.

    If a model has no decoder, the dictionary of its encoder is returned for both sides.
    """
    return (model.decoder if side == TARGET and hasattr(model, "decoder") else model.encoder).dictionary
