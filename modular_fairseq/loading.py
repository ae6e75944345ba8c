"""Load a trained model and binarized data, and make batches of the data."""

import argparse
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
from fairseq.models import BaseFairseqModel
from fairseq.tasks import TASK_REGISTRY, FairseqTask
from torch import nn
from tqdm import tqdm

from modular_fairseq.training.checkpoints import load_checkpoint, options_of
from modular_fairseq_cli.errors import UsageError, unregistered

SKIP_INVALID = "--skip-invalid-size-inputs-valid-test"  # an option of fairseq, too
MAX_TOKENS = 4000
_EMPTY = "--gen-subset {} has no sentence; give a part of the data that has sentences"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence fairseq's log inside the block, except for warnings."""
    logger = logging.getLogger("fairseq")
    level = logger.level
    logger.setLevel(logging.WARNING)
    try:
        yield
    finally:
        logger.setLevel(level)


class Loaded(NamedTuple):
    """A trained model and its data.

    Attributes:
        model: the model in evaluation mode, on a GPU if there is one.
        task: its task, with the loaded part of the data.
        about: facts about both for a report, such as "checkpoint", "subset", "arch", "updates", "parameters".
    """

    model: BaseFairseqModel
    task: FairseqTask
    about: dict[str, Any]


def add_model_and_data(parser: argparse.ArgumentParser) -> None:
    """Add the options that name a model and a part of the data (see also `add_skip_invalid`)."""
    parser.add_argument("data", metavar="DATA", help="folder of binarized data, as for fairseq's commands")
    parser.add_argument("--path", required=True, metavar="FILE", help="checkpoint of the model")
    parser.add_argument(
        "--gen-subset",
        default="valid",
        metavar="PART",
        help="part of the data, such as valid or test (default: valid)",
    )


def add_skip_invalid(parser: argparse.ArgumentParser) -> None:
    """Add the option of commands that read all the data by `batches`."""
    parser.add_argument(
        SKIP_INVALID,
        action="store_true",
        help="leave out sentences that are longer than the maximum positions of the model",
    )


def load(
    path: str | Path, data: str | Path, subset: str, overrides: Mapping[str, Any] | None = None
) -> Loaded:
    """Load a trained model and one part of binarized data.

    Args:
        path: the checkpoint.
        data: the folder that fairseq-preprocess wrote, or for a classification the folder of its inputs and
            labels.
        subset: the part of the data, such as valid or test.
        overrides: options of the model or the task in place of those in the checkpoint.

    Raises:
        UsageError: there is no such checkpoint, data or part; the part is empty; the data has other
            dictionaries or languages than the model; the plugin of the model is not imported; the model ranks
            sentences; or it has weights that are not finite.
    """
    path, data = str(path), str(data)
    # fairseq cannot read an empty file, so this is checked first.
    files = [
        file
        for folder in (Path(data), Path(data, "input0"))
        for file in folder.glob(f"{glob.escape(subset)}.*bin")
    ]
    if any(file.stat().st_size == 0 for file in files):
        raise UsageError(_EMPTY.format(subset))
    state = load_checkpoint(path)
    try:
        with _quiet():
            models, _, task = checkpoint_utils.load_model_ensemble_and_task(
                [path], arg_overrides={**(overrides or {}), "data": data}
            )
            task.load_dataset(subset)
    except FileNotFoundError as error:
        raise UsageError(
            f"{error}; give the folder that fairseq-preprocess wrote, and one of its parts as --gen-subset"
        ) from None
    except RuntimeError as error:  # fairseq's own models raise it; those of this package raise UsageError
        if other := re.search(r"(?:Missing|Unexpected) key\(s\) in state_dict: \"([^\"]+)\"", str(error)):
            raise UsageError(
                f"{path} does not fit the model that its options give ({other[1]}); leave out overrides of "
                "its layers"
            ) from None
        misfit = re.search(r"(size mismatch for \S+): .*", str(error))
        if misfit is None:
            raise
        raise UsageError(
            f"{path} does not fit {data} ({misfit[1]}); give data with the dictionaries that the model was "
            "trained with"
        ) from None
    except (AssertionError, KeyError) as error:
        known = unregistered(error)
        if known is None:
            raise
        raise known from None
    model = models[0].eval()
    refuse_diverged(model, path)
    about = {
        "checkpoint": os.path.abspath(path),
        "data": os.path.abspath(data),
        "subset": subset,
        **_about(state, task),
    }
    if about["task"] == "sentence_ranking":
        raise UsageError(
            "the model has the task sentence_ranking, whose batches only fairseq-train and fairseq-validate "
            "read; give a model of another task, such as sentence_prediction"
        )
    about["parameters"] = sum(parameter.numel() for parameter in model.parameters())
    return Loaded(model.cuda() if torch.cuda.is_available() else model, task, about)


def refuse_diverged(model: nn.Module, path: str | Path) -> None:
    """Raise UsageError if a model, which was loaded from `path`, has weights that are not finite."""
    if not all(tensor.isfinite().all() for tensor in [*model.parameters(), *model.buffers()]):
        raise UsageError(
            f"{path} has weights that are NaN or infinite, because its training diverged; use an earlier "
            "checkpoint"
        )


def _about(state: dict[str, Any], task: FairseqTask) -> dict[str, Any]:
    """Return facts about a checkpoint and its task; a fact that they do not contain is None."""
    options = options_of(state, "model")
    history = state.get("optimizer_history") or [{}]
    place = (state.get("extra_state") or {}).get("train_iterator", {})
    epoch = place.get("epoch")
    if epoch is not None and not place.get("iterations_in_epoch"):
        epoch -= 1  # at the end of an epoch, fairseq saves the number of the next one
    return {
        "arch": options.get("arch") or options.get("_name"),
        "task": next((name for name, kind in TASK_REGISTRY.items() if kind is type(task)), None),
        "updates": history[-1].get("num_updates"),
        "epoch": epoch,
        "source_lang": getattr(task.cfg, "source_lang", None),
        "target_lang": getattr(task.cfg, "target_lang", None),
    }


def batches(
    model: BaseFairseqModel,
    task: FairseqTask,
    subset: str,
    max_tokens: int = MAX_TOKENS,
    skip_invalid: bool = False,
) -> Iterator[dict]:
    """Yield fairseq's batches of a part of the data, each with sentences of about the same length.

    A progress bar is shown if standard error is a terminal.

    Args:
        max_tokens: maximum number of tokens in a batch.
        skip_invalid: leave out sentences that are longer than the maximum positions of the model.

    Raises:
        UsageError: the longest sentence has more than `max_tokens` tokens; there is no sentence; or a
            sentence, with `skip_invalid` every sentence, is longer than the maximum positions of the model.
    """
    if max_tokens < 1:
        raise UsageError(
            f"--max-tokens must be at least the length of the longest sentence, not {max_tokens}"
        )
    dataset = task.dataset(subset)
    if not len(dataset):
        raise UsageError(_EMPTY.format(subset))
    max_positions = utils.resolve_max_positions(task.max_positions(), model.max_positions())
    with _quiet():
        iterator = task.get_batch_iterator(
            dataset,
            max_tokens=max_tokens,
            max_positions=max_positions,
            ignore_invalid_inputs=skip_invalid,
        ).next_epoch_itr(shuffle=False)
    if not len(iterator):
        raise UsageError(
            f"every sentence of {subset} is longer than the maximum positions of the model, {max_positions}; "
            "give other data"
        )
    for batch in tqdm(iterator, unit="batch", leave=False, disable=None):
        yield utils.move_to_cuda(batch) if torch.cuda.is_available() else batch
