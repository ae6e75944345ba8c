"""Mend an error message of fairseq's parser of options."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NoReturn

from modular_fairseq.criterions.modular_cross_entropy import NAME, own_options
from modular_fairseq.models.options import flag
from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def name_the_criterion_of_options(
    parse: Callable, parser: ArgumentParser, *args: Any, **kwargs: Any
) -> Namespace:
    """Refuse an option of the criterion modular_cross_entropy by a clear sentence if --criterion is another.

    fairseq's parser only knows the options of the chosen criterion (fairseq/options.py:165-177). For options
    of other criteria, it prints 190 lines of usage and then says that they are unrecognized.
    """
    flags = {flag(name) for name in own_options()}
    usual = parser.error

    def error(message: str) -> NoReturn:
        for word in message.split() if message.startswith("unrecognized arguments") else ():
            if (option := word.partition("=")[0]) in flags:
                raise UsageError(
                    f"{option} has no effect without --criterion {NAME}; add this criterion, or leave out "
                    f"{option}"
                )
        usual(message)

    vars(parser)["error"] = error  # this parser's own method
    return parse(parser, *args, **kwargs)
