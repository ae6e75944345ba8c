"""What a mechanism is: the record that registering it makes (`registry.py`), and the parts that it may
build.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from fairseq.dataclass import FairseqDataclass
from torch import Tensor, nn

from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses

SEAMS = {"gate": "scale the heads", "mask": "add to the scores"}


@dataclass(frozen=True)
class Place:
    """The attention module that a part is built for.

    Args:
        num_heads, embed_dim: H and C, the width of its queries.
        source_dim: width of the encoder output; None in an encoder.
        self_attention: False: cross-attention.
        decoder: False: in an encoder.
    """

    num_heads: int
    embed_dim: int
    source_dim: int | None
    self_attention: bool
    decoder: bool


@dataclass(frozen=True)
class LayerPlace:
    """The position of a layer: its `number`, from 0, of the `depth` layers that a word passes; C is
    `embed_dim`.
    """

    number: int
    depth: int
    embed_dim: int


def add_residual(update: Tensor, x: Tensor) -> Tensor:
    return x + update


def nothing() -> None:
    return None


@dataclass(frozen=True)
class LayerParts:
    """What mechanisms put into one layer of an encoder or decoder. The defaults are a plain layer.

    Args:
        groups: groups of features that do not mix in its linear layers and norms (`modules/grouped.py`).
        competition: builds a module `x [T, B, C] -> [T, B, groups]`, which looks at the input of the
            self-attention and weighs its update, group by group.
        communication: builds a further sub-layer `[T, B, C] -> [T, B, C]` before the feed-forward.
        residual: joins the update of every sub-layer and its input.
    """

    groups: int = 1
    competition: Callable[[], nn.Module | None] = nothing
    communication: Callable[[], nn.Module | None] = nothing
    residual: Callable[[Tensor, Tensor], Tensor] = add_residual


@dataclass(frozen=True)
class Mechanism:
    """What a registered mechanism says of itself.

    Args:
        name: the name that its options start with.
        kind: a seam of attention (gate, mask), layer or encoder.
        options: a FairseqDataclass. Every model family gets its fields.
        build: gate, mask: `(options, Place) -> nn.Module | None`; layer: `(options, LayerPlace) ->
            LayerParts`; encoder: `(options) -> Arrangement`. It may raise UsageError.
        is_used: tells from the options whether the model has the mechanism.
        summary: what it is, in the help of --attention-type.
        needs: the option that turns it on, as it stands in the sentence that refuses its options without it.
        check: refuses values and combinations (`checks.Choice`); it is called if the mechanism is used.
        after_build: `(model, options)`, called with the whole model if the mechanism is used.
        family_defaults: defaults that differ in a model family, by family and option.
        trained_outside: the parameters of a model that learn, but not by the main optimizer.
        losses: what the mechanism adds to the training loss.
        must_agree: endings of weights' names that checkpoints must agree in to be averaged, each with the
            reason that a refusal gives.
        short_training: `(options, epochs, warmup_updates) -> words of fairseq-train` that a training of few
            epochs needs, where the defaults are made for long ones.
        benched: models that `modular-fairseq bench` times by default: an arch and options.
    """

    name: str
    kind: str
    options: type[FairseqDataclass]
    build: Callable
    is_used: Callable[[Any], bool]
    summary: str = ""
    needs: str = ""
    check: Callable[[Any], None] = lambda choice: None
    after_build: Callable[[nn.Module, Any], None] = lambda model, options: None
    family_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trained_outside: Callable[[nn.Module], list[nn.Parameter]] = lambda model: []
    losses: type[AuxiliaryLosses] | None = None
    must_agree: Mapping[str, str] = field(default_factory=dict)
    short_training: Callable[[Any, int, int], list[str]] = lambda options, epochs, warmup_updates: []
    benched: tuple[str, ...] = ()

    @property
    def own_options(self) -> list[Field]:
        return [f for f in fields(self.options) if f.name != "_name"]

    @property
    def option_names(self) -> list[str]:
        return [f.name for f in self.own_options]


def uses(options, part: str) -> bool:
    """Tell whether `part`, such as mae or dma, is in --attention-type."""
    return part in options.attention_type.split("+")
