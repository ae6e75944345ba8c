"""Refuse option values and combinations that cannot work, and options that would have no effect.

An option is refused by one sentence before anything is built. What concerns a single mechanism is checked by
the `check` of its file, which gets a `Choice`.
"""

from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum

from hydra.core.hydra_config import HydraConfig

from modular_fairseq.models.assembly import check_attention_type, of_kind
from modular_fairseq.models.fairseq_options import Options, resolved, value_of
from modular_fairseq.models.mechanism import SEAMS, Mechanism
from modular_fairseq.models.options import FAMILIES, PRESETS, are_of_a_command_line, flag, is_set
from modular_fairseq.models.pruning import layers_to_keep
from modular_fairseq.models.registry import MECHANISMS
from modular_fairseq.models.tasks import mechanisms_of
from modular_fairseq.models.vocabulary_checks import check_widths
from modular_fairseq_cli.errors import NoEffectError, UsageError
from modular_fairseq_cli.shipped import configs

# Options that are probabilities, and numbers of layers, as far as a model family has them.
PROBABILITIES = (
    "dropout",
    "attention_dropout",
    "activation_dropout",
    "adaptive_softmax_dropout",
    "pooler_dropout",
    "encoder_layerdrop",
    "decoder_layerdrop",
)
NUMBERS_OF_LAYERS = ("encoder_layers", "decoder_layers")


