"""Run a model once over data, teacher-forced, for any number of analyses.

An analysis is constructed for a model, receives one batch after the other, and ends in a report. It refuses a
model that has nothing to analyse. It should keep sums instead of the batches, so that its memory does not
grow with the data.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import Field, asdict
from typing import Any, ClassVar

import torch
from fairseq.tasks import FairseqTask
from torch import nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_maps
from modular_fairseq.models.family import is_masked
from modular_fairseq_cli.errors import UsageError


class Report(ABC):
    """The result of an analysis. A subclass is a dataclass."""

    __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

    @abstractmethod
    def text(self) -> str:
        """Return the result as a table in plain text."""

    def data(self) -> Any:
        """Return the whole result as dictionaries, lists, strings and numbers, for JSON."""
        return asdict(self)

    def tables(self) -> dict[str, list[dict]]:
        """Return the result as tables for TSV files, keyed by the name of the file.

        A table is a list of rows. A row maps the name of each column to a value.
        """
        return {}


class Analysis(ABC):
    """An analysis of one model. Its constructor raises UsageError if it does not apply to the model.

    Attributes:
        summary: one line for the help of `modular-fairseq analyze`.
        needs_attention: whether `see` needs the attention weights of each forward pass.
    """

    summary: str
    needs_attention = False

    @abstractmethod
    def __init__(self, model: nn.Module): ...

    @classmethod
    def is_for(cls, task: FairseqTask) -> bool:
        """Return whether `modular-fairseq analyze all` considers this analysis for data of this kind."""
        return True

    def of_task(self, task: FairseqTask) -> None:  # noqa: B027  (most analyses need only the batches)
        """Take in the task, with its data, before the batches. Raises UsageError if they lack something."""

    def watching(self) -> AbstractContextManager:
        """Return a context for the whole run, including `report`.

        It can switch on something in the model, such as hooks, and must switch it off again.
        """
        return nullcontext()

    @abstractmethod
    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        """Take in one batch after the model has read it.

        Args:
            batch: the batch that the model has read.
            maps: the attention maps of this forward pass. If no analysis has `needs_attention`, the list is
                empty.
        """

    @abstractmethod
    def report(self) -> Report:
        """Return the report. Raises UsageError if the data had nothing that could be analysed."""


def one_pass(
    model: nn.Module, batches: Iterable[dict], analyses: Iterable[Analysis]
) -> list[Report | UsageError]:
    """Run the model in evaluation mode, teacher-forced, and return the reports of all analyses.

    Args:
        batches: fairseq's batches. The "net_input" of each has the arguments of the model.

    Returns:
        for each analysis its report, or the UsageError that its `report` raised. An error of one analysis
        does not affect the others.

    Raises:
        UsageError: there is no batch.
    """
    analyses = list(analyses)
    # The layers are what is analysed, and not the scores of all words at all positions.
    without_words = {"features_only": True} if is_masked(model) else {}
    model.eval()
    with ExitStack() as stack, torch.no_grad():
        for analysis in analyses:
            stack.enter_context(analysis.watching())
        needed = any(analysis.needs_attention for analysis in analyses)
        maps = stack.enter_context(attention_maps(model)) if needed else []
        empty = True
        for batch in batches:
            model(**batch["net_input"], **without_words)
            for analysis in analyses:
                analysis.see(batch, maps)
            maps.clear()
            empty = False
        if empty:
            raise UsageError(
                "there is no sentence to analyse, because the data is empty or every sentence is longer than "
                "the maximum positions of the model; give other data"
            )
        return [_report(analysis) for analysis in analyses]


def _report(analysis: Analysis) -> Report | UsageError:
    try:
        return analysis.report()
    except UsageError as error:
        return error
