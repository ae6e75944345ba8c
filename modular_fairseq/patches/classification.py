"""Say in one sentence what the data of a classification lacks."""

import itertools
import os
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterable
from typing import Any

from fairseq.criterions import CRITERION_DATACLASS_REGISTRY
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import infer_dataset_impl, make_dataset
from fairseq.tasks.sentence_prediction import SentencePredictionTask

from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.corpora.labels import SYMBOL, values
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.options.parse_args_and_arch")
def name_the_criterion_of_a_classification(
    parse: Callable, parser: ArgumentParser, *args: Any, **kwargs: Any
) -> Namespace:
    """Refuse --task sentence_prediction with another criterion, or a metric that it lacks, by one sentence.

    The options of the task refer to options of that criterion (fairseq/tasks/sentence_prediction.py:82-83).
    With another one, such as the default, every command of fairseq ends in an InterpolationKeyError. With
    another task the criterion ends in an AttributeError. A regression has no accuracy, so its first
    validation ends in a KeyError (fairseq_cli/train.py:534).
    """
    found = parse(parser, *args, **kwargs)
    options = found[0] if isinstance(found, tuple) else found
    if getattr(options, "task", None) == "sentence_prediction":
        known = CRITERION_DATACLASS_REGISTRY.get(getattr(options, "criterion", None))
        if "classification_head_name" not in getattr(known, "__dataclass_fields__", {}):
            raise UsageError("--task sentence_prediction needs --criterion sentence_prediction; add it")
        metric = getattr(options, "best_checkpoint_metric", None)
        maximizes = getattr(options, "maximize_best_checkpoint_metric", False)
        # fairseq-validate parses a second time without default values.
        regression = getattr(options, "regression_target", False)
        if regression and (metric == "accuracy" or (metric == "loss" and maximizes)):
            raise UsageError(
                "--regression-target: the best checkpoint is the one with the lowest loss; use "
                "--best-checkpoint-metric loss, without --maximize-best-checkpoint-metric"
            )
    elif getattr(options, "criterion", None) == "sentence_prediction" and options.task == "masked_lm":
        raise UsageError(
            "--criterion sentence_prediction needs --task sentence_prediction, and data of a classification; "
            "use --criterion masked_lm or modular_masked_lm with --task masked_lm"
        )
    return found


@replace("fairseq.tasks.sentence_prediction.SentencePredictionTask.setup_task")
def name_what_a_classification_lacks(setup_task: Callable, cfg: Any, **kwargs: Any) -> SentencePredictionTask:
    """Refuse a task sentence_prediction without its dictionaries or the right --num-classes by one sentence.

    fairseq ends in an AssertionError or a FileNotFoundError (fairseq/tasks/sentence_prediction.py:120-136).
    It does not compare --num-classes with the classes of the data. With fewer it ends in an IndexError at the
    first batch, and with more it trains scores of classes that do not exist.
    """
    if cfg.num_classes < 1:
        raise UsageError(
            "--num-classes must be the number of classes, or of values with --regression-target, not "
            f"{cfg.num_classes}"
        )
    for part in ("input0", *(() if cfg.regression_target else ("label",))):
        if not os.path.isfile(os.path.join(cfg.data, part, "dict.txt")):
            if part == "label" and os.path.isfile(os.path.join(cfg.data, part, "train.label")):
                raise UsageError(
                    f"the labels of {cfg.data} are values; add --num-classes 1 --regression-target, or "
                    "give a classification with classes"
                )
            raise UsageError(
                f"{os.path.join(cfg.data, part)} has no dict.txt; give the folder of a prepared "
                "classification, which has the folders input0 and label"
            )
    if cfg.regression_target:
        return setup_task(cfg, **kwargs)
    file = os.path.join(cfg.data, "label", "dict.txt")
    labels = Dictionary.load(file)
    classes = sum(not SYMBOL.fullmatch(name) for name in labels.symbols[labels.nspecial :])
    if cfg.num_classes != classes:
        raise UsageError(
            f"--num-classes {cfg.num_classes}: {file} has {classes} classes; give their number, or the data "
            "on which the model was trained"
        )
    return setup_task(cfg, **kwargs)


@replace("fairseq.tasks.sentence_prediction.SentencePredictionTask.load_dataset")
def name_a_missing_part_of_a_classification(
    load_dataset: Callable, task: SentencePredictionTask, split: str, combine: bool = False, **kwargs: Any
) -> Any:
    """Refuse a part of the data of sentence_prediction without fitting inputs and labels by one sentence.

    Both must exist and be equally many, and each label of a regression must be --num-classes numbers. fairseq
    ends in an AssertionError without inputs or with unequal numbers, in a KeyError at the first batch without
    labels, and in a ValueError if a file is empty or a value is no number. If only the second inputs of a
    part are missing, it takes the first ones alone (fairseq/tasks/sentence_prediction.py:138-259).
    """
    data, regression = task.cfg.data, task.cfg.regression_target
    kinds = ["input0", "input1"] if os.path.isdir(os.path.join(data, "input1")) else ["input0"]
    kinds += [] if regression else ["label"]
    files = [os.path.join(kind, f"{split}.{ending}") for kind in kinds for ending in ("idx", "bin")]
    files += [os.path.join("label", f"{split}.label")] if regression else []
    for name in files:
        if not os.path.isfile(os.path.join(data, name)):
            has_classes = regression and os.path.isfile(os.path.join(data, "label", f"{split}.idx"))
            how = "--values, since its labels are classes" if has_classes else "this part"
            raise UsageError(
                f"{data} has no file {name}, which the part {split} of a classification needs; prepare the "
                f"classification with {how}"
            )
    for name in files:
        if not os.path.getsize(os.path.join(data, name)):
            raise UsageError(
                f"{os.path.join(data, name)} is empty; prepare the classification with inputs and labels in "
                f"the part {split}"
            )
    numbers = {kind: _length(os.path.join(data, kind, split), combine) for kind in kinds}
    if regression:
        file = os.path.join(data, files[-1])
        with open(file, encoding="utf-8", errors="replace") as lines:
            numbers["label"] = _count_values(lines, file, task.cfg.num_classes)
    for kind, number in numbers.items():
        if number != numbers["input0"]:
            raise UsageError(
                f"the part {split} of {data} has {number} lines in {kind} and {numbers['input0']} in input0; "
                "prepare the classification again, with a line for each input in all of them"
            )
    return load_dataset(task, split, combine=combine, **kwargs)


def _count_values(lines: Iterable[str], file: str, wanted: int) -> int:
    """Return the number of lines of values. Raises UsageError for a line without `wanted` numbers."""
    count = 0
    for count, line in enumerate(lines, 1):
        parts = line.split() or [""]  # no number
        if len(parts) != wanted and parts[0]:
            raise UsageError(
                f"{file}, line {count}: has {len(parts)} values; give --num-classes {len(parts)}, or "
                f"{wanted} in each line"
            )
        for part in parts:
            values([part], file, count)
    return count


def _length(path: str, combine: bool) -> int:
    """Return the number of lines that fairseq reads from binarized data.

    Args:
        path: the path of the files without their endings.
        combine: also count the files with a number after this name, from 1.
    """
    paths = (f"{path}{number or ''}" for number in (itertools.count() if combine else [0]))
    found = (make_dataset(each, infer_dataset_impl(each) or "cached") for each in paths)
    return sum(len(data) for data in itertools.takewhile(lambda data: data is not None, found))
