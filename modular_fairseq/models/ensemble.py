"""The switches of "Ensemble Mechanisms in the Transformer" (Eschbach-Dymanus) that fairseq does not have.

fairseq has heads, attention dropout and hidden dropout as options; residual connections are switched off
here. `modular-fairseq ablate` runs the paper's greedy protocol.
"""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from modular_fairseq.models.registry import LayerParts, LayerPlace, register_layer


@dataclass
class ResidualOptions(FairseqDataclass):
    """Options of residual connections."""

    no_residual: bool = field(
        default=False,
        metadata={
            "help": "no residual connection around any sub-layer: norm(dropout(F(x))), or "
            "dropout(F(norm(x))) with pre-norm"
        },
    )


def forget_input(update: Tensor, x: Tensor) -> Tensor:
    return update


@register_layer(
    "no_residual",
    options=ResidualOptions,
    is_used=lambda options: options.no_residual,
    needs="--no-residual",
    benched=("modular_transformer_iwslt_de_en --no-residual",),
)
def build_residual(options, place: LayerPlace) -> LayerParts:
    """Return a layer whose sub-layers forget their input."""
    return LayerParts(residual=forget_input)
