"""Measurements, which judge a run on a part of its data, and the evaluations that they consist of.

The results of a measurement are a file beside the checkpoints of the run. Each kind of evaluation is a Python
file of the folder evaluations/.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any, ClassVar, NamedTuple

from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.files import only_one, read_json, write_json
from modular_fairseq_cli.scoring.intervals import Interval, over_seeds


class Measurement(NamedTuple):
    """A run, a part of its data, and the evaluations that judge the run there.

    Args:
        run: the run.
        evaluations: the evaluations. Without any, a measurement consists of the statistics of the training.
        subset: the part of the data, such as test.
        overrides: names and values of model options that are changed for inference.
        decoding: options of fairseq-generate.
    """

    run: Run
    evaluations: tuple["Evaluation", ...] = ()
    subset: str = "test"
    overrides: tuple[tuple[str, Any], ...] = ()
    decoding: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The stem that the measurement's files share, such as test or test-specialised.

        True and False say little by themselves, so the name of their option stands before them.
        """
        values = (
            f"{key}-{value}" if isinstance(value, bool) else str(value) for key, value in self.overrides
        )
        return "-".join([self.subset, *values])

    def path(self, kind: str) -> str:
        """Return the path of the measurement's file with the suffix `kind`."""
        return self.run.path(f"{self.name}.{kind}")

    @property
    def settings(self) -> list[str]:
        """Everything but the checkpoint and the data that a translation or a perplexity depends on."""
        return [*self.decoding, *map(str, self.overrides)]

    @property
    def model_and_subset(self) -> list[str]:
        """The options of fairseq's commands that name the plugin, the checkpoint and the part of the data."""
        return ["--user-dir", self.run.plugin, "--path", self.run.checkpoint, "--gen-subset", self.subset]

    @property
    def model_overrides(self) -> list[str]:
        """The options of fairseq's commands that apply `overrides`, a dictionary as Python writes it."""
        return ["--model-overrides", repr(dict(self.overrides))] if self.overrides else []

    @property
    def found(self) -> dict[str, Any]:
        """The results that are saved for the present checkpoint, data and overrides.

        The digest of the checkpoint is one of them. The name of the file does not always tell overrides
        apart. Early results did not note them.
        """
        kept, training = read_json(self.path("json")) or {}, self.run.training or {}
        checkpoint = training.get("checkpoint")
        is_valid = kept.get("checkpoint") == checkpoint and self._has_data(kept.get("data"))
        has_overrides = kept.get("overrides", self._overrides) == self._overrides
        return kept if is_valid and has_overrides else {"checkpoint": checkpoint}

    @property
    def _overrides(self) -> list[str]:
        """The overrides as they are saved."""
        return list(map(str, self.overrides))

    def _has_data(self, digests: Any) -> bool:
        """Return whether the data are those with these digests, keyed by file.

        Files that are gone do not matter, so that a table of earlier results can be made without the corpus.
        Version 0.1 noted no digests, and early language models had a list of them.
        """
        present = self.run.corpus.contents_of(self.subset)
        known = isinstance(digests, dict)
        return not known or all(digests.get(name) == found for name, found in present.items())

    @property
    def result(self) -> dict[str, Any] | None:
        """The statistics of the training and the results of all evaluations, or None if any is missing."""
        training, found = self.run.training, self.found
        if training is None or not all(each.is_done(self, found) for each in self.evaluations):
            return None
        return {**training, **found}

    def finished_result(self) -> dict[str, Any]:
        """Return the `result` of a measurement that is known to be finished."""
        result = self.result
        assert result is not None
        return result

    def finish(self, say: Say) -> None:
        """Make the evaluations that are missing. The run must have been trained.

        If the data or the decoding have changed since an evaluation was made, all evaluations are made again.

        Args:
            say: is called with a sentence about each command, and with its progress.

        Raises:
            UsageError: a command failed, the data lack what an evaluation needs, or another process works in
                the run's folder.
        """
        if self.result is not None:
            return
        os.makedirs(self.run.folder, exist_ok=True)
        with only_one(self.run.folder):
            found = self.found
            missing = self.check()
            if any(each.key in found for each in missing):  # the decoding has changed
                found = {"checkpoint": found["checkpoint"]}
                missing = list(self.evaluations)
            if found.keys() == {"checkpoint"}:  # else they are results of data that nobody has noted
                found |= {"data": self.run.corpus.contents_of(self.subset), "overrides": self._overrides}
                self._write(found)
            for each in missing:
                found |= each.measure(self, say)
                self._write(found)

    def check(self) -> list["Evaluation"]:
        """Return the evaluations that are missing.

        Raises:
            UsageError: the data lack something that one of them needs.
        """
        found = self.found
        missing = [each for each in self.evaluations if not each.is_done(self, found)]
        for each in missing:
            each.check(self)
        return missing

    def _write(self, content: dict[str, Any]) -> None:
        """Save the results of the evaluations."""
        write_json(self.path("json"), content)


