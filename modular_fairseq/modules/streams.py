"""k parallel stacks of layers over one input, Multi-Stream Transformers (Burtsev and Rumshisky), the sum in
Eq. 1:

sum_i S_i(Z),    S_i = a stack of layers with parameters of its own
"""

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap


class Streams(nn.ModuleList):
    """The sum of k streams; layer l of stream i is `self[i][l]`.

    There are two ways to the same numbers: the streams one after the other, and each layer of all streams at
    once, with the parameters of the k layers stacked. The second launches fewer and larger kernels, which may
    win on a GPU (not measured). On a CPU it takes 1.05 to 1.18 of the time of as many layers in sequence, and
    the first 1.00 to 1.02 (d = 512 and 128, k = 2 and 4). It is for training only, so that what looks inside
    a trained model finds every layer at work.

    Args:
        streams: k lists of equally many layers `(x [T, B, d], encoder_padding_mask) -> [T, B, d]`.
        batched: train all streams at once. Their layers must then be alike but for their parameters, and
            without buffers.
    """

    def __init__(self, streams: list[list[nn.Module]], batched: bool = False):
        super().__init__([nn.ModuleList(layers) for layers in streams])
        self.batched = batched

    def forward(
        self, z: Tensor, encoder_padding_mask: Tensor | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """z [T, B, d] -> the sum of the streams [T, B, d]. `states` gets the sum after every layer."""
        run = self._at_once if self.batched and self.training else self._one_by_one
        outputs = z.expand(len(self), *z.shape)
        for layers in zip(*self, strict=True):
            outputs = run(layers, outputs, encoder_padding_mask)
            if states is not None:
                states.append(sum(outputs))
        return sum(outputs)

    @staticmethod
    def _one_by_one(
        layers: tuple[nn.Module, ...], inputs: list[Tensor] | Tensor, padding_mask: Tensor | None
    ) -> list[Tensor]:
        return [layer(x, encoder_padding_mask=padding_mask) for layer, x in zip(layers, inputs, strict=True)]

    @staticmethod
    def _at_once(layers: tuple[nn.Module, ...], inputs: Tensor, padding_mask: Tensor | None) -> Tensor:
        """[k, T, B, d] -> [k, T, B, d]. Dropout masks of the streams are independent, as they are one by
        one.
        """
        stacked = {
            name: torch.stack([layer.get_parameter(name) for layer in layers])
            for name, _ in layers[0].named_parameters()
        }
        run = vmap(
            lambda parameters, x: functional_call(layers[0], parameters, (x, padding_mask)),
            randomness="different",
        )
        return run(stacked, inputs)
