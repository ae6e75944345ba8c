"""Parse command lines of fairseq-train and fairseq-generate as these do, without training anything."""

import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Sequence
from typing import NoReturn

from fairseq import options as fairseq_options
from fairseq.dataclass import FairseqDataclass
from fairseq.models import ARCH_MODEL_NAME_REGISTRY, MODEL_DATACLASS_REGISTRY

from modular_fairseq.models import assembly
from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.options import FAMILIES
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError


def refusing(what: str) -> Callable[[str], NoReturn]:
    """Return a function that raises UsageError with a message of a parser, without its long lists of choices.

    Args:
        what: the start of the sentence, such as "fairseq-train refuses its options".
    """

    def refuse(message: str) -> NoReturn:
        raise UsageError(f"{what}: {message.partition(' (choose from')[0]}")

    return refuse


refuse = refusing("fairseq-train refuses its options")


def parse(
    words: Sequence[str], refuse: Callable[[str], NoReturn] = refuse
) -> tuple[ArgumentParser, Namespace]:
    """Return the parser of fairseq-train and the options that it parses from a command line.

    The parser has the options of the arch, task, criterion and so on that the command line names.

    Args:
        words: the arguments of fairseq-train, without the data.
        refuse: called with the parser's message if it refuses an argument. It must raise an exception.
    """
    parser = fairseq_options.get_training_parser()
    parser.error = refuse
    return parser, fairseq_options.parse_args_and_arch(parser, ["DATA", *words])


def parse_generation(words: Sequence[str], given: str) -> Namespace:
    """Return the options that fairseq-generate parses from a command line.

    Args:
        words: the arguments of fairseq-generate, without the data.
        given: where they were given, for the message.

    Raises:
        UsageError: it refuses an argument.
    """
    parser = fairseq_options.get_generation_parser()
    parser.error = refusing(f"fairseq-generate refuses {given}")
    return fairseq_options.parse_args_and_arch(parser, ["DATA", *words])


def family_of(args: Namespace) -> type[FairseqDataclass] | None:
    """Return the dataclass with the options of the arch's model family, or None for an arch of fairseq."""
    return family_of_arch(args.arch)


def family_of_arch(arch: str) -> type[FairseqDataclass] | None:
    """Return the dataclass with the options of an arch's model family, or None for an arch of fairseq."""
    family = MODEL_DATACLASS_REGISTRY.get(ARCH_MODEL_NAME_REGISTRY.get(arch))
    return family if family in FAMILIES.values() else None


def short_training(words: Sequence[str], warmup_updates: int | None = None) -> list[str]:
    """Return the arguments that fairseq-train needs in addition when a training is short.

    The defaults of some mechanisms suit long trainings only. An arch of fairseq needs no such arguments. An
    option that `words` give is not returned.

    Args:
        words: the arguments of fairseq-train, without the data. --max-epoch is the length of the training.
        warmup_updates: number of updates in which auxiliary losses reach their full weight; by default
            --warmup-updates.
    """
    _, args = parse(words)
    epochs = args.max_epoch or sys.maxsize
    warmup_updates = getattr(args, "warmup_updates", 0) if warmup_updates is None else warmup_updates
    family = family_of(args)
    if family is None:
        return []
    options = Namespace(**{**vars(args), **vars(resolved(args, family))})
    needed = by_option(assembly.short_training(options, epochs, warmup_updates))
    given = by_option(list(words))
    return [
        word for option, values in needed.items() if option not in given for word in (option, *values) if word
    ]
