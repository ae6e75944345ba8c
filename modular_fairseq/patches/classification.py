"""Say in one sentence what the data of a classification lacks."""

import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from typing import Any

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def name_the_criterion_of_a_classification(
    parse: Callable, parser: ArgumentParser, *args: Any, **kwargs: Any
) -> Namespace:
    """Refuse --task sentence_prediction without its criterion by one sentence.

    The options of the task refer to options of that criterion (fairseq/tasks/sentence_prediction.py:82-83).
    With another one, such as the default, every command of fairseq ends in an InterpolationKeyError.
    """
    found = parse(parser, *args, **kwargs)
    options = found[0] if isinstance(found, tuple) else found
    if getattr(options, "task", None) == "sentence_prediction":
        known = CRITERION_DATACLASS_REGISTRY.get(getattr(options, "criterion", None))
        if "classification_head_name" not in getattr(known, "__dataclass_fields__", {}):
            raise UsageError("--task sentence_prediction needs --criterion sentence_prediction; add it")
    return found


@replace("fairseq.tasks.sentence_prediction.SentencePredictionTask.setup_task")
def name_what_a_classification_lacks(setup_task: Callable, cfg: Any, **kwargs: Any) -> SentencePredictionTask:
    """Refuse a task sentence_prediction without --num-classes or without its dictionaries by one sentence.

    fairseq ends in an AssertionError or a FileNotFoundError (fairseq/tasks/sentence_prediction.py:122-137).
    """
    if cfg.num_classes < 1:
        raise UsageError(
            "--num-classes must be the number of classes, or of values with --regression-target, not "
            f"{cfg.num_classes}"
        )
    for part in ("input0", *(() if cfg.regression_target else ("label",))):
        if not os.path.isfile(os.path.join(cfg.data, part, "dict.txt")):
            raise UsageError(
                f"{os.path.join(cfg.data, part)} has no dict.txt; give the folder of a prepared "
                "classification, which has the folders input0 and label"
            )
    return setup_task(cfg, **kwargs)


@replace("fairseq.tasks.sentence_prediction.SentencePredictionTask.load_dataset")
def name_a_missing_part_of_a_classification(
    load_dataset: Callable, task: SentencePredictionTask, split: str, *args: Any, **kwargs: Any
) -> Any:
    """Refuse a part of the data of sentence_prediction that has no sentences or no labels by one sentence.

    fairseq ends in an AssertionError without sentences, and in a KeyError at the first batch without labels
    (fairseq/tasks/sentence_prediction.py:168-214).
    """
    data, labels = task.cfg.data, f"{split}.label" if task.cfg.regression_target else f"{split}.idx"
    for name in (os.path.join("input0", f"{split}.idx"), os.path.join("label", labels)):
        if not os.path.isfile(os.path.join(data, name)):
            raise UsageError(
                f"{data} has no file {name}, which the part {split} of a classification needs; prepare the "
                "classification with this part"
            )
    return load_dataset(task, split, *args, **kwargs)
