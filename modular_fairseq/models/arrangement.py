"""How the layers of an encoder are put together: one after the other, unless a mechanism says otherwise."""

from collections.abc import Callable, Iterable

from torch import Tensor, nn

RunLayers = Callable[[Iterable[nn.Module], Tensor], Tensor]


class Arrangement:
    """One layer after the other.

    `option` is what asks for another arrangement, for messages.
    """

    option = ""

    def depth(self, layers: int) -> int:
        """Return how many of `layers` layers a word passes."""
        return layers

    def layers_for(self, depth: int) -> int:
        """Return how many layers an encoder must have for a word to pass `depth` of them."""
        return depth

    def places(self, layers: int) -> list[int]:
        """Return the place (0 is the first) of every layer on a word's way, in the order in which they are
        built.
        """
        return list(range(layers))

    def arrange(self, encoder: nn.Module) -> None:
        """Put the built `encoder.layers` where they belong."""

    def run(
        self,
        encoder: nn.Module,
        x: Tensor,
        padding_mask: Tensor | None,
        states: list[Tensor] | None,
        run_layers: RunLayers,
    ) -> Tensor:
        """Apply all layers to x [T, B, C].

        Args:
            padding_mask: bool [B, T], True = pad.
            states: gets the output of every layer, if it is a list.
            run_layers: applies layers one after the other, and fills `states`.
        """
        return run_layers(encoder.layers, x)
