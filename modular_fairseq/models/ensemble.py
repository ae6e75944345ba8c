"""Residual connections can be switched off ("Ensemble Mechanisms in the Transformer", Eschbach-Dymanus).

The paper switches residual connections, attention heads, attention dropout and hidden dropout. fairseq has
options for all of these except residual connections. `modular-fairseq ablate` runs the paper's greedy
protocol.
"""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from torch import Tensor

from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.registry import LayerParts, LayerPlace, register_layer


@dataclass
class ResidualOptions(FairseqDataclass):
    """The option of residual connections."""

    no_residual: bool = field(
        default=False,
        metadata={
            "help": "remove the residual connection of every sub-layer F in encoder and decoder: its "
            "output is norm(dropout(F(x))), or dropout(F(norm(x))) with pre-norm"
        },
    )


def forget_input(update: Tensor, x: Tensor) -> Tensor:
    """Return the update of a sub-layer without its input x: no residual connection."""
    return update


@register_layer(
    "no_residual",
    options=ResidualOptions,
    is_used=lambda options: options.no_residual,
    needs="--no-residual",
    benched=("modular_transformer_iwslt_de_en --no-residual",),
)
def build_residual(options: Options, place: LayerPlace) -> LayerParts:
    """Return the parts of a layer whose sub-layers have no residual connections."""
    return LayerParts(residual=forget_input)
