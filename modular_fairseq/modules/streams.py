"""k parallel stacks of layers over one input (Multi-Stream Transformers, Burtsev and Rumshisky 2021).

This is the sum in Eq. 1:

    sum_i S_i(Z),    S_i = a stack of layers with parameters of its own
"""

from contextlib import nullcontext
from typing import cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn.attention import SDPBackend, sdpa_kernel

from modular_fairseq.modules.masks import AttentionMasks


class Streams(nn.ModuleList):
    """The sum of k streams, where `self[i][l]` is layer l of stream i.

    The same numbers are computed in one of two ways. By default the streams run one after the other, layer by
    layer. With `batched`, each layer of all streams runs at once in training, with the parameters of the k
    layers stacked. This launches fewer and larger kernels, which may be faster on a GPU (not measured). On a
    CPU it takes 1.05 to 1.18 of the time of as many layers in sequence, and the default takes 1.00 to 1.02 (d
    = 512 and 128, k = 2 and 4). Outside training the default is always used, so that tools that inspect a
    trained model see the forward pass of every layer.

    Args:
        streams: k lists with equal numbers of layers, `(x [T, B, d], encoder_padding_mask, masks) -> [T, B,
            d]`.
        batched: train each layer of all streams at once. The layers must then differ only in their
            parameters, and must not have buffers.
    """

    def __init__(self, streams: list[list[nn.Module]], batched: bool = False):
        super().__init__([nn.ModuleList(layers) for layers in streams])
        self.batched = batched

    def forward(
        self, z: Tensor, masks: AttentionMasks | None = None, states: list[Tensor] | None = None
    ) -> Tensor:
        """Return the sum of the streams [T, B, d].

        Args:
            z: input of every stream [T, B, d].
            masks: the masks of all layers. None masks nothing.
            states: a list that receives the sum over streams after every layer, or None.
        """
        at_once = self.batched and self.training
        masks = masks or AttentionMasks(None)
        outputs: list[Tensor] | Tensor = z.expand(len(self), *z.shape)
        for layers in zip(*self, strict=True):
            if at_once:
                outputs = self._at_once(layers, cast(Tensor, outputs), masks)
            else:
                outputs = self._one_by_one(layers, outputs, masks)
            if states is not None:
                states.append(_sum(outputs))
        return _sum(outputs)

    @staticmethod
    def _one_by_one(
        layers: tuple[nn.Module, ...], inputs: list[Tensor] | Tensor, masks: AttentionMasks
    ) -> list[Tensor]:
        """Apply layer i to input i [T, B, d]."""
        return [
            layer(x, encoder_padding_mask=masks.key_padding_mask, masks=masks)
            for layer, x in zip(layers, inputs, strict=True)
        ]

    @staticmethod
    def _at_once(layers: tuple[nn.Module, ...], inputs: Tensor, masks: AttentionMasks) -> Tensor:
        """Apply layer i to input i at the same time for all i: [k, T, B, d] -> [k, T, B, d].

        The dropout masks of the streams are independent, as they are one by one. On a GPU, attention is
        computed by matrix products, which keeps its weights in memory: inside `vmap`, torch's fused kernels
        get a mask of a wrong size (https://github.com/pytorch/pytorch/pull/188764).
        """
        stacked = {
            name: torch.stack([layer.get_parameter(name) for layer in layers])
            for name, _ in layers[0].named_parameters()
        }
        run = vmap(
            lambda parameters, x: functional_call(
                layers[0], parameters, (x, masks.key_padding_mask), {"masks": masks}
            ),
            randomness="different",
        )
        with sdpa_kernel(SDPBackend.MATH) if inputs.is_cuda else nullcontext():
            return run(stacked, inputs)


def _sum(outputs: list[Tensor] | Tensor) -> Tensor:
    return cast(Tensor, sum(outputs))
