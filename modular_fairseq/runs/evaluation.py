"""What a run is worth on a part of its data: a measurement, and the evaluations that it is made of.

A measurement is a file beside the checkpoints of the run. An evaluation is a file of `evaluations/`.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from modular_fairseq.runs.run import Run, Say
from modular_fairseq_cli.files import only_one, read_json, write_file


class Measurement(NamedTuple):
    """A run, a part of its data, and what is to be found out there.

    Args:
        evaluations: may be none: then the statistics of the training are all that is wanted.
        subset: a part of the data, such as test.
        overrides: options of the model at inference, names and values.
        decoding: words of fairseq-generate.
    """

    run: Run
    evaluations: tuple["Evaluation", ...] = ()
    subset: str = "test"
    overrides: tuple[tuple[str, Any], ...] = ()
    decoding: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The stem of the measurement's file names: test, or test-specialised."""
        return "-".join([self.subset, *(str(value) for _, value in self.overrides)])

    def path(self, kind: str) -> str:
        return self.run.path(f"{self.name}.{kind}")

    @property
    def model_overrides(self) -> list[str]:
        """The words for fairseq's commands that `overrides` become."""
        return ["--model-overrides", json.dumps(dict(self.overrides))] if self.overrides else []

    @property
    def found(self) -> dict[str, Any]:
        """What the evaluations found for the checkpoint as it is now, and the digest of that checkpoint."""
        kept, training = read_json(self.path("json")) or {}, self.run.training or {}
        checkpoint = training.get("checkpoint")
        return kept if kept.get("checkpoint") == checkpoint else {"checkpoint": checkpoint}

    @property
    def result(self) -> dict[str, Any] | None:
        """The statistics of the training and what all evaluations found; None if any of it is missing."""
        training, found = self.run.training, self.found
        if training is None or not all(each.is_done(self, found) for each in self.evaluations):
            return None
        return {**training, **found}

    def finish(self, say: Say) -> None:
        """Make the evaluations that are not done yet. The run must have been trained.

        Raises:
            UsageError: a command failed, the data lack what an evaluation needs, or another process works in
                the run's folder.
        """
        if self.result is not None:
            return
        os.makedirs(self.run.folder, exist_ok=True)
        with only_one(self.run.folder):
            found = self.found
            missing = [each for each in self.evaluations if not each.is_done(self, found)]
            for each in missing:
                each.check(self)
            if any(each.key in found for each in missing):  # the data or the decoding has changed
                found, missing = {"checkpoint": found["checkpoint"]}, list(self.evaluations)
                self._write(found)
            for each in missing:
                found |= each.measure(self, say)
                self._write(found)

    def _write(self, content: dict[str, Any]) -> None:
        write_file(self.path("json"), json.dumps(content, indent=1) + "\n")


class Column(NamedTuple):
    """A column of a table: its heading, that of the paper's column beside it ("": none), and a format."""

    heading: str
    paper: str
    pattern: str = "{:.2f}"


class Evaluation(ABC):
    """A way to judge a run.

    `columns` are keys of what `measure` returns, by name. The first one is what rows are compared by.
    """

    columns: ClassVar[dict[str, Column]]
    takes_overrides: ClassVar[bool] = True  # knows options of the model at inference
    test: ClassVar[str] = ""  # what a p of `compare` comes from

    @property
    def key(self) -> str:
        return next(iter(self.columns))

    def fits(self, run: Run) -> bool:
        """Return whether this evaluation applies to the task of `run`."""
        return True

    def is_done(self, of: Measurement, found: dict[str, Any]) -> bool:
        """Return whether `found`, from the measurement's file, has the result of this evaluation."""
        return self.key in found

    def check(self, of: Measurement) -> None:  # noqa: B027  (an evaluation may need nothing)
        """Raise UsageError if something is missing that `measure` needs."""

    @abstractmethod
    def commands(self, of: Measurement) -> list[str]:
        """Return lines for a shell, for people who want to repeat it."""

    @abstractmethod
    def measure(self, of: Measurement, say: Say) -> dict[str, Any]:
        """Return the numbers by column, and what else is to be kept, as JSON.

        Raises:
            UsageError: a command failed, or something that is needed is not there.
        """

    def compare(
        self, ours: Measurement, baseline: Measurement, samples: int
    ) -> tuple[float, float | None] | None:
        """Return the difference of `key` and its p, if the evaluation has a test for two single results.

        None: the two were not measured on the same data.
        """
        same = ours.run.corpus.folder == baseline.run.corpus.folder and ours.subset == baseline.subset
        return (ours.result[self.key] - baseline.result[self.key], None) if same else None

    def notes(self, results: Iterable[dict[str, Any]]) -> list[str]:
        """Return sentences for below the table on what the numbers are."""
        return []


EVALUATIONS: list[Evaluation] = []


def register(evaluation: type[Evaluation]) -> type[Evaluation]:
    """Decorate a class whose columns tables may have.

    Raises:
        ValueError: a column is there already.
    """
    taken = {name for each in EVALUATIONS for name in each.columns} & evaluation.columns.keys()
    if taken:
        raise ValueError(
            f"{evaluation.__name__}: the column {min(taken)} is registered already; take another"
        )
    EVALUATIONS.append(evaluation())
    return evaluation


def evaluations_of(columns: Iterable[str]) -> tuple[Evaluation, ...]:
    """Return the evaluations that give any of the columns, in the order of the columns."""
    found = [each for name in columns for each in EVALUATIONS if name in each.columns]
    return tuple(dict.fromkeys(found))
