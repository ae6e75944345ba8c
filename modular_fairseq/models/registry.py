"""The registry of mechanisms, which are the parts that a model can have beside fairseq's Transformer.

A mechanism is one file. It registers the function that builds its part of the model, its options, and the
hooks of `Mechanism` that it needs:

    @register_attention("distance", seam="mask", options=DistanceOptions)
    def build_penalty(options, place: Place) -> nn.Module | None: ...

Nothing else is needed for `--attention-type distance` in every model family. `mae+distance` works as well,
because mae takes the other seam. `register_layer` registers mechanisms of whole layers, and
`register_encoder` those that arrange the layers of an encoder. Model families, option checks, the criterion,
averaging, tables and benchmarks name no mechanism. They ask `assembly.py`.
"""

from collections.abc import Callable, Mapping
from dataclasses import field, fields, make_dataclass
from typing import Any, TypeVar

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY, CRITERION_REGISTRY
from fairseq.dataclass import FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from hydra.core.config_store import ConfigStore

from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.mechanism import SEAMS, LayerParts, LayerPlace, Mechanism, Place, uses
from modular_fairseq.models.options import FAMILIES, LossOptions, MaskedLossOptions

__all__ = ["LayerParts", "LayerPlace", "Place", "register_attention", "register_encoder", "register_layer"]

# For every criterion that adds the losses of mechanisms, its options.
CRITERIA: dict[str, type[FairseqDataclass]] = {
    "modular_cross_entropy": LossOptions,
    "modular_masked_lm": MaskedLossOptions,
}

LOGGED = ("loss", "nll_loss", "ntokens", "nsentences", "sample_size")  # what criteria of fairseq log

MECHANISMS: dict[str, Mechanism] = {}  # all registered mechanisms by name
Build = TypeVar("Build", bound=Callable[..., Any])
Register = Callable[[Build], Build]


def register_attention(
    name: str, seam: str, options: type[FairseqDataclass] = FairseqDataclass, **hooks: Any
) -> Register:
    """Register an attention type by decorating the function that builds its part of an attention module.

    The function gets the options of the model and a `Place`, and returns a module or None.

    Args:
        name: the value of --attention-type.
        seam: "gate" or "mask", the part of the attention module that the function builds.
        options: a FairseqDataclass whose fields all start with `name` and `_`, and have a help text.
        hooks: further fields of `Mechanism`.

    Raises:
        ValueError: the name is taken or is not an identifier, there is no such seam, an option has another
            start or no help text, the name of a loss is taken, or the defaults of a model family name an
            unknown family or option.
    """
    if seam not in SEAMS:
        raise ValueError(
            f"attention type {name} is registered for the seam {seam!r}; it must be one of {', '.join(SEAMS)}"
        )
    if name == "plain":
        raise ValueError("attention type 'plain' is registered already; take another name")
    return _register("attention type", name, seam, options, is_used=lambda o: uses(o, name), **hooks)


def register_layer(
    name: str,
    options: type[FairseqDataclass],
    is_used: Callable[[Options], bool],
    needs: str,
    **hooks: Any,
) -> Register:
    """Register a mechanism of whole layers by decorating the function that builds `LayerParts`.

    The function gets the options of the model and a `LayerPlace`.

    Args:
        name: the start of the names of its options.
        options: a FairseqDataclass.
        is_used: tells from the options whether a model has the mechanism.
        needs: the option that turns the mechanism on, as messages name it.
        hooks: further fields of `Mechanism`.

    Raises:
        ValueError: see `register_attention`.
    """
    return _register("mechanism", name, "layer", options, is_used=is_used, needs=needs, **hooks)


def register_encoder(
    name: str,
    options: type[FairseqDataclass],
    is_used: Callable[[Options], bool],
    needs: str,
    **hooks: Any,
) -> Register:
    """Register a mechanism that arranges the layers of encoders by decorating the function that builds it.

    The function gets the options of the model and returns an `Arrangement`. For the arguments see
    `register_layer`.
    """
    return _register("mechanism", name, "encoder", options, is_used=is_used, needs=needs, **hooks)


def _register(what: str, name: str, kind: str, options: type[FairseqDataclass], **hooks: Any) -> Register:
    """Return a decorator that registers a mechanism, after checking its name and its options.

    Args:
        what: what messages call the mechanism.
        name, kind, options, hooks: fields of `Mechanism`.
    """
    if name in MECHANISMS:
        raise ValueError(f"{what} {name!r} is registered already; take another name")
    if not name.isidentifier():
        raise ValueError(
            f"{what} {name!r} is not an identifier of Python; take a name of letters, digits and _"
        )
    start = f"{name}_" if kind in SEAMS else name
    for f in fields(options):
        if f.name != "_name" and not f.name.startswith(start):
            raise ValueError(f"option {f.name} of {what} {name} must start with {start}")
        if f.name != "_name" and not f.metadata.get("help"):
            raise ValueError(f"option {f.name} of {what} {name} must have a help text")

    def register(build: Build) -> Build:
        mechanism = Mechanism(name, kind, options, build, **hooks)
        for family, defaults in mechanism.family_defaults.items():
            if family not in FAMILIES or not defaults.keys() <= set(mechanism.option_names):
                raise ValueError(
                    f"{what} {name} sets defaults of {', '.join(defaults)} in the model family {family}; the "
                    "family must exist, and the mechanism must have these options"
                )
        for loss in mechanism.losses.signs if mechanism.losses else ():
            others = [each.name for each in MECHANISMS.values() if each.losses and loss in each.losses.signs]
            if others or loss in LOGGED:
                raise ValueError(
                    f"{what} {name} logs a loss {loss!r}, as {(others or ['fairseq'])[0]} does; give it "
                    "another name"
                )
        MECHANISMS[name] = mechanism
        for family in FAMILIES:
            _join(FAMILIES, family, options, mechanism.family_defaults.get(family, {}))
            _publish("model", family, FAMILIES[family], MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY)
        if mechanism.losses is not None:
            for criterion in CRITERIA:
                _join(CRITERIA, criterion, mechanism.losses.options, {})
                _publish(
                    "criterion",
                    criterion,
                    CRITERIA[criterion],
                    CRITERION_REGISTRY,
                    CRITERION_DATACLASS_REGISTRY,
                )
        return build

    return register


def _join(
    owners: dict[str, type], owner: str, options: type[FairseqDataclass], defaults: Mapping[str, Any]
) -> None:
    """Add the fields of `options` to the options of a model family or criterion.

    Args:
        owners: `FAMILIES` or `CRITERIA`, which is changed.
        owner: key in `owners`.
        options: a FairseqDataclass.
        defaults: defaults that differ for this owner, by field.
    """
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
    """Replace the options of a registered model or criterion in the three places where fairseq has them."""
    if name not in registry:
        return
    dataclasses[name] = options
    setattr(registry[name], "__dataclass", options)  # noqa: B010  (Python would mangle the name in a class body)
    node = options()
    node._name = name
    ConfigStore.instance().store(name=name, group=group, node=node, provider="fairseq")
