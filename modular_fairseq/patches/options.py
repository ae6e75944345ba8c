"""What fairseq's parser says about options."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable

from modular_fairseq.criterions.modular_cross_entropy import NAME, own_options
from modular_fairseq.models.options import flag
from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def name_the_criterion_of_options(parse: Callable, parser: ArgumentParser, *args, **kwargs) -> Namespace:
    """fairseq's commands say in one sentence that an option of our criterion needs --criterion.

    fairseq's parser only knows the options of the criterion that was chosen (fairseq/options.py:165-177); of
    others it says, after 190 lines of usage, that they are unrecognized.
    """
    flags = {flag(name) for name in own_options()}
    usual = parser.error

    def error(message: str) -> None:
        for word in message.split() if message.startswith("unrecognized arguments") else ():
            if (option := word.partition("=")[0]) in flags:
                raise UsageError(
                    f"{option} has no effect without --criterion {NAME}; add that, or leave it out"
                )
        usual(message)

    parser.error = error
    return parse(parser, *args, **kwargs)
