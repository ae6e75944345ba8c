"""What every evaluation of a run is: columns for a table, commands, a result, and a comparison."""

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any, ClassVar, NamedTuple

from modular_fairseq.runs.measurement import Measurement
from modular_fairseq.runs.run import Run, Say


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
        """Whether a run of that task can be judged so."""
        return True

    def is_done(self, of: Measurement, found: dict[str, Any]) -> bool:
        """Whether `found`, from the measurement's file, has the result of this evaluation."""
        return self.key in found

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