@dataclass(frozen=True)
class Choice:
    """The options that a user chose, for the checks of mechanisms.

    Attributes:
        options: all options of the model. A width that was not given equals the option that it follows.
        stacks: "encoder" and "decoder", as far as the model family has them.
        changed: names of the options that the user set. An option that was set by an arch does not count,
            even if an option of the user's leaves it without effect. `options.is_set` explains what counts.
    """

    options: Namespace
    stacks: list[str]
    changed: set[str]

    def refuse(self, names: Iterable[str], when: str) -> None:
        """Refuse options that the user has set although they have no effect.

        Args:
            names: names of the options.
            when: the circumstance in which they have no effect, such as "without --x" or "with --y 1".

        Raises:
            NoEffectError: the user has set one of them.
        """
        for name in names:
            if name in self.changed:
                raise NoEffectError(f"{flag(name)} has no effect {when}; leave it out")

    def check_multiple(self, name: str, divisor: str) -> None:
        """Raise UsageError unless option `name` is a positive multiple of a positive option `divisor`."""
        value, by = getattr(self.options, name), getattr(self.options, divisor)
        for option, number in ((divisor, by), (name, value)):
            if number < 1:
                raise UsageError(f"{flag(option)} must be at least 1, not {number}")
        if value % by:
            near = [multiple for multiple in (value // by * by, value // by * by + by) if multiple]
            raise UsageError(
                f"{flag(name)} {value} is not a multiple of {flag(divisor)} {by}; give for example "
                f"{' or '.join(map(str, near))}"
            )

    def refuse_quantisation(self, where: str) -> None:
        """Raise UsageError if quantisation noise is on, which fairseq implements for `nn.Linear` only.

        Args:
            where: the option that replaces `nn.Linear`, or runs several of them at once.
        """
        for name in ("quant_noise_pq", "quant_noise_scalar"):
            if getattr(self.options, name) > 0:
                raise UsageError(f"{flag(name)} does not work with {where}; leave one of them out")


def check_options(options: Options, family: type) -> None:
    """Refuse options that cannot work together and options that would have no effect.

    Args:
        options: options of the command line or of a checkpoint.
        family: dataclass of the options of their model family.

    Raises:
        UsageError: its sentence names the option, what is wrong, and what would be right.
    """
    arch = getattr(options, "_name", None) or getattr(options, "arch", None)
    preset = PRESETS.get(arch, {}) if arch else {}
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
    changed = {
        f.name
        for f in fields(family)
        if (value := value_of(options, f)) != preset.get(f.name, f.default) and is_set(f, value)
    }
    options = resolved(options, family)
    _check_ranges(options)
    choice = Choice(options, _stacks(options), changed)
    if "decoder" in choice.stacks:
        check_widths(options, has_encoder="encoder" in choice.stacks)
    if options.quant_noise_pq > 0 and options.checkpoint_activations:
        raise UsageError(
            "--quant-noise-pq changes weights in every forward pass, so that --checkpoint-activations would "
            "compute gradients with other weights; leave one of them out"
        )
    if are_of_a_command_line() and getattr(options, "adaptive_softmax_cutoff", None) is not None:
        shared = "with --adaptive-softmax-cutoff, whose softmax has weights of its own"
        choice.refuse(["share_decoder_input_output_embed"], shared)
    for stack in choice.stacks:
        kept = getattr(options, f"{stack}_layers_to_keep", None)
        if kept:
            layers_to_keep(kept, stack)
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
            idle = not mechanism.is_used(options)
            # `what_turns_on` looks at every arch, so it is asked only for an error.
            if idle and not choice.changed.isdisjoint(mechanism.option_names):
                choice.refuse(mechanism.option_names, f"without {what_turns_on(mechanism)}")
        for mechanism in of_kind(*kinds):
            if mechanism.is_used(options):
                mechanism.check(choice)


def _check_ranges(options: Namespace) -> None:
    """Raise UsageError for a probability that is none, and for a negative number of layers."""
    for name in PROBABILITIES:
        if hasattr(options, name) and not 0 <= getattr(options, name) <= 1:
            raise UsageError(f"{flag(name)} must be from 0 to 1, not {getattr(options, name)}")
    for name in NUMBERS_OF_LAYERS:
        if getattr(options, name, 0) < 0:
            raise UsageError(f"{flag(name)} must be at least 0, not {getattr(options, name)}")


def has_effect(options: Options, family: type, mechanism: Mechanism, name: str) -> bool:
    """Tell whether option `name` of a mechanism has an effect, beside options that `check_options` accepts.

    It has one unless the mechanism refuses the option as without effect.
    """
    options = resolved(options, family)
    used = mechanism.is_used(options)
    try:
        if used:
            mechanism.check(Choice(options, _stacks(options), {name}))
    except NoEffectError:
        return False
    return used


def _stacks(options: Options) -> list[str]:
    return [stack for stack in ("encoder", "decoder") if hasattr(options, f"{stack}_attention_heads")]


def what_turns_on(mechanism: Mechanism) -> str:
    """Name the option that turns a mechanism on, and the first arch that does so."""
    needs = mechanism.needs or f"--attention-type {mechanism.name}"
    arch = next((arch for arch in PRESETS if mechanism in mechanisms_of(arch)), None)
    return f"{needs} (or an arch such as {arch})" if arch else needs


def _check_preset(options: Options, family: type) -> None:
    """Refuse an arch that has no effect in fairseq-hydra-train.

    If model._name is an arch, fairseq fills in every default there before the arch can set its own. The
    config groups of configs/hydra (model=ARCH) set them early enough. With other commands the options of an
    arch may all be undone on purpose (--arch multistream_transformer --streams 1).

    Raises:
        UsageError: every option that the arch sets has the default of the model family.
    """
    if not HydraConfig.initialized():
        return
    arch = getattr(options, "_name", None)
    defaults = {f.name: f.default for f in fields(family)}
    preset = PRESETS.get(arch, {}) if arch else {}
    preset = {name: value for name, value in preset.items() if value != defaults[name]}
    if preset and all(getattr(options, name, defaults[name]) == defaults[name] for name in preset):
        groups = configs() / "hydra"
        if (groups / "model" / f"{arch}.yaml").is_file():
            remedy = f"model={arch} and --config-dir {groups}"
        else:
            settings = " ".join(f"+model.{name}={value}" for name, value in preset.items())
            model = next(name for name, options in FAMILIES.items() if issubclass(options, family))
            remedy = f"+model._name={model} {settings}"
        raise UsageError(
            f"the arch {arch} has no effect in fairseq-hydra-train as model._name; write {remedy}"
        )
