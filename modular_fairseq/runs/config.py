"""Read experiments from YAML files, which use the keys of fairseq-hydra-train.

Each row of a table is such a file.

This command trains such a file as it is:

    fairseq-hydra-train --config-dir $PWD/configs/mae-3 --config-name mae-7 \\
        common.user_dir=$PWD/modular_fairseq task.data=$PWD/data/iwslt14.de-en/bin

This module turns it into options of fairseq-train, fairseq-generate and `modular-fairseq average`.
configs/manual.yaml explains every key.
"""

import argparse
import functools
import os
from dataclasses import is_dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fairseq import options as fairseq_options
from fairseq.dataclass.configs import FairseqConfig
from fairseq.tasks import TASK_DATACLASS_REGISTRY
from omegaconf import OmegaConf

import modular_fairseq  # noqa: F401  (registers our archs and criterion)
from modular_fairseq.models.checks import check_options
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.fixed_options import FIXED_IN_DECODING, refuse_fixed
from modular_fairseq.runs.yaml_files import read_yaml
from modular_fairseq.training.command_line import parse, refusing
from modular_fairseq_cli.errors import UsageError

# For each group with a key _name, the option of fairseq-train that takes its value.
SELECTORS = {
    "task": "--task",
    "model": "--arch",
    "criterion": "--criterion",
    "optimizer": "--optimizer",
    "lr_scheduler": "--lr-scheduler",
}
# The groups for fairseq-generate and fairseq-eval-lm. All other groups are for fairseq-train.
DECODING = ("generation", "eval_lm", "common_eval")
# The keys of each group of fairseq whose keys do not depend on the task, the arch and so on.
KEYS = {
    group: frozenset(field.type.__dataclass_fields__)
    for group, field in FairseqConfig.__dataclass_fields__.items()
    if is_dataclass(field.type)
}
LANGUAGE_MODELING = "language_modeling"  # the task that fairseq-eval-lm evaluates


