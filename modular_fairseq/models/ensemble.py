"""The switches of "Ensemble Mechanisms in the Transformer" (Eschbach-Dymanus) that fairseq lacks.

The paper switches residual connections, attention heads, attention dropout and hidden dropout. fairseq has
options for all of these except residual connections. Section 4.2 suggests attention dropout that grows in the
first quarter of the training. `modular-fairseq ablate` runs the paper's greedy protocol.
"""

from dataclasses import dataclass, field

from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from torch import Tensor

from modular_fairseq.models.checks import Choice
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.registry import LayerParts, LayerPlace, register_layer
from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq.modules.dropout import GrowingDropout
from modular_fairseq.modules.independent_mechanisms import InterMechanismAttention
from modular_fairseq_cli.errors import UsageError


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


@dataclass
class AttentionDropoutOptions(FairseqDataclass):
    """The option of attention dropout that grows."""

    attention_dropout_warmup_updates: int = field(
        default=0,
        metadata={
            "help": "let the probability of attention dropout grow from 0 to --attention-dropout in this "
            "many updates, a quarter of the training for example; with 0 it is constant (default: 0)"
        },
    )


def check_attention_dropout(choice: Choice) -> None:
    """Check the option of attention dropout that grows.

    Raises:
        UsageError: the number of updates is negative, there is no attention dropout, or the layers are
            compiled, which would compile them again for every probability.
    """
    options, updates = choice.options, choice.options.attention_dropout_warmup_updates
    if updates < 0:
        raise UsageError(f"--attention-dropout-warmup-updates is {updates}; it must be at least 0")
    if options.attention_dropout == 0:
        choice.refuse(["attention_dropout_warmup_updates"], "with --attention-dropout 0")
    if options.compile:
        raise UsageError(
            "--attention-dropout-warmup-updates does not work with --compile, as compiled layers have a "
            "constant dropout; leave one of them out"
        )


def grow_attention_dropout(model: BaseFairseqModel, options: Options) -> None:
    """Let the attention dropout of all attention modules of a model grow."""
    for module in model.modules():
        if isinstance(module, MultiheadAttention | InterMechanismAttention):
            dropout = module.dropout_module
            module.dropout_module = GrowingDropout(
                dropout.p, options.attention_dropout_warmup_updates, dropout.module_name
            )


@register_layer(
    "attention_dropout_warmup",
    options=AttentionDropoutOptions,
    is_used=lambda options: options.attention_dropout_warmup_updates != 0,
    needs="--attention-dropout-warmup-updates",
    check=check_attention_dropout,
    after_build=grow_attention_dropout,
)
def leave_layer(options: Options, place: LayerPlace) -> LayerParts:
    """Return the parts of a plain layer, of which only the dropout differs, when the model is finished."""
    return LayerParts()
