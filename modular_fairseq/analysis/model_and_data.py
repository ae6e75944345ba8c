"""A trained model, and binarized data for it to read."""

import glob
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from fairseq import checkpoint_utils, utils
from fairseq.tasks import FairseqTask
from torch import nn
from tqdm import tqdm

from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli.errors import UsageError

MAX_TOKENS = 4000
_EMPTY = "--gen-subset {} has no sentence; give a part of the data that has some"


@contextmanager
def _quiet() -> Iterator[None]:
    """fairseq would tell of every dictionary that it reads; its warnings stay."""
    logger = logging.getLogger("fairseq")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class Loaded(NamedTuple):
    """A model in evaluation mode, on a GPU if there is one; its task with a part of the data; what a reader
    wants to know of both.
    """

    model: nn.Module
    task: FairseqTask
    about: dict[str, Any]


def load(path: str | Path, data: str | Path, subset: str) -> Loaded:
    """A trained model, and one part of binarized data.

    Raises:
        UsageError: there is no such checkpoint, data or part, or the data has other dictionaries than the
            model.
    """
    path, data = str(path), str(data)
    if not any(Path(data).glob("dict.*txt")):
        raise UsageError(f"{data} has no dictionary; give the folder that fairseq-preprocess wrote")
    # fairseq cannot read an empty file.
    if any(file.stat().st_size == 0 for file in Path(data).glob(f"{glob.escape(subset)}.*bin")):
        raise UsageError(_EMPTY.format(subset))
    state = load_checkpoint(path)
    try:
        with _quiet():
            models, _, task = checkpoint_utils.load_model_ensemble_and_task(
                [path], arg_overrides={"data": data}
            )
            task.load_dataset(subset)
    except FileNotFoundError as error:
        raise UsageError(
            f"{error}: give the folder that fairseq-preprocess wrote, and one of its parts as --gen-subset"
        ) from None
    except RuntimeError as error:  # of fairseq's own models; ours say it themselves
        misfit = re.search(r"(size mismatch for \S+): .*", str(error))
        if misfit is None:
            raise
        raise UsageError(
            f"{path} does not fit {data} ({misfit[1]}); give the data with the dictionaries that it was "
            "trained with"
        ) from None
    except KeyError as error:
        if "_name" not in str(error):
            raise
        raise UsageError(
            f"{path} is of an arch that is not known here; give the plugin that registers it as --user-dir"
        ) from None
    except Exception as error:  # fairseq raises no narrower one
        if "infer language pair" not in str(error):
            raise
        raise UsageError(
            f"{data} has no pair of languages, which this model translates; give the data that it was "
            "trained with"
        ) from None
    model = models[0].eval()
    if not all(parameter.isfinite().all() for parameter in model.parameters()):
        raise UsageError(
            f"{path} has weights that are not numbers (NaN or infinite); its training diverged, use an "
            "earlier checkpoint"
        )
    about = {
        "checkpoint": os.path.abspath(path),
        "data": os.path.abspath(data),
        "subset": subset,
        **_about(state, task),
    }
    about["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    return Loaded(model.cuda() if torch.cuda.is_available() else model, task, about)


def model_options(state: dict[str, Any]) -> dict[str, Any]:
    """The options of a checkpoint's model, which fairseq saves as a dictionary or as a namespace, and in old
    files in another place.
    """
    options = (state.get("cfg") or {}).get("model") or state.get("args")
    return options if isinstance(options, Mapping) else vars(options)


def _about(state: dict[str, Any], task: FairseqTask) -> dict[str, Any]:
    options = model_options(state)
    history = state.get("optimizer_history") or [{}]
    place = (state.get("extra_state") or {}).get("train_iterator", {})
    epoch = place.get("epoch")
    if epoch is not None and not place.get("iterations_in_epoch"):
        epoch -= 1  # at the end of an epoch fairseq saves the next one
    return {
        "arch": options.get("arch") or options.get("_name"),
        "task": getattr(task.cfg, "_name", None),
        "updates": history[-1].get("num_updates"),
        "epoch": epoch,
        "source_lang": getattr(task.cfg, "source_lang", None),
        "target_lang": getattr(task.cfg, "target_lang", None),
    }


def batches(
    model: nn.Module, task: FairseqTask, subset: str, max_tokens: int = MAX_TOKENS, skip_invalid: bool = False
) -> Iterator[dict]:
    """Sentences of about the same length together, with progress where standard error is a terminal.

    Raises:
        UsageError: `max_tokens` is less than the longest sentence has; there is no sentence; one is longer
            than the model's positions, and they are not to be skipped.
    """
    if max_tokens < 1:
        raise UsageError(
            f"--max-tokens {max_tokens}: a batch must have one token at least, and those of the longest "
            "sentence"
        )
    dataset = task.dataset(subset)
    if not len(dataset):
        raise UsageError(_EMPTY.format(subset))
    max_positions = utils.resolve_max_positions(task.max_positions(), model.max_positions())
    try:
        with _quiet():
            iterator = task.get_batch_iterator(
                dataset,
                max_tokens=max_tokens,
                max_positions=max_positions,
                ignore_invalid_inputs=skip_invalid,
            ).next_epoch_itr(shuffle=False)
    except AssertionError as error:
        if "max_tokens" not in str(error):
            raise
        raise UsageError(
            f"--max-tokens {max_tokens} is less than the longest sentence of {subset} has; give more"
        ) from None
    except Exception as error:  # fairseq raises no narrower one
        if "invalid" not in str(error):
            raise
        raise UsageError(
            f"--gen-subset {subset} has a sentence longer than the model's positions, {max_positions}; "
            "leave out such sentences, or give --skip-invalid-size-inputs-valid-test to look at the others"
        ) from None
    for batch in tqdm(iterator, unit="batch", leave=False, disable=None):
        yield utils.move_to_cuda(batch) if torch.cuda.is_available() else batch
