"""One teacher-forced pass over data that feeds any number of analyses.

An analysis is a class made of a model, which refuses a model that has nothing to see, is fed batch by batch
and ends in a report. It keeps sums and not what it saw, so its memory does not grow with the data.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_maps
from modular_fairseq_cli.errors import UsageError


class Report(ABC):
    """What an analysis found; a dataclass."""

    @abstractmethod
    def text(self) -> str:
        """A table for people."""

    def data(self) -> Any:
        """Everything, as dictionaries, lists, strings and numbers, for JSON."""
        return asdict(self)

    def tables(self) -> dict[str, list[dict]]:
        """The same as tables for TSV: rows by the name of the file; a row is a value for each column."""
        return {}


class Analysis(ABC):
    """One look into a model. Its constructor takes the model, and raises UsageError where there is nothing to
    see.
    """

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
    def report(self) -> Report:
        """Raises UsageError where what was seen says nothing."""


def one_pass(
    model: nn.Module, batches: Iterable[dict], analyses: Iterable[Analysis]
) -> list[Report | UsageError]:
    """Run the model in evaluation mode, teacher-forced, on batches with a `net_input`.

    Returns:
        for each analysis its report, or the error that says why it has none: the others have seen what they
        need all the same.

    Raises:
        UsageError: there is no batch.
    """
    analyses = list(analyses)
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
            raise UsageError(
                "there is no sentence to look at: the data is empty, or every sentence is longer than the "
                "model's positions"
            )
        return [_report(analysis) for analysis in analyses]


def _report(analysis: Analysis) -> Report | UsageError:
    try:
        return analysis.report()
    except UsageError as error:
        return error