class Config(NamedTuple):
    """The content of a row's file, which defines an experiment.

    Args:
        name: the folder of the row's runs: the file's folder and its name without .yaml, as in mae-3/mae-7.
        path: path of the file.
        values: values of the keys, by group.
        percent: the share of the training data that is used; see `sizes.on_subset`.
    """

    name: str
    path: str
    values: dict[str, dict[str, Any]]
    percent: int = 100

    def get(self, key: str, default: Any = None) -> Any:
        """Return the value of `key`, which has the form "group.key". Left out or null, it is `default`."""
        group, _, name = key.partition(".")
        value = self.values.get(group, {}).get(name)
        return default if value is None else value

    @property
    def data(self) -> str:
        """Path of the prepared corpus, relative to the folder that holds all corpora (--data)."""
        return os.path.dirname(self.get("task.data"))

    @property
    def languages(self) -> tuple[str, ...]:
        """The source and target language, or an empty tuple if the task has no languages."""
        names = (self.get("task.source_lang"), self.get("task.target_lang"))
        return names if all(names) else ()

    def corpus(self, data: str) -> Corpus:
        """Return the corpus that the row is trained on; `data` is the folder of all corpora."""
        binarized = os.path.join(data, self.get("task.data"))
        return Corpus(binarized, self.languages, self.percent, self._folders)

    @property
    def _folders(self) -> tuple[str, ...]:
        """The folders of a classification that have a dictionary each; empty for any other task."""
        if self.get("task._name") != "sentence_prediction":
            return ()
        return ("input0",) if self.get("criterion.regression_target") else ("input0", "label")

    def train_options(self) -> list[str]:
        """Return the words of a fairseq-train command, without its data.

        Raises:
            UsageError: fairseq has no option for a key, or refuses an arch, criterion and so on.
        """
        groups = [group for group in self.values if group not in DECODING]
        return [*self._selected, *(word for group in groups for word in self._training_words(group))]

    def decoding_options(self) -> list[str]:
        """Return the words of a fairseq-generate command that set languages and decoding.

        For a language model they are words of fairseq-eval-lm, which set the blocks as in training, and the
        context. A row without languages and without these groups has none.

        Raises:
            UsageError: a key is no option of the command.
        """
        if self.get("task._name") == LANGUAGE_MODELING:
            words = self._training_words("task")
            actions = _actions_of("eval_lm")
        else:
            options = ("--source-lang", "--target-lang")
            words = [word for pair in zip(options, self.languages, strict=False) for word in pair]
            actions = _actions_of("generation")
        return words + [
            word
            for group in DECODING
            for key, value in self.values.get(group, {}).items()
            if value is not None
            for word in self._words(group, key, value, actions)
        ]

    @property
    def averaged(self) -> int:
        """The number of last epochs whose checkpoints are kept and averaged.

        0 means that the best checkpoint is used instead.
        """
        return max(self.get("checkpoint.keep_last_epochs", 0), 0)

    @property
    def _selected(self) -> tuple[str, ...]:
        """The words of a fairseq-train command that select the task, the arch and so on."""
        names = ((option, str(self.get(f"{group}._name"))) for group, option in SELECTORS.items())
        return tuple(word for pair in names for word in pair)

    def _training_words(self, group: str) -> list[str]:
        """Return the words of a fairseq-train command that set the keys of a group, except for the data."""
        actions = _actions(self._selected)
        return [
            word
            for key, value in self.values[group].items()
            if key != "_name" and f"{group}.{key}" != "task.data" and value is not None
            for word in self._words(group, key, value, actions)
        ]

    def _words(self, group: str, key: str, value: Any, actions: dict[str, argparse.Action]) -> list[str]:
        """Return the words of a command line that set a key; `actions` are the parser's options."""
        action = actions.get(key)
        if action is None or not action.option_strings:
            raise UsageError(
                f"{self.path}: {group}.{key} is no option of fairseq or of this plugin for this row; correct "
                "or remove it, or give --user-dir if another plugin has it"
            )
        option = action.option_strings[0]
        if action.nargs == 0:  # an option without a value
            if not isinstance(value, bool):
                raise UsageError(f"{self.path}: {group}.{key} is {value!r}; it must be true or false")
            return [option] if value == action.const else []
        if isinstance(value, str) and action.type in (int, float):  # Python code computes with some of them
            raise UsageError(
                f"{self.path}: {group}.{key} is the text {value!r}; give a number, without quotes"
            )
        word = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        try:
            if callable(action.type):
                action.type(word)
        except (argparse.ArgumentTypeError, SyntaxError, TypeError, ValueError):
            raise UsageError(
                f"{self.path}: {group}.{key} is {value!r}, which {option} does not accept; correct it"
            ) from None
        return [f"{option}={word}"] if word.startswith("-") else [option, word]


def read_config(path: str | os.PathLike) -> Config:
    """Read the file of a row.

    Raises:
        UsageError: the file cannot be read, has an unknown group, lacks a key that every row needs, sets an
            option that no run may have (`fixed_options`), or has options of the model that do not fit
            together.
    """
    path = Path(path)
    # Read as hydra reads it: 5e-4 is a number to OmegaConf, but a string to yaml.
    values = read_yaml(
        path,
        "give a YAML file such as configs/manual.yaml",
        load=lambda text: OmegaConf.to_container(OmegaConf.create(text)),
    )
    config = Config(f"{path.resolve().parent.name}/{path.stem}", str(path), values)
    if not isinstance(values, dict) or not all(isinstance(group, dict) for group in values.values()):
        raise UsageError(
            f"{path}: the file must hold groups of keys, such as `optimization:` with `max_epoch: 50` below "
            "it; see configs/manual.yaml"
        )
    for group in values:
        if group not in FairseqConfig.__dataclass_fields__:
            raise UsageError(
                f"{path}: {group} is no group of fairseq's configuration; configs/manual.yaml lists the "
                "groups"
            )
    _check_groups(config)
    _check_texts(config, [f"{group}._name" for group in SELECTORS])
    _check_texts(config, ["task.data", *_languages_of_task(values["task"]["_name"])])
    if config.get("checkpoint.finetune_from_model") is not None:
        _check_texts(config, ["checkpoint.finetune_from_model"])
    words = config.train_options()  # refuses values of a wrong type
    refuse_fixed(words, f"in {path}", "remove the key")
    own = "; a table translates each row in the same way, apart from `subset` and `overrides` of the row"
    decoding = [*words, *config.decoding_options()]
    refuse_fixed(decoding, f"in {path}", f"remove the key{own}", (*FIXED_IN_DECODING, "--model-overrides"))
    check_context(config)
    if family := FAMILIES.get(config.get("model._name")):
        given = {name: value for name, value in values["model"].items() if value is not None}
        del given["_name"]
        try:
            check_options(argparse.Namespace(**given), family)
        except UsageError as error:
            raise UsageError(f"{path}: {error}") from None
    if not config.data:
        raise UsageError(
            f"{path}: task.data is {config.get('task.data')}; it must be SET/bin, where SET is the folder of "
            "a prepared corpus in --data"
        )
    return config


