"""Say in one sentence what a folder of data lacks."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fairseq.data import Dictionary
from fairseq.tasks import FairseqTask
from fairseq.tasks.translation import TranslationTask

from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.data.dictionary.Dictionary.load")
def name_a_folder_without_its_dictionary(load: Callable, file: Any, *args: Any, **kwargs: Any) -> Dictionary:
    """Refuse a folder of data that has no dictionary by one sentence, which names the folder that has it.

    Every task loads its dictionary first. fairseq ends in a FileNotFoundError with a traceback
    (fairseq/data/dictionary.py:236-241), for example when `data/mine` is given in place of `data/mine/bin`.
    """
    if isinstance(file, (str, os.PathLike)) and not os.path.isfile(file):
        folder, name = os.path.split(file)
        raise UsageError(_without(folder, name, name))
    return load(file, *args, **kwargs)


@replace("fairseq.data.data_utils.infer_language_pair")
def name_a_folder_without_pairs(infer: Callable, path: str) -> list[str]:
    """Refuse a folder from whose files the two languages cannot be inferred by one sentence.

    fairseq ends in an exception with a traceback (fairseq/tasks/translation.py:301-306).
    """
    found = infer(path) if os.path.isdir(path) else (None, None)
    if None in found:
        raise UsageError(_without(path, "file such as train.de-en.de.idx", "*.*-*.*.idx"))
    return list(found)


@replace(
    "fairseq.tasks.language_modeling.LanguageModelingTask.load_dataset",
    "fairseq.tasks.masked_lm.MaskedLMTask.load_dataset",
    "fairseq.tasks.translation.TranslationTask.load_dataset",
)
def name_a_missing_part(
    load_dataset: Callable, task: FairseqTask, split: str, *args: Any, **kwargs: Any
) -> Any:
    """Refuse a part of the data that does not exist by one sentence.

    fairseq ends in a FileNotFoundError with a traceback (fairseq/tasks/language_modeling.py:219,
    fairseq/tasks/masked_lm.py:166-169, fairseq/tasks/translation.py:80-84).
    """
    try:
        return load_dataset(task, split, *args, **kwargs)
    except FileNotFoundError as error:
        if not str(error).startswith("Dataset not found"):
            raise
        config = task.cfg or task.args  # the task language_modeling has args alone
        files = f"{split}.idx and {split}.bin"
        if isinstance(task, TranslationTask):
            files = f"{split}.{config.source_lang}-{config.target_lang}.*"
        raise UsageError(
            f"{config.data} has no part {split} ({files}); "
            "prepare the text with it, or name another part by --gen-subset, --valid-subset or --train-subset"
        ) from None


def _without(folder: str, wanted: str, pattern: str) -> str:
    """Say that a folder has no file `wanted`, and which folder to give instead: its folder bin, if this has a
    file that fits `pattern`.
    """
    if any(Path(folder, "bin").glob(pattern)):
        return f"{folder} has no {wanted}; give {os.path.join(folder, 'bin')}, which has it"
    if Path(folder, "input0").is_dir():
        return (
            f"{folder} holds a classification, with the folders input0 and label; train "
            "with --task sentence_prediction, or give the folder of a text"
        )
    found = f"has no {wanted}" if os.path.isdir(folder) else "is no folder"
    return f"{folder} {found}; give the folder of binarized data, which modular-fairseq prepare calls bin"
