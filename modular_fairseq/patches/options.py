"""Mend messages of fairseq's parser of options."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any, NoReturn

from fairseq.criterions.label_smoothed_cross_entropy import LabelSmoothedCrossEntropyCriterionConfig
from fairseq.criterions.masked_lm import MaskedLmConfig
from fairseq.tasks import TASK_REGISTRY
from fairseq.utils import split_paths

from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq.models.tasks import check_task
from modular_fairseq.patches.registry import replace
from modular_fairseq.training.overrides import read_overrides, refuse_ignored_by_checkpoints
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def refuse_what_does_not_fit_together(
    parse: Callable, parser: ArgumentParser, *args: Any, **kwargs: Any
) -> Namespace | tuple[Namespace, list[str]]:
    """Refuse options that do not fit --criterion, and an arch that does not fit --task, by a sentence.

    fairseq's parser only knows the options of the chosen criterion (fairseq/options.py:165-177). For options
    of other criteria, it prints 190 lines of usage and then says that they are unrecognized. It does not
    compare arch and task: a training then ends in a traceback.
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
    parsed = parse(parser, *args, **kwargs)
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    if getattr(options, "arch", None) and getattr(options, "task", None) in TASK_REGISTRY:
        check_task(options.arch, TASK_REGISTRY[options.task])
    return parsed


@replace("fairseq.options.parse_args_and_arch")
def refuse_overrides_without_effect(
    parse: Callable, parser: ArgumentParser, *args: Any, **kwargs: Any
) -> Namespace | tuple[Namespace, list[str]]:
    """Refuse --model-overrides that is no dictionary, or that has an option of no checkpoint.

    fairseq ignores such an option without a message (fairseq/dataclass/utils.py:453-484), so that a misspelt
    one gives the results without the change. A --path that is no local file, such as the name of shards, is
    not read.
    """
    parsed = parse(parser, *args, **kwargs)
    options = parsed[0] if isinstance(parsed, tuple) else parsed
    text, path = getattr(options, "model_overrides", "{}"), getattr(options, "path", None)
    if text != "{}" and path:
        overrides = read_overrides(text, "--model-overrides")
        paths = split_paths(path)
        if all(map(os.path.isfile, paths)):
            refuse_ignored_by_checkpoints(overrides, paths, "--model-overrides")
    return parsed


def own_options(criterion: str) -> list[str]:
    """Return the names of the options of one of our criteria that no criterion of fairseq has."""
    fairseqs = (LabelSmoothedCrossEntropyCriterionConfig, MaskedLmConfig)
    known = {name for each in fairseqs for name in each.__dataclass_fields__}
    return [name for name in CRITERIA[criterion].__dataclass_fields__ if name not in known]
