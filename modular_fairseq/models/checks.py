"""Refuse option values and combinations that cannot work, and options that would have no effect.

An option is refused by one sentence before anything is built. What concerns a single mechanism is checked by
the `check` of its file, which gets a `Choice`.
"""

import re
from argparse import Namespace
from collections.abc import Iterable
from dataclasses import dataclass, fields
from enum import Enum
from typing import Any

from fairseq.data import Dictionary
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from fairseq.tasks.sentence_ranking import SentenceRankingTask
from fairseq.tasks.translation import TranslationTask
from hydra.core.hydra_config import HydraConfig

from modular_fairseq.models.assembly import check_attention_type, of_kind, used_by
from modular_fairseq.models.fairseq_options import Options, resolved, value_of
from modular_fairseq.models.mechanism import SEAMS, Mechanism
from modular_fairseq.models.options import FAMILIES, PRESETS, flag, is_set
from modular_fairseq.models.registry import MECHANISMS
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

# The tasks that models of each family are for.
TASKS: dict[str, tuple[type[FairseqTask], ...]] = {
    "modular_transformer": (TranslationTask,),
    "modular_transformer_lm": (LanguageModelingTask,),
    "modular_roberta": (MaskedLMTask, SentencePredictionTask, SentenceRankingTask),
}


def archs_that_translate() -> list[str]:
    """Return the archs of translation models that also have a size _tiny_cpu, without the sizes."""
    known = [name for name, family in ARCH_MODEL_NAME_REGISTRY.items() if family == "modular_transformer"]
    return [name for name in known if f"{name}_tiny_cpu" in known]


class OtherTaskError(UsageError):
    """An arch is for another task.

    Attributes:
        own: the name of the task that the arch is for.
        asked: the name of the task that was given.
    """

    def __init__(self, message: str, own: str, asked: str):
        super().__init__(message)
        self.own, self.asked = own, asked


def check_task(arch: str, task: type[FairseqTask]) -> None:
    """Refuse an arch of one family for a task of another one, such as a model that translates for masked_lm.

    Nothing is said about other models and other tasks.

    Raises:
        OtherTaskError: the arch is for another task. The message names one for this task, and the options
            for those mechanisms of the arch that the named one does not have.
    """
    family = ARCH_MODEL_NAME_REGISTRY.get(arch)
    right = next((each for each, tasks in TASKS.items() if issubclass(task, tasks)), None)
    if family not in TASKS or right is None or right == family:
        return
    plain = right + ("_tiny_cpu" if arch.endswith("_tiny_cpu") else "")
    fitting = f"{arch.partition('_')[0]}_{plain.removeprefix('modular_')}"
    fitting = fitting if fitting in ARCH_MODEL_NAME_REGISTRY else plain
    own = next(name for name, each in TASK_REGISTRY.items() if each is TASKS[family][0])
    asked = next((name for name, each in TASK_REGISTRY.items() if each is task), task.__name__)
    words = " ".join([f"--arch {fitting}", *_missing_mechanisms(arch, fitting, right)])
    message = f"--arch {arch} is a model for --task {own}; give {words} for --task {asked}"
    raise OtherTaskError(message, own, asked)


def _missing_mechanisms(arch: str, other: str, family: str) -> list[str]:
    """Return the options that give `other`, an arch of a family, the mechanisms of `arch` that it lacks.

    A language model has no encoder, so it cannot have a mechanism of the encoder.
    """
    has = mechanisms_of(other) + (of_kind("encoder") if family == "modular_transformer_lm" else [])
    missing = [mechanism for mechanism in mechanisms_of(arch) if mechanism not in has]
    names = {name for mechanism in missing for name in mechanism.option_names}
    if any(mechanism.kind in SEAMS for mechanism in missing):
        names.add("attention_type")
    defaults = {f.name: f.default for f in fields(FAMILIES[family])}
    return [
        flag(name) if value is True else f"{flag(name)} {value}"
        for name, value in PRESETS.get(arch, {}).items()
        if name in names and value != defaults[name]
    ]


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
        _check_widths(options, has_encoder="encoder" in choice.stacks)
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


