"""k parallel stacks of layers over one input, Multi-Stream Transformers (Burtsev and Rumshisky), the sum in Eq. 1:

    sum_i S_i(Z),    S_i = a stack of layers with parameters of its own

There are two ways to the same numbers: a loop over the streams, and all streams at once, as layers k times as wide whose features, heads
and parameters are in k groups that do not mix (`grouped.py`). Dropout masks are independent in both.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.func import functional_call


class Streams(nn.ModuleList):
    """The sum of k streams; stream i, layer l is `self[i][l]`.

    Args:
        streams: k lists of equally many layers `(x [T, B, d], encoder_padding_mask) -> [T, B, d]`.
        wide: None, or a layer `(x [T, B, k x d], encoder_padding_mask) -> [T, B, k x d]` for each of a stream's, whose parameters have
            those of the k streams in equal parts of their first dimension. It gives the computation only, so it may be on the meta device.

    Attributes:
        batched: all streams at once (needs `wide`) or one after the other; None: at once where the input is not on a CPU. On a CPU the loop
            is faster, 1.00 to 1.02 of the time of as many layers in sequence against 1.06 to 1.12 (d = 512 and 128, k = 2 and 4), because
            the parts of wide hidden states must be copied together. Elsewhere fewer, larger kernels are expected to win (not measured).
    """

    def __init__(self, streams: list[list[nn.Module]], wide: list[nn.Module] | None = None):
        super().__init__([nn.ModuleList(layers) for layers in streams])
        self._wide = wide  # a list, so that these are no sub-modules with parameters to save
        self.batched: bool | None = None

    def forward(self, z: Tensor, encoder_padding_mask: Tensor | None = None) -> Iterator[Tensor]:
        """z [T, B, d] -> after every layer the sum of the streams [T, B, d]; the last one is that of Eq. 1."""
        batched = self.batched if self.batched is not None else self._wide is not None and z.device.type != "cpu"
        return self._at_once(z, encoder_padding_mask) if batched else self._one_by_one(z, encoder_padding_mask)

    def _one_by_one(self, z: Tensor, encoder_padding_mask: Tensor | None) -> Iterator[Tensor]:
        states = [z] * len(self)
        for layers in zip(*self, strict=True):
            states = [layer(x, encoder_padding_mask=encoder_padding_mask) for layer, x in zip(layers, states, strict=True)]
            yield sum(states[1:], start=states[0])

    def _at_once(self, z: Tensor, encoder_padding_mask: Tensor | None) -> Iterator[Tensor]:
        x = z.repeat(1, 1, len(self))
        for wide, layers in zip(self._wide, zip(*self, strict=True), strict=True):
            wide.train(self.training)
            parameters = {
                name: torch.stack([layer.get_parameter(name) for layer in layers]).view(like.shape)
                for name, like in wide.named_parameters()
            }
            x = functional_call(wide, parameters, (x, encoder_padding_mask))
            yield x.unflatten(-1, (len(self), -1)).sum(dim=-2)
