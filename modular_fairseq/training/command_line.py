"""What fairseq-train makes of the words on its command line, before anything is trained."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from fairseq import options as fairseq_options
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

from modular_fairseq.models import assembly
from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.options import FAMILIES
from modular_fairseq_cli.errors import UsageError


def refuse(message: str) -> NoReturn:
    raise UsageError(f"fairseq-train refuses its options: {message.partition(' (choose from')[0]}")


def parse(
    words: Sequence[str], refuse: Callable[[str], NoReturn] = refuse
) -> tuple[ArgumentParser, Namespace]:
    """Return fairseq-train's parser for the arch, task and so on that `words` name, and what it makes of
    them.

    Args:
        words: of the command line, without the data.
        refuse: is called with the parser's sentence if it refuses a word.
    """
    parser = fairseq_options.get_training_parser()
    parser.error = refuse
    return parser, fairseq_options.parse_args_and_arch(parser, ["DATA", *words])


def family_of(args: Namespace) -> type[FairseqDataclass] | None:
    """Return the options of the model family, or None for an arch of fairseq."""
    family = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(args.arch))
    return family if family in FAMILIES.values() else None


def short_training(words: Sequence[str], epochs: int, warmup_updates: int) -> list[str]:
    """Return further words that a short training needs, where defaults are made for long ones.

    Args:
        words: of the command line, without the data.
        epochs: of the whole training.
        warmup_updates: of auxiliary losses.
    """
    _, args = parse(words)
    family = family_of(args)
    if family is None:
        return []
    options = Namespace(**{**vars(args), **vars(resolved(args, family))})
    return assembly.short_training(options, epochs, warmup_updates)
