"""Say which task and which mechanisms an arch is made for, and refuse an arch with another task."""

from argparse import Namespace
from dataclasses import fields

from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from fairseq.tasks.language_modeling import LanguageModelingTask
from fairseq.tasks.masked_lm import MaskedLMTask
from fairseq.tasks.sentence_prediction import SentencePredictionTask
from fairseq.tasks.sentence_ranking import SentenceRankingTask
from fairseq.tasks.translation import TranslationTask

from modular_fairseq.models.assembly import of_kind, used_by
from modular_fairseq.models.mechanism import SEAMS, Mechanism
from modular_fairseq.models.options import FAMILIES, PRESETS, flag
from modular_fairseq_cli.errors import UsageError

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


def mechanisms_of(arch: str) -> list[Mechanism]:
    """Return the mechanisms that an arch has by default; none for an arch of fairseq."""
    defaults = {f.name: f.default for f in fields(FAMILIES["modular_transformer"])}
    return used_by(Namespace(**{**defaults, **PRESETS.get(arch, {})}))
