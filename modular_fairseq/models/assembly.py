"""The questions that models, criterion, checks and tables ask of the registered mechanisms.

Because they ask here, none of them has to name a mechanism.
"""

from dataclasses import fields, replace
from itertools import chain, product
from typing import Any

from fairseq.models import BaseFairseqModel
from torch import nn

from modular_fairseq.models.arrangement import Arrangement
from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.mechanism import SEAMS, LayerParts, LayerPlace, Mechanism, Place
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq_cli.errors import UsageError


def of_kind(*kinds: str) -> list[Mechanism]:
    """Return the mechanisms of the given kinds (see `Mechanism.kind`), in the order of the kinds."""
    return [mechanism for kind in kinds for mechanism in MECHANISMS.values() if mechanism.kind == kind]


def used_by(options: Options) -> list[Mechanism]:
    """Return the mechanisms that a model with these options has."""
    return [mechanism for mechanism in of_kind("encoder", "layer", *SEAMS) if mechanism.is_used(options)]


def check_attention_type(value: str) -> None:
    """Check a value of --attention-type.

    Raises:
        UsageError: a name is not registered or occurs twice, or two names take the same seam.
    """
    names, parts = value.split("+"), {mechanism.name: mechanism for mechanism in of_kind(*SEAMS)}
    if value != "plain" and (not parts.keys() >= set(names) or len(set(names)) < len(names)):
        of_seams = [[each.name for each in of_kind(seam)] for seam in SEAMS]
        sets = [list(filter(None, each)) for each in product(*(["", *of_seam] for of_seam in of_seams))]
        joined = ["+".join(each) for each in sets if len(each) > 1]
        choices = ["plain", *chain(*of_seams), *joined]
        raise UsageError(
            f"--attention-type is {value!r}; it must be one of {', '.join(choices)}, or one that a plugin in "
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
    """Return the help text of --attention-type."""
    known = "".join(f"; {each.name}: {each.summary}" for each in of_kind(*SEAMS) if each.summary)
    more = f"types that take different seams of attention ({' and '.join(SEAMS)}) are joined by +"
    return f"plain: multi-head attention{known}; {more}; plugins in --user-dir may add types (default: plain)"


def build_attention_parts(options: Options, place: Place) -> dict[str, nn.Module | None]:
    """Build the parts that --attention-type puts into the seams of one attention module.

    Gates are built first, so that the same seed gives the same weights.

    Returns:
        the modules by seam; a mechanism may build None.
    """
    return {each.kind: each.build(options, place) for each in of_kind(*SEAMS) if each.is_used(options)}


def build_layer_parts(options: Options, place: LayerPlace) -> LayerParts:
    """Join the parts that mechanisms put into one layer.

    Raises:
        UsageError: two mechanisms change the same part.
    """
    plain = LayerParts()
    joined: dict[str, Any] = {}
    owners: dict[str, Mechanism] = {}
    for mechanism in of_kind("layer"):
        parts = mechanism.build(options, place) if mechanism.is_used(options) else plain
        for f in fields(LayerParts):
            value = getattr(parts, f.name)
            if value != getattr(plain, f.name):
                other = owners.setdefault(f.name, mechanism)
                _refuse_both(other, mechanism, f"change the {f.name} of a layer")
                joined[f.name] = value
    return replace(plain, **joined)


def build_arrangement(options: Options) -> Arrangement:
    """Return the arrangement of the layers of the encoder.

    Raises:
        UsageError: two mechanisms arrange them.
    """
    found = [mechanism for mechanism in of_kind("encoder") if mechanism.is_used(options)]
    for mechanism in found:
        _refuse_both(found[0], mechanism, "arrange the layers of the encoder")
    return found[0].build(options) if found else Arrangement()


def _refuse_both(one: Mechanism, other: Mechanism, what: str) -> None:
    if one is not other:
        raise UsageError(f"{one.needs} and {other.needs} both {what}; leave one of them out")


def finish(model: BaseFairseqModel, options: Options) -> None:
    """Finish a model that has been built.

    The mechanisms in use prepare it (`Mechanism.after_build`). Parameters that learn outside the main
    optimizer are frozen, so that it does not train them.
    """
    for mechanism in used_by(options):
        mechanism.after_build(model, options)
    for parameter in trained_outside(model):
        parameter.requires_grad_(False)


def finish_head(model: BaseFairseqModel, options: Options) -> None:
    """Let the mechanisms in use prepare for a classification head that was added (`Mechanism.after_head`)."""
    for mechanism in used_by(options):
        mechanism.after_head(model, options)


def trained_outside(model: nn.Module) -> list[nn.Parameter]:
    """Return the parameters that learn, but not by the main optimizer (`Mechanism.trained_outside`)."""
    return [parameter for mechanism in MECHANISMS.values() for parameter in mechanism.trained_outside(model)]


def auxiliary_losses() -> list[type[AuxiliaryLosses]]:
    """Return the classes of losses that the registered mechanisms add to the training loss."""
    return [mechanism.losses for mechanism in MECHANISMS.values() if mechanism.losses]


def must_agree() -> dict[str, str]:
    """Return the endings of parameter names that averaged checkpoints must agree in, with the reasons."""
    return {ending: reason for each in MECHANISMS.values() for ending, reason in each.must_agree.items()}


def short_training(options: Options, epochs: int, warmup_updates: int) -> list[str]:
    """Return the options of fairseq-train that a short training of a model with these options needs.

    Args:
        epochs: number of epochs of the training.
        warmup_updates: number of updates in which the weights of auxiliary losses should grow to their full
            values.
    """
    return [
        word for each in used_by(options) for word in each.short_training(options, epochs, warmup_updates)
    ]
