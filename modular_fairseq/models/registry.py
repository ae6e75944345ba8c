"""The registry of mechanisms: what a model can be made of beside fairseq's Transformer.

A mechanism is one file. It registers the function that builds its part of the model, its options, and the
hooks of `Mechanism` that it needs:

    @register_attention("distance", seam="mask", options=DistanceOptions)
    def build_penalty(options, place: Place) -> nn.Module | None: ...

This is all that `--attention-type distance` needs, in every model family; `mae+distance` works as well,
because mae has the other seam. Mechanisms of whole layers register by `register_layer`, mechanisms that put
the layers of an encoder together by `register_encoder`. Model families, option checks, the criterion,
averaging, tables and benchmarks name no mechanism. They ask this registry.
"""

from collections.abc import Callable, Mapping
from dataclasses import Field, dataclass, field, fields, make_dataclass, replace
from typing import Any

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig
from fairseq.dataclass import FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from hydra.core.config_store import ConfigStore
from torch import Tensor, nn

from modular_fairseq.models.arrangement import Arrangement
from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.options import FAMILIES
from modular_fairseq_cli.errors import UsageError

SEAMS = {"gate": "scale the heads", "mask": "add to the scores"}
# The options of every criterion that adds the losses of mechanisms.
CRITERIA: dict[str, type[FairseqDataclass]] = {
    "modular_cross_entropy": LabelSmoothedCrossEntropyCriterionConfig
}


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


MECHANISMS: dict[str, Mechanism] = {}
Register = Callable[[Callable], Callable]


def register_attention(
    name: str, seam: str, options: type[FairseqDataclass] = FairseqDataclass, **hooks
) -> Register:
    """Register the decorated function, which builds one of the two parts of an attention module (`Place`).

    Args:
        name: a value of --attention-type.
        seam: one of `SEAMS`.
        options: a FairseqDataclass whose fields all start with `name` and have a help text.
        hooks: further fields of `Mechanism`.

    Raises:
        ValueError: the name is taken, there is no such seam, or an option has another name or no help text.
    """
    if seam not in SEAMS:
        raise ValueError(
            f"attention type {name} is registered for the seam {seam!r}; it must be one of {', '.join(SEAMS)}"
        )
    if name == "plain":
        raise ValueError("attention type 'plain' is registered already; take another name")
    return _register("attention type", name, seam, options, is_used=lambda o: uses(o, name), **hooks)


def register_layer(
    name: str, options: type[FairseqDataclass], is_used: Callable[[Any], bool], needs: str, **hooks
) -> Register:
    """Register the decorated function, which builds parts of layers (`LayerPlace`).

    Args:
        name: what the names of its options start with.
        options: a FairseqDataclass.
        is_used, needs, hooks: further fields of `Mechanism`.

    Raises:
        ValueError: see `register_attention`.
    """
    return _register("mechanism", name, "layer", options, is_used=is_used, needs=needs, **hooks)


def register_encoder(
    name: str, options: type[FairseqDataclass], is_used: Callable[[Any], bool], needs: str, **hooks
) -> Register:
    """Register the decorated function, which arranges the layers of encoders; see `register_layer`."""
    return _register("mechanism", name, "encoder", options, is_used=is_used, needs=needs, **hooks)


def _register(what: str, name: str, kind: str, options: type[FairseqDataclass], **hooks) -> Register:
    if name in MECHANISMS or not name.isidentifier():
        raise ValueError(
            f"{what} {name!r} is registered already, or is no name of letters, digits and _; take another"
        )
    start = f"{name}_" if kind in SEAMS else name
    for f in fields(options):
        if f.name != "_name" and not f.name.startswith(start):
            raise ValueError(f"option {f.name} of {what} {name} must start with {start}")
        if f.name != "_name" and not f.metadata.get("help"):
            raise ValueError(f"option {f.name} of {what} {name} must have a help text")

    def register(build: Callable) -> Callable:
        mechanism = Mechanism(name, kind, options, build, **hooks)
        for family, defaults in mechanism.family_defaults.items():
            if family not in FAMILIES or not defaults.keys() <= set(mechanism.option_names):
                raise ValueError(
                    f"{what} {name} has defaults for {family}: {', '.join(defaults)}; there must be "
                    "such a model family, and such options of the mechanism"
                )
        MECHANISMS[name] = mechanism
        for family in FAMILIES:
            _join(FAMILIES, family, options, mechanism.family_defaults.get(family, {}))
            _publish("model", family, FAMILIES[family], MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY)
        for criterion in CRITERIA if mechanism.losses else ():
            _join(CRITERIA, criterion, mechanism.losses.options, {})
            _publish(
                "criterion", criterion, CRITERIA[criterion], CRITERION_REGISTRY, CRITERION_DATACLASS_REGISTRY
            )
        return build

    return register


def _join(
    owners: dict[str, type], owner: str, options: type[FairseqDataclass], defaults: Mapping[str, Any]
) -> None:
    """Add fields to the options of a model family or criterion."""
    changed = [
        (f.name, f.type, field(default=defaults[f.name], metadata=dict(f.metadata)))
        for f in fields(options)
        if f.name in defaults
    ]
    base = owners[owner]
    if not issubclass(base, options):
        owners[owner] = make_dataclass(base.__name__, changed, bases=(options, base))


