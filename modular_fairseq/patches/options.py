"""Mend an error message of fairseq's parser of options."""

from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NoReturn

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig
from fairseq.criterions.masked_lm import MaskedLmConfig

from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def name_the_criterion_of_options(
    parse: Callable, parser: ArgumentParser, *args: Any, **kwargs: Any
) -> Namespace:
    """Refuse an option of one of our criteria by a clear sentence if --criterion is another.

    fairseq's parser only knows the options of the chosen criterion (fairseq/options.py:165-177). For options
    of other criteria, it prints 190 lines of usage and then says that they are unrecognized.
    """
    usual = parser.error

    def error(message: str) -> NoReturn:
        for word in message.split() if message.startswith("unrecognized arguments") else ():
            option = word.partition("=")[0]
            if criteria := [name for name in CRITERIA if option in map(flag, own_options(name))]:
                raise UsageError(
                    f"{option} has no effect without --criterion {' or '.join(criteria)}; add this "
                    f"criterion, or leave out {option}"
                )
        usual(message)

    vars(parser)["error"] = error  # this parser's own method
    return parse(parser, *args, **kwargs)


def own_options(criterion: str) -> list[str]:
    """Return the names of the options of one of our criteria that no criterion of fairseq has."""
    fairseqs = (LabelSmoothedCrossEntropyCriterionConfig, MaskedLmConfig)
    known = {name for each in fairseqs for name in each.__dataclass_fields__}
    return [name for name in CRITERIA[criterion].__dataclass_fields__ if name not in known]
