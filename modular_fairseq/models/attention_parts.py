"""What --attention-type names: parts of attention modules, each in one of their two seams
(`modules/attention.py`).

    @register_attention("distance", seam="mask", options=DistanceOptions)
    def build_penalty(options, place: Place) -> nn.Module | None: ...

is all that --attention-type distance needs, in every model family, and mae+distance, as mae has the other
seam.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, make_dataclass

from fairseq.dataclass import FairseqDataclass
from fairseq.models import MODEL_DATACLASS_REGISTRY, MODEL_REGISTRY
from hydra.core.config_store import ConfigStore
from torch import nn

from modular_fairseq.models.options import FAMILIES, uses
from modular_fairseq_cli.errors import UsageError

SEAMS = {"gate": "scale the heads", "mask": "add to the scores"}


@dataclass(frozen=True)
class Place:
    """The attention module that a part is built for.

    Args:
        num_heads, embed_dim: H and C, the width of its queries.
        gate_dim: width of what its gate looks at.
        self_attention: False: cross-attention.
        decoder: False: in an encoder.
    """

    num_heads: int
    embed_dim: int
    gate_dim: int
    self_attention: bool
    decoder: bool


Builder = Callable[[object, Place], nn.Module | None]


@dataclass(frozen=True)
class AttentionPart:
    """Args: one of `SEAMS`; the dataclass of its options; what builds it."""

    seam: str
    options: type[FairseqDataclass]
    build: Builder


PARTS: dict[str, AttentionPart] = {}


def register_attention(
    name: str, seam: str, options: type[FairseqDataclass] = FairseqDataclass
) -> Callable[[Builder], Builder]:
    """Decorates what builds a part out of the model's options, or None for a place that shall have none; it
    may raise UsageError.

    Args:
        name: for --attention-type.
        seam: one of `SEAMS`.
        options: a FairseqDataclass whose fields all start with `name` and have a help text; every model
            family gets them.

    Raises:
        ValueError: the name is taken, there is no such seam, or an option is called otherwise.
    """
    if name in PARTS or name == "plain" or not name.isidentifier():
        raise ValueError(
            f"attention type {name!r} is registered already, or is no name of letters, digits and _; take "
            "another"
        )
    if seam not in SEAMS:
        raise ValueError(
            f"attention type {name} is registered for the seam {seam!r}; it must be one of {', '.join(SEAMS)}"
        )
    for option in option_names(options):
        if not option.startswith(f"{name}_"):
            raise ValueError(f"option {option} of attention type {name} must start with {name}_")
    for f in fields(options):
        if f.name in option_names(options) and not f.metadata.get("help"):
            raise ValueError(f"option {f.name} of attention type {name} must have a help text")

    def register(build: Builder) -> Builder:
        PARTS[name] = AttentionPart(seam, options, build)
        for model, family in FAMILIES.items():
            if not issubclass(family, options):
                _replace_options(model, make_dataclass(family.__name__, [], bases=(options, family)))
        return build

    return register


def _replace_options(model: str, family: type[FairseqDataclass]) -> None:
    """In all three places where fairseq's `register_model` has put the options of a family."""
    FAMILIES[model] = MODEL_DATACLASS_REGISTRY[model] = family
    setattr(MODEL_REGISTRY[model], "__dataclass", family)  # noqa: B010  (in a class body, Python would change the name)
    node = family()
    node._name = model
    ConfigStore.instance().store(name=model, group="model", node=node, provider="fairseq")


def option_names(options: type[FairseqDataclass]) -> list[str]:
    return [f.name for f in fields(options) if f.name != "_name"]


def check_attention_type(value: str) -> None:
    """Raises UsageError: a name is not registered, or two want the same seam."""
    names = value.split("+")
    if value != "plain" and (not PARTS.keys() >= set(names) or len(set(names)) < len(names)):
        gates, masks = ([name for name, part in PARTS.items() if part.seam == seam] for seam in SEAMS)
        choices = ["plain", *gates, *masks, *(f"{gate}+{mask}" for gate in gates for mask in masks)]
        raise UsageError(
            f"--attention-type is {value!r}; it must be one of {', '.join(choices)}, or what another "
            "--user-dir registers"
        )
    for seam, effect in SEAMS.items():
        same = [name for name in names if value != "plain" and PARTS[name].seam == seam]
        if len(same) > 1:
            raise UsageError(
                f"--attention-type {value}: {' and '.join(same)} both {effect}, and only one part can; leave "
                "one of them out"
            )


def build_parts(options, place: Place) -> dict[str, nn.Module | None]:
    """What --attention-type puts in the seams of one attention module; gates first, so that the same seed
    gives the same weights.
    """
    chosen = [part for name, part in PARTS.items() if uses(options, name)]
    return {part.seam: part.build(options, place) for seam in SEAMS for part in chosen if part.seam == seam}