def _publish(
    group: str, name: str, options: type[FairseqDataclass], registry: dict, dataclasses: dict
) -> None:
    """Replace the options in all three places where fairseq put them, if they are registered there
    already.
    """
    if name not in registry:
        return
    dataclasses[name] = options
    setattr(registry[name], "__dataclass", options)  # noqa: B010  (in a class body, Python changes the name)
    node = options()
    node._name = name
    ConfigStore.instance().store(name=name, group=group, node=node, provider="fairseq")


# What the house asks.


def uses(options, part: str) -> bool:
    """Tell whether `part`, such as mae or dma, is in --attention-type."""
    return part in options.attention_type.split("+")


def of_kind(*kinds: str) -> list[Mechanism]:
    """Return the mechanisms of these kinds, in the order of the kinds."""
    return [mechanism for kind in kinds for mechanism in MECHANISMS.values() if mechanism.kind == kind]


def used_by(options) -> list[Mechanism]:
    return [mechanism for mechanism in of_kind("encoder", "layer", *SEAMS) if mechanism.is_used(options)]


def check_attention_type(value: str) -> None:
    """Raise UsageError if a name is not registered, or if two want the same seam."""
    names, parts = value.split("+"), {mechanism.name: mechanism for mechanism in of_kind(*SEAMS)}
    if value != "plain" and (not parts.keys() >= set(names) or len(set(names)) < len(names)):
        gates, masks = ([each.name for each in of_kind(seam)] for seam in SEAMS)
        choices = ["plain", *gates, *masks, *(f"{gate}+{mask}" for gate in gates for mask in masks)]
        raise UsageError(
            f"--attention-type is {value!r}; it must be one of {', '.join(choices)}, or what another "
            "--user-dir registers"
        )
    for seam, effect in SEAMS.items():
        same = [name for name in names if value != "plain" and parts[name].kind == seam]
        if len(same) > 1:
            raise UsageError(
                f"--attention-type {value}: {' and '.join(same)} both {effect}, and only one part can; leave "
                "one of them out"
            )


def describe_attention_types() -> str:
    """Return the help of --attention-type."""
    known = "".join(f"; {each.name}: {each.summary}" for each in of_kind(*SEAMS) if each.summary)
    more = "two that take different seams are joined by +; or what a --user-dir registers"
    return f"plain: multi-head attention{known}; {more}"


def build_attention_parts(options, place: Place) -> dict[str, nn.Module | None]:
    """Build what --attention-type puts into the seams of one attention module.

    Gates are built first, so that the same seed gives the same weights.
    """
    return {each.kind: each.build(options, place) for each in of_kind(*SEAMS) if each.is_used(options)}


def build_layer_parts(options, place: LayerPlace) -> LayerParts:
    """Join what the mechanisms of layers put into one layer.

    Raises:
        UsageError: two mechanisms want the same part.
    """
    plain, joined, owners = LayerParts(), {}, {}
    for mechanism in of_kind("layer"):
        parts = mechanism.build(options, place) if mechanism.is_used(options) else plain
        for f in fields(LayerParts):
            value = getattr(parts, f.name)
            if value != getattr(plain, f.name):
                other = owners.setdefault(f.name, mechanism)
                _refuse_both(other, mechanism, f"change the {f.name} of a layer")
                joined[f.name] = value
    return replace(plain, **joined)


def build_arrangement(options) -> Arrangement:
    """Return how the layers of the encoder are put together.

    Raises:
        UsageError: two mechanisms want to arrange them.
    """
    found = [mechanism for mechanism in of_kind("encoder") if mechanism.is_used(options)]
    for mechanism in found:
        _refuse_both(found[0], mechanism, "arrange the layers of the encoder")
    return found[0].build(options) if found else Arrangement()


def _refuse_both(one: Mechanism, other: Mechanism, what: str) -> None:
    if one is not other:
        raise UsageError(f"{one.needs} and {other.needs} both {what}; leave one of them out")


def finish(model: nn.Module, options) -> None:
    """Let the mechanisms in use prepare the whole model, and keep the main optimizer from what learns
    otherwise.
    """
    for mechanism in used_by(options):
        mechanism.after_build(model, options)
    for parameter in trained_outside(model):
        parameter.requires_grad_(False)


def trained_outside(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that learn, but not by the main optimizer, such as gates that learn in G
    steps.
    """
    return [parameter for mechanism in MECHANISMS.values() for parameter in mechanism.trained_outside(model)]


def auxiliary_losses() -> list[type[AuxiliaryLosses]]:
    return [mechanism.losses for mechanism in MECHANISMS.values() if mechanism.losses]


def must_agree() -> dict[str, str]:
    """Return the endings of weights' names that averaged checkpoints must agree in, with reasons."""
    return {ending: reason for each in MECHANISMS.values() for ending, reason in each.must_agree.items()}


def short_training(options, epochs: int, warmup_updates: int) -> list[str]:
    """Return the words of fairseq-train that a short training of a model with these options needs."""
    return [
        word for each in used_by(options) for word in each.short_training(options, epochs, warmup_updates)
    ]