class Column(NamedTuple):
    """A column that an evaluation gives a table.

    Args:
        heading: heading of our numbers.
        paper: heading of the paper's numbers, which stand in a further column; "": there is none.
        pattern: format of the numbers.
        instead: name of the column that takes the paper's figures, if there is one and it is not this one.
    """

    heading: str
    paper: str
    pattern: str = "{:.2f}"
    instead: str = ""

    @property
    def signed(self) -> str:
        """The format of a difference, with its sign."""
        return with_sign(self.pattern)


def with_sign(pattern: str) -> str:
    """Return the format of numbers that are shown with their sign."""
    return pattern if ":+" in pattern else pattern.replace(":", ":+")


class Pair(NamedTuple):
    """A measurement of a row and its baseline's with the same seed. The difference is ours - baseline."""

    ours: Measurement
    baseline: Measurement
    difference: float


class Evaluation(ABC):
    """A way to judge a run, which gives a table some of its columns.

    Attributes:
        columns: the columns, keyed by their names, which are keys of the dictionary that `measure` returns.
            Rows are compared by the first column.
        takes_overrides: whether the evaluation applies the overrides of a measurement.
        test: the name of the significance test of `compare`; "" if it has none.
        lower_is_better: whether models are better that have a lower value in the first column.
        units: what the data consist of in `test` and `interval`, such as sentences. Without units, `interval`
            accounts for seeds alone.
    """

    columns: ClassVar[dict[str, Column]]
    takes_overrides: ClassVar[bool] = True
    test: ClassVar[str] = ""
    lower_is_better: ClassVar[bool] = False
    units: ClassVar[str] = ""

    @property
    def key(self) -> str:
        """The name of the first column, by which rows are compared."""
        return next(iter(self.columns))

    def fits(self, run: Run) -> bool:
        """Return whether this evaluation applies to the task of `run`."""
        return True

    def is_done(self, measurement: Measurement, found: dict[str, Any]) -> bool:
        """Return whether `found`, the content of the measurement's file, has a valid result."""
        return self.key in found

    def check(self, measurement: Measurement) -> None:  # noqa: B027  (an evaluation may need nothing)
        """Raise UsageError if the data lack something that `measure` needs."""

    @abstractmethod
    def commands(self, measurement: Measurement) -> list[str]:
        """Return shell commands that repeat the evaluation."""

    @abstractmethod
    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        """Make the evaluation.

        Args:
            measurement: what is to be measured.
            say: is called with a sentence about each command, and with its progress.

        Returns:
            The numbers, keyed by column, and whatever else is to be saved, as JSON. A column of which the
            model has no value is None.

        Raises:
            UsageError: a command failed, or a file is missing.
        """

    def compare(
        self, ours: Measurement, baseline: Measurement, samples: int
    ) -> tuple[float, float | None] | None:
        """Compare two finished measurements.

        Args:
            samples: number of resamples, for a bootstrap.

        Returns:
            The difference ours - baseline in the column `key`, and its p, which is None if the evaluation has
            no significance test for two single results. None if the two were measured on different data, or
            if one of them has no value.

        Raises:
            UsageError: the results of the two cannot be compared.
        """
        if ours.run.corpus.folder != baseline.run.corpus.folder or ours.subset != baseline.subset:
            return None
        value, other = ours.finished_result()[self.key], baseline.finished_result()[self.key]
        return None if value is None or other is None else (value - other, None)

    def interval(self, by_seed: Sequence[Sequence[Pair]]) -> Interval | None:
        """Return the 95 % interval of the difference, or None if there are fewer than two seeds.

        It accounts for training noise, but not for the choice of the test data.

        Args:
            by_seed: for each seed its pairs, one for each set of overrides.
        """
        return over_seeds([fmean(pair.difference for pair in pairs) for pairs in by_seed])

    def notes(self, results: Iterable[dict[str, Any]]) -> list[str]:
        """Return sentences that explain the numbers, for the notes below a table with these results."""
        return []


EVALUATIONS: list[Evaluation] = []  # all evaluations, in the order of their registration


def register(evaluation: type[Evaluation]) -> type[Evaluation]:
    """Register a class of evaluations, as its decorator, so that tables may have its columns.

    Raises:
        ValueError: another evaluation has a column of the same name.
    """
    taken = {name for each in EVALUATIONS for name in each.columns} & evaluation.columns.keys()
    if taken:
        raise ValueError(
            f"{evaluation.__name__}: the column {min(taken)} is registered already; choose another name"
        )
    EVALUATIONS.append(evaluation())
    return evaluation


def evaluations_of(columns: Iterable[str]) -> tuple[Evaluation, ...]:
    """Return the evaluations to which any of the columns belongs, in the order of the columns."""
    found = [each for name in columns for each in EVALUATIONS if name in each.columns]
    return tuple(dict.fromkeys(found))
