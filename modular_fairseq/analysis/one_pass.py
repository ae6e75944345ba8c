"""Run a model once over data, teacher-forced, for any number of analyses.

An analysis is constructed for a model, receives one batch after the other, and ends in a report. It refuses a
model that has nothing to analyse. It should keep sums instead of the batches, so that its memory does not
grow with the data.
"""

import inspect
from abc import ABC, abstractmethod
from collections.abc import Iterable
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import Field, asdict
from typing import Any, ClassVar

import torch
from fairseq.tasks import FairseqTask
from torch import nn

from modular_fairseq.analysis.attention_maps import CROSS, AttentionMap, attention_maps
from modular_fairseq.analysis.places import TARGET, dictionary_of
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
        for each analysis its report, or the UsageError that its `see` or its `report` raised. An error of one
        analysis does not affect the others.

    Raises:
        UsageError: there is no batch, or the batches lack an input of the model.
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
        errors: dict[int, UsageError] = {}  # by the place of the analysis
        empty = True
        for batch in batches:
            if empty:
                _refuse_other_inputs(model, batch["net_input"])
            model(**batch["net_input"], **without_words)
            _mark_padding(maps, model, batch["net_input"])
            for place, analysis in enumerate(analyses):
                if place not in errors:
                    try:
                        analysis.see(batch, maps)
                    except UsageError as error:
                        errors[place] = error
            maps.clear()
            empty = False
        if empty:
            raise UsageError(
                "there is no sentence to analyse, because the data is empty or every sentence is longer than "
                "the maximum positions of the model; give other data"
            )
        return [errors.get(place) or _report(analysis) for place, analysis in enumerate(analyses)]


def _refuse_other_inputs(model: nn.Module, net_input: dict[str, Any]) -> None:
    """Raise UsageError if a model does not read what a batch has, teacher-forced."""
    try:
        inspect.signature(model.forward).bind(**net_input)
    except TypeError as error:
        raise UsageError(
            f"{type(model).__name__} does not read {', '.join(net_input)} alone ({error}); only models that "
            "read the previous target tokens can be analysed"
        ) from None


def _mark_padding(maps: list[AttentionMap], model: nn.Module, net_input: dict[str, Any]) -> None:
    """Mark padded queries of cross-attention in layers without self-attention, which would tell of them."""
    for each in maps:
        if each.kind == CROSS and each.query_padding is None:
            pad = dictionary_of(TARGET, model).pad()
            each.query_padding = net_input["prev_output_tokens"].eq(pad)


def _report(analysis: Analysis) -> Report | UsageError:
    try:
        return analysis.report()
    except UsageError as error:
        return error