def _check_groups(config: Config) -> None:
    """Raise a UsageError if a key is in a group that does not have it, or a _name would have no effect.

    The commands of fairseq have no groups, so they would take the key. But the run engine looks for some keys
    in their groups, and fairseq-hydra-train would refuse the file.
    """
    for group, keys in config.values.items():
        if group not in SELECTORS and keys.get("_name") is not None:
            raise UsageError(f"{config.path}: {group}._name has no effect in the row of a table; remove it")
        for key in keys:
            if key == "_name" or key in KEYS.get(group, ()):
                continue
            right = [name for name, known in KEYS.items() if key in known]
            if right or group in KEYS:
                remedy = f"move {key} to the group {right[0]}" if right else "correct, move or remove it"
                raise UsageError(f"{config.path}: {group}.{key} is no option of fairseq; {remedy}")


def _check_texts(config: Config, keys: list[str]) -> None:
    """Raise a UsageError that names the key unless each key has a text."""
    for key in keys:
        value = config.get(key)
        if value is None:
            raise UsageError(f"{config.path}: {key} is missing; every row needs it, see configs/manual.yaml")
        if not isinstance(value, str):
            raise UsageError(f"{config.path}: {key} is {value}; it must be text, see configs/manual.yaml")


def check_context(config: Config) -> None:
    """Raise a UsageError unless the context that each token of a language model has is part of a block."""
    context, block = config.get("eval_lm.context_window", 0), config.get("task.tokens_per_sample", 1024)
    if type(context) is not int or context < 0:
        raise UsageError(
            f"{config.path}: eval_lm.context_window is {context!r}; it must be a whole number of tokens, at "
            "least 0"
        )
    if isinstance(block, int) and context >= block > 0:
        raise UsageError(
            f"{config.path}: eval_lm.context_window is {context} and task.tokens_per_sample is {block}, so "
            "no token of a block is left to be evaluated; give a smaller context"
        )


def _languages_of_task(task: str) -> list[str]:
    """Return the keys of the languages, if the task has languages."""
    known = getattr(TASK_DATACLASS_REGISTRY.get(task), "__dataclass_fields__", {})
    return [f"task.{key}" for key in ("source_lang", "target_lang") if key in known]


@functools.cache
def _actions(selected: tuple[str, ...]) -> dict[str, argparse.Action]:
    """Return the options of fairseq-train for an arch, criterion and so on, keyed by the name of the key.

    Args:
        selected: words of the command line that select them, such as --arch NAME.

    Raises:
        UsageError: fairseq-train refuses them.
    """
    parser, _ = parse(selected, refusing(f"fairseq-train refuses {' '.join(selected)}"))
    return {action.dest: action for action in parser._actions}


@functools.cache
def _actions_of(group: str) -> dict[str, argparse.Action]:
    """Return the options of the command that a group of `DECODING` is for, keyed by the name of the key."""
    parsers = {
        "generation": fairseq_options.get_generation_parser,
        "eval_lm": fairseq_options.get_eval_lm_parser,
    }
    return {action.dest: action for action in parsers[group]()._actions}
