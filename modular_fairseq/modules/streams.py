"""k parallel stacks of layers over one input, Multi-Stream Transformers (Burtsev and Rumshisky), the sum in Eq. 1:

    sum_i S_i(Z),    S_i = a stack of layers with parameters of its own

The k streams run as one stack of layers of width k x d whose features, heads and parameters are in k groups that do not mix
(`grouped.py`): every operation does the work of all streams, and every stream has its own dropout masks. In a checkpoint each stream has
its own keys, <streams>.<stream>.<layer>.<parameter>, with the shapes of an ordinary layer.
"""

import re
from collections.abc import Iterator

import torch
from torch import Tensor, nn


class Streams(nn.Module):
    """The sum of k streams.

    Args:
        streams: k.
        layers: modules `(x [T, B, k x d], encoder_padding_mask) -> [T, B, k x d]`, whose parameters and buffers have the k streams in
            equal parts of their first dimension, but for what is in a `PerStream`.
    """

    def __init__(self, streams: int, layers: list[nn.Module]):
        super().__init__()
        self.streams = streams
        self.layers = nn.ModuleList(layers)
        self.register_state_dict_post_hook(_unstack)
        self.register_load_state_dict_pre_hook(_stack)

    def forward(self, z: Tensor, encoder_padding_mask: Tensor | None = None) -> Iterator[Tensor]:
        """z [T, B, d] -> after every layer the sum of the streams [T, B, d]; the last one is that of Eq. 1."""
        x = z.repeat(1, 1, self.streams)
        for layer in self.layers:
            x = layer(x, encoder_padding_mask=encoder_padding_mask)
            yield x.unflatten(-1, (self.streams, -1)).sum(dim=-2)


class PerStream(nn.Module):
    """A gate for each stream, which looks at the features of its own stream and scales the heads of its own stream.

    Args:
        parts: k modules as `MultiheadAttention` takes them for `gate`.
    """

    def __init__(self, parts: list[nn.Module]):
        super().__init__()
        self.per_stream = nn.ModuleList(parts)

    def forward(self, x: Tensor, padding_mask: Tensor | None, incremental_state: dict | None, rows: int) -> Tensor | None:
        """x [T, B, k x d] -> the scale of all heads [rows, k x H, T or 1, 1], or None for all ones."""
        inputs = x.chunk(len(self.per_stream), dim=-1)
        scales = [
            part(own, padding_mask, incremental_state=incremental_state, rows=rows)
            for part, own in zip(self.per_stream, inputs, strict=True)
        ]
        return None if scales[0] is None else torch.cat(scales, dim=1)


def name_in_checkpoint(name: str) -> str:
    """The name of a module or parameter inside a `PerStream` of `Streams` as checkpoints have it; other names stay."""
    return re.sub(r"(^|\.)layers\.(\d+)\.(.+)\.per_stream\.(\d+)", r"\g<1>\4.\2.\3", name)


def _unstack(module: Streams, state_dict: dict[str, Tensor], prefix: str, _) -> None:
    """layers.<layer>.<parameter> of all streams -> <stream>.<layer>.<parameter> of each, views of it."""
    for key in [key for key in state_dict if key.startswith(f"{prefix}layers.")]:
        name, value = key.removeprefix(prefix), state_dict.pop(key)
        if ".per_stream." in name:
            state_dict[prefix + name_in_checkpoint(name)] = value
            continue
        for i, part in enumerate(value.chunk(module.streams)):
            shape = part.shape[1:] if module.streams > 1 and part.size(0) == 1 else part.shape
            state_dict[f"{prefix}{i}.{name.removeprefix('layers.')}"] = part.view(shape)


def _stack(module: Streams, state_dict: dict[str, Tensor], prefix: str, *_) -> None:
    """The other way round; keys that are missing are left to `load_state_dict` to report."""
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if ".per_stream." in name:
            parts = [prefix + name_in_checkpoint(name)]
        else:
            parts = [f"{prefix}{i}.{name.removeprefix('layers.')}" for i in range(module.streams)]
        if all(key in state_dict for key in parts):
            state_dict[prefix + name] = torch.cat([state_dict.pop(key).view(-1, *value.shape[1:]) for key in parts]).view_as(value)
