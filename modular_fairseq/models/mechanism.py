"""The description of a mechanism, which its registration creates (`registry.py`), and its possible parts."""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields
from typing import Any

from fairseq.dataclass import FairseqDataclass
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.fairseq_options import Options

# The two seams of an attention module, and what a part does there (in messages, after "both").
SEAMS = {"gate": "scale the heads", "mask": "add to the scores"}


@dataclass(frozen=True)
class Place:
    """The attention module that a part is built for.

    Attributes:
        num_heads: H.
        embed_dim: C, the width of the queries.
        source_dim: width of the encoder output, or None in an encoder and in a language model.
        self_attention: True for self-attention, False for cross-attention.
        decoder: True in a decoder, False in an encoder.
        groups: number of groups of features that do not mix in the layer (`LayerParts`). Heads 0 to
            H / groups - 1 belong to the first one, and so on.
    """

    num_heads: int
    embed_dim: int
    source_dim: int | None
    self_attention: bool
    decoder: bool
    groups: int = 1


@dataclass(frozen=True)
class LayerPlace:
    """The position of a layer in an encoder or decoder.

    Attributes:
        number: place of the layer on a word's way, from 0.
        depth: number of layers that a word passes.
        embed_dim: C, the width of the layer.
    """

    number: int
    depth: int
    embed_dim: int


def add_residual(update: Tensor, x: Tensor) -> Tensor:
    """Return x + update, the ordinary residual connection."""
    return x + update


def nothing() -> None:
    """Build no module."""
    return None


@dataclass(frozen=True)
class LayerParts:
    """The parts that mechanisms put into one layer of an encoder or decoder. The defaults make a plain layer.

    Attributes:
        groups: number of groups of features that do not mix in linear layers and norms
            (`modules/grouped.py`).
        competition: builds a module `x [T, B, C] -> [T, B, groups]`. It reads the input of the
            self-attention, and its result weighs the update of the self-attention, group by group.
        communication: builds a further sub-layer `[T, B, C] -> [T, B, C]` before the feed-forward sub-layer.
        residual: joins the update of a sub-layer and the input of the sub-layer.
        obsolete: names of parameters that such a layer had in an older version, and that had no effect. State
            dicts may have them.
    """

    groups: int = 1
    competition: Callable[[], nn.Module | None] = nothing
    communication: Callable[[], nn.Module | None] = nothing
    residual: Callable[[Tensor, Tensor], Tensor] = add_residual
    obsolete: tuple[str, ...] = ()


@dataclass(frozen=True)
class Mechanism:
    """A registered mechanism.

    Attributes:
        name: the name that its options start with.
        kind: "gate" or "mask" (the seams of attention), "layer" or "encoder".
        options: a FairseqDataclass. Every model family gets its fields.
        build: for gate and mask `(options, Place) -> nn.Module | None`, for layer `(options, LayerPlace) ->
            LayerParts`, for encoder `(options) -> Arrangement`. It may raise UsageError.
        is_used: tells from the options whether the model has the mechanism.
        summary: a description for the help of --attention-type.
        needs: the option that turns the mechanism on, as messages name it.
        check: refuses values and combinations of options by a UsageError. It gets a `checks.Choice`, and is
            called only if the mechanism is used.
        after_build: `(model, options)`, called with the finished model if the mechanism is used.
        after_head: `(model, options)`, called when a classification head was added to a model that has the
            mechanism.
        family_defaults: defaults that differ in a model family, by family and option.
        trained_outside: returns the parameters of a model that learn, but not by the main optimizer.
        losses: the losses that the mechanism adds to the training loss.
        must_agree: endings of parameter names. Checkpoints can only be averaged if these parameters are
            equal. The values are the reasons that a refusal gives.
        short_training: `(options, epochs, warmup_updates) -> words of the command line`. It returns options
            of fairseq-train that a training of few epochs needs, where the defaults are made for long ones.
        benched: models that `modular-fairseq bench` times by default, each an arch and options.
    """

    name: str
    kind: str
    options: type[FairseqDataclass]
    build: Callable[..., Any]
    is_used: Callable[[Options], bool]
    summary: str = ""
    needs: str = ""
    check: Callable[[Any], None] = lambda choice: None
    after_build: Callable[[BaseFairseqModel, Options], None] = lambda model, options: None
    after_head: Callable[[BaseFairseqModel, Options], None] = lambda model, options: None
    family_defaults: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    trained_outside: Callable[[nn.Module], list[nn.Parameter]] = lambda model: []
    losses: type[AuxiliaryLosses] | None = None
    must_agree: Mapping[str, str] = field(default_factory=dict)
    short_training: Callable[[Options, int, int], list[str]] = lambda options, epochs, warmup_updates: []
    benched: tuple[str, ...] = ()

    @property
    def own_options(self) -> list[Field]:
        """The fields of `options`."""
        return [f for f in fields(self.options) if f.name != "_name"]

    @property
    def option_names(self) -> list[str]:
        """The names of the fields of `options`."""
        return [f.name for f in self.own_options]


def uses(options: Options, part: str) -> bool:
    """Tell whether --attention-type contains the attention type `part`."""
    return part in options.attention_type.split("+")
