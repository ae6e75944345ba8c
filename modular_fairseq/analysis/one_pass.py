"""What all analyses share: loading a trained model and its data, and one teacher-forced pass that feeds any number of them.

An analysis is a class made of a model, which refuses a model that has nothing to see, is fed batch by batch and ends in a report. It keeps
sums and not what it saw, so its memory does not grow with the data.
"""

import argparse
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, nullcontext
from pathlib import Path
from typing import Any, Protocol

import torch
from fairseq import checkpoint_utils, utils
from fairseq.tasks import FairseqTask
from torch import nn
from tqdm import tqdm

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_maps
from modular_fairseq.errors import UsageError
from modular_fairseq.training.checkpoints import load_checkpoint

MAX_TOKENS = 4000


class Report(Protocol):
    def text(self) -> str:
        """A table for people."""

    def data(self) -> Any:
        """Everything, as dictionaries, lists, strings and numbers, for JSON."""


class Analysis(ABC):
    """One look into a model. Its constructor takes the model, and raises UsageError where there is nothing to see."""

    summary: str  # what it is, in a line
    needs_attention = False  # whether `see` wants maps

    @abstractmethod
    def __init__(self, model: nn.Module): ...

    def watching(self) -> AbstractContextManager:
        """Around the pass, report included: for what must be switched on in the model, and off again."""
        return nullcontext()

    @abstractmethod
    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        """After each forward pass: what went in, and all attention of that pass if `needs_attention`."""

    @abstractmethod
    def report(self) -> Report: ...


def one_pass(model: nn.Module, batches: Iterable[dict], kinds: Iterable[type[Analysis]]) -> list[Report]:
    """Run the model in evaluation mode, teacher-forced, on batches with a `net_input`; a report of each kind of analysis.

    Raises:
        UsageError: the model has nothing to see for one of them, or there is no batch.
    """
    analyses = [kind(model) for kind in kinds]
    model.eval()
    with ExitStack() as stack, torch.no_grad():
        for analysis in analyses:
            stack.enter_context(analysis.watching())
        needed = any(analysis.needs_attention for analysis in analyses)
        maps = stack.enter_context(attention_maps(model)) if needed else []
        empty = True
        for batch in batches:
            model(**batch["net_input"])
            for analysis in analyses:
                analysis.see(batch, maps)
            maps.clear()
            empty = False
        if empty:
            raise UsageError("there is no sentence to look at: the data is empty, or every sentence is longer than the model's positions")
        return [analysis.report() for analysis in analyses]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What to look at."""
    parser.add_argument("data", help="binarized data, as for fairseq-generate")
    parser.add_argument("--path", required=True, help="checkpoint")
    parser.add_argument("--gen-subset", default="valid", help="which part of the data (default: valid)")
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS, help="tokens in a batch")


def analyze(path: str | Path, data: str | Path, subset: str, kinds: Iterable[type[Analysis]], max_tokens: int = MAX_TOKENS) -> list[Report]:
    """The reports of a checkpoint on one part of binarized data; on a GPU if there is one, with progress where stderr is a terminal.

    Raises:
        UsageError: what `one_pass` and `load` refuse, or a `max_tokens` that a sentence does not fit in.
    """
    if max_tokens < 1:
        raise UsageError(f"--max-tokens {max_tokens}: a batch must have one token at least, and those of the longest sentence")
    model, task = load(path, data, subset)
    return one_pass(model, _batches(model, task, subset, max_tokens), kinds)


def load(path: str | Path, data: str | Path, subset: str) -> tuple[nn.Module, FairseqTask]:
    """A trained model, and its task with one part of binarized data loaded.

    Raises:
        UsageError: there is no such checkpoint, data or part, or the data has other dictionaries than the model.
    """
    path, data = str(path), str(data)
    if not any(Path(data).glob("dict.*txt")):
        raise UsageError(f"{data} has no dictionary; give the folder that fairseq-preprocess wrote")
    load_checkpoint(path)  # for its sentences about files that cannot be read
    try:
        models, _, task = checkpoint_utils.load_model_ensemble_and_task([path], arg_overrides={"data": data})
        task.load_dataset(subset)
    except FileNotFoundError as error:
        raise UsageError(f"{error}: give the folder that fairseq-preprocess wrote, and one of its parts as --gen-subset") from None
    except RuntimeError as error:  # of fairseq's own models; ours say it themselves
        misfit = re.search(r"(size mismatch for \S+): .*", str(error))
        if misfit is None:
            raise
        raise UsageError(
            f"{path} does not fit {data} ({misfit[1]}); give the data with the dictionaries that it was trained with"
        ) from None
    model = models[0]
    return model.cuda() if torch.cuda.is_available() else model, task


def _batches(model: nn.Module, task: FairseqTask, subset: str, max_tokens: int) -> Iterator[dict]:
    """Sentences of about the same length together; those that are longer than the model's positions are left out, with a warning."""
    try:
        batches = task.get_batch_iterator(
            task.dataset(subset),
            max_tokens=max_tokens,
            max_positions=utils.resolve_max_positions(task.max_positions(), model.max_positions()),
            ignore_invalid_inputs=True,
        ).next_epoch_itr(shuffle=False)
    except AssertionError:
        raise UsageError(f"--max-tokens {max_tokens} is less than the longest sentence of {subset} has; give more") from None
    for batch in tqdm(batches, unit="batch", leave=False, disable=None):
        yield utils.move_to_cuda(batch) if torch.cuda.is_available() else batch