def _check_widths(options: Namespace, has_encoder: bool) -> None:
    """Raise UsageError if the widths of a decoder's input and output do not fit its options."""
    into, inside, out = (getattr(options, f"decoder_{name}_dim") for name in ("input", "embed", "output"))
    if has_encoder and into != inside:
        raise UsageError(
            f"--decoder-input-dim {into} has no effect in translation, where embeddings have the width "
            f"--decoder-embed-dim {inside}; leave it out"
        )
    for name in ("share_all_embeddings", "share_decoder_input_output_embed"):
        if getattr(options, name, False) and out != into:
            raise UsageError(
                f"--decoder-output-dim {out} does not work with {flag(name)}, as embeddings have the width "
                f"{into}; leave one of them out"
            )
        if getattr(options, name, False) and getattr(options, "adaptive_input", False):
            raise UsageError(
                f"{flag(name)} does not work with --adaptive-input; use --tie-adaptive-weights with "
                "--adaptive-softmax-cutoff"
            )
    if getattr(options, "tie_adaptive_weights", False) and out != inside:
        raise UsageError(
            f"--decoder-output-dim {out} does not work with --tie-adaptive-weights, which needs the width "
            f"--decoder-embed-dim {inside}; leave one of them out"
        )


def check_adaptive(options: Options, dictionary: Dictionary) -> None:
    """Check the options of an adaptive input and an adaptive softmax.

    Raises:
        UsageError: a cut-off is no number, is not above the one before it, or is beyond the dictionary; an
            option lacks another one that it needs, or has no effect; or input and softmax share weights and
            have different cut-offs or factors.
    """
    cutoffs = {
        "--adaptive-softmax-cutoff": options.adaptive_softmax_cutoff,
        "--adaptive-input-cutoff": getattr(options, "adaptive_input_cutoff", None),
    }
    has_softmax = cutoffs["--adaptive-softmax-cutoff"] is not None
    has_input = bool(getattr(options, "adaptive_input", False))
    tied = getattr(options, "tie_adaptive_weights", False)
    if has_input != (cutoffs["--adaptive-input-cutoff"] is not None):
        raise UsageError(
            "--adaptive-input and --adaptive-input-cutoff need each other; give both, as in --adaptive-input "
            "--adaptive-input-cutoff 20000,60000, or leave both out"
        )
    if tied and not hasattr(options, "adaptive_input"):
        raise UsageError(
            "--tie-adaptive-weights needs an adaptive input, which only language models have; leave it out"
        )
    if tied and not (has_input and has_softmax):
        raise UsageError(
            "--tie-adaptive-weights needs --adaptive-input and --adaptive-softmax-cutoff; add them, or leave "
            "it out"
        )
    if getattr(options, "tie_adaptive_proj", False) and not tied:
        raise UsageError("--tie-adaptive-proj has no effect without --tie-adaptive-weights; leave it out")
    if getattr(options, "adaptive_softmax_dropout", 0) and not has_softmax:
        raise UsageError(
            "--adaptive-softmax-dropout has no effect without --adaptive-softmax-cutoff; leave it out"
        )
    factors = {
        f"--adaptive-{part}-factor": getattr(options, f"adaptive_{part}_factor", None)
        for part in ("softmax", "input")
    }
    for values in (cutoffs, factors) if tied else ():
        if len({re.sub(r"[\s()\[\]]", "", str(value)) for value in values.values()}) > 1:
            raise UsageError(
                " and ".join(f"{option} {value}" for option, value in values.items())
                + ": they must be equal with --tie-adaptive-weights"
            )
    for option, value in cutoffs.items():
        if value is not None:
            _check_cutoff(option, value, dictionary)


def _check_cutoff(option: str, value: Any, dictionary: Dictionary) -> None:
    """Raise a UsageError unless the value of an option is cut-offs that fit the dictionary."""
    parts = str(value).strip("[]()").split(",")
    numbers = [int(part) for part in parts if part.strip().isdecimal()]
    if len(numbers) < len(parts) or numbers != sorted(set(numbers)) or numbers[0] < 1:
        raise UsageError(f"{option} {value}: give growing whole numbers with commas between them")
    if numbers[-1] > len(dictionary):
        raise UsageError(
            f"{option} {value}: the dictionary has only {len(dictionary):,} types, and no cut-off may exceed "
            "that; give smaller ones"
        )


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


def mechanisms_of(arch: str) -> list[Mechanism]:
    """Return the mechanisms that an arch has by default; none for an arch of fairseq."""
    defaults = {f.name: f.default for f in fields(FAMILIES["modular_transformer"])}
    return used_by(Namespace(**{**defaults, **PRESETS.get(arch, {})}))


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
