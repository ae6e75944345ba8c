"""Option values and combinations that cannot work, and options that would be ignored.

They are refused by a sentence before anything is built. What concerns a single mechanism is in the `check` of
its file; it gets a `Choice`.
"""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum

from hydra.core.hydra_config import HydraConfig

from modular_fairseq.models.assembly import check_attention_type, of_kind, used_by
from modular_fairseq.models.fairseq_options import resolved, value_of
from modular_fairseq.models.mechanism import SEAMS, Mechanism
from modular_fairseq.models.options import FAMILIES, PRESETS, flag
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq_cli.errors import UsageError


@dataclass(frozen=True)
class Choice:
    """What a user chose, for the checks of mechanisms.

    Args:
        options: all options of the model; a width that was not given is that of the option it follows.
        stacks: encoder and decoder, as far as the model family has them.
        changed: names of the options that the user set. An arch may set options that lose their effect by an
            option of the user's; these do not count.
    """

    options: Namespace
    stacks: list[str]
    changed: set[str]

    def refuse(self, names: Iterable[str], unless: str) -> None:
        """Raise UsageError if one of the options was set although it has no effect `unless`, as in
        "without --x".
        """
        for name in names:
            if name in self.changed:
                raise UsageError(f"{flag(name)} has no effect {unless}; leave it out")

    def check_multiple(self, name: str, divisor: str) -> None:
        """Raise UsageError unless the one option is a positive multiple of the other, which must be
        positive.
        """
        value, by = getattr(self.options, name), getattr(self.options, divisor)
        for option, number in ((divisor, by), (name, value)):
            if number < 1:
                raise UsageError(f"{flag(option)} must be at least 1, not {number}")
        if value % by:
            raise UsageError(f"{flag(name)} {value} is not a multiple of {flag(divisor)} {by}")

    def refuse_quantisation(self, where: str) -> None:
        """Raise UsageError for quantisation noise, which fairseq has for `nn.Linear` only, not for groups
        or stacks.
        """
        for name in ("quant_noise_pq", "quant_noise_scalar"):
            if getattr(self.options, name) > 0:
                raise UsageError(f"{flag(name)} does not work with {where}; leave one of them out")


def check_options(options, family: type) -> None:
    """Refuse what cannot work and what would be ignored.

    Args:
        options: of the command line or a checkpoint.
        family: the dataclass of their model family, for its defaults.

    Raises:
        UsageError: one sentence that names the option.
    """
    preset = PRESETS.get(getattr(options, "_name", None) or getattr(options, "arch", None), {})
    _check_preset(options, family)
    check_attention_type(str(getattr(options, "attention_type", "plain")))
    for f in [f for mechanism in MECHANISMS.values() for f in mechanism.own_options]:
        choices = (
            [each.value for each in f.type] if isinstance(f.type, type) and issubclass(f.type, Enum) else []
        )
        if choices and value_of(options, f) not in choices:
            raise UsageError(
                f"{flag(f.name)} is {value_of(options, f)!r}; it must be one of {', '.join(choices)}"
            )
    options = resolved(options, family)
    choice = Choice(
        options,
        [stack for stack in ("encoder", "decoder") if hasattr(options, f"{stack}_attention_heads")],
        {
            f.name
            for f in fields(family)
            if getattr(options, f.name, f.default) not in (f.default, preset.get(f.name, f.default))
        },
    )
    for stack in choice.stacks:
        choice.check_multiple(f"{stack}_embed_dim", f"{stack}_attention_heads")
    for mechanism in of_kind("encoder"):
        if "encoder" not in choice.stacks:
            for name in mechanism.option_names:
                if name in choice.changed:
                    raise UsageError(
                        f"{flag(name)} is for encoders, and a language model has none; leave it out"
                    )
    for kinds in (("encoder", "layer"), tuple(SEAMS)):
        for mechanism in of_kind(*kinds):
            if not mechanism.is_used(options):
                choice.refuse(mechanism.option_names, f"without {what_turns_on(mechanism)}")
        for mechanism in of_kind(*kinds):
            if mechanism.is_used(options):
                mechanism.check(choice)


def what_turns_on(mechanism: Mechanism) -> str:
    """Name the option that turns a mechanism on, and the first arch that does."""
    needs = mechanism.needs or f"--attention-type {mechanism.name}"
    arch = next((arch for arch in PRESETS if mechanism in mechanisms_of(arch)), None)
    return f"{needs} (or an arch such as {arch})" if arch else needs


def mechanisms_of(arch: str) -> list[Mechanism]:
    """Return the mechanisms that the defaults of an arch use; none for an arch of fairseq."""
    defaults = {f.name: f.default for f in fields(FAMILIES["modular_transformer"])}
    return used_by(Namespace(**{**defaults, **PRESETS.get(arch, {})}))


def _check_preset(options, family: type) -> None:
    """fairseq-hydra-train fills in every default before an arch can set its own, which then has no effect at
    all.

    Elsewhere an option of the user's may well undo all that an arch sets (--arch multistream_transformer
    --streams 1).
    """
    if not HydraConfig.initialized():
        return
    arch = getattr(options, "_name", None)
    defaults = {f.name: f.default for f in fields(family)}
    preset = {name: value for name, value in PRESETS.get(arch, {}).items() if value != defaults[name]}
    if preset and all(getattr(options, name, defaults[name]) == defaults[name] for name in preset):
        settings = " ".join(f"+model.{name}={value}" for name, value in preset.items())
        model = next(name for name, options in FAMILIES.items() if issubclass(options, family))
        raise UsageError(
            f"the arch {arch} has no effect through hydra; write +model._name={model} {settings}"
        )
