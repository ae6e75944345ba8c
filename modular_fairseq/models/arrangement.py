"""How the layers of an encoder are connected: one after the other, or as a mechanism arranges them."""

from collections.abc import Callable, Iterable

from fairseq.models.transformer import TransformerEncoderBase
from torch import Tensor, nn

from modular_fairseq.modules.masks import AttentionMasks

RunLayers = Callable[[Iterable[nn.Module], Tensor], Tensor]


class Arrangement:
    """The plain arrangement, in which layers follow one another. Mechanisms subclass it.

    Attributes:
        option: the option that asks for another arrangement, as messages name it.
    """

    option = ""

    def depth(self, layers: int) -> int:
        """Return the number of layers, of `layers` in all, that a word passes one after the other."""
        return layers

    def layers_for(self, depth: int) -> int:
        """Return the number of layers that an encoder needs so that a word passes `depth` of them."""
        return depth

    def places(self, layers: int) -> list[int]:
        """Return the place of every layer on a word's way through the encoder, in the order of construction.

        The first place is 0. Parallel layers have the same place.

        Args:
            layers: number of layers in all.
        """
        return list(range(layers))

    def arrange(self, encoder: TransformerEncoderBase) -> None:
        """Rearrange `encoder.layers` after they have been built."""

    def run(
        self,
        encoder: TransformerEncoderBase,
        x: Tensor,
        masks: AttentionMasks,
        states: list[Tensor] | None,
        run_layers: RunLayers,
    ) -> Tensor:
        """Apply all layers to x [T, B, C].

        Args:
            encoder: the encoder that the layers belong to.
            x: the embedded source.
            masks: the masks of all layers. `masks.key_padding_mask` is bool [B, T], True = pad, or None.
            states: a list that receives the output of every layer, or None.
            run_layers: a function that applies layers one after the other and fills `states`.
        """
        return run_layers(encoder.layers, x)
