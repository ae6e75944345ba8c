"""Measure what encoders predict, by `modular-fairseq predict`: masked words, classes of inputs, or values.

All models of a table predict the same masked words, whatever the seeds of their trainings.
NAME.predictions.tsv in the run's folder has the numbers of each block of text, or of each input, for
significance tests.
"""

import os
import shlex
from abc import abstractmethod
from typing import Any, ClassVar

import numpy as np

from modular_fairseq.loading import SKIP_INVALID
from modular_fairseq.runs.evaluation import Column, Measurement, register
from modular_fairseq.runs.evaluations.parts import SAME, Floats, OverParts
from modular_fairseq.runs.evaluations.perplexity import options_of_batches
from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import finite, read_json

# The options of fairseq-train that the command has, too.
OPTIONS = ("--max-tokens", SKIP_INVALID)


class Predictions(OverParts):
    """The base of evaluations by `modular-fairseq predict`.

    Attributes:
        task: the task of the models.
        regression: whether they predict values.
        numbers: the number of the command's result that each column shows.
    """

    task: ClassVar[str]
    regression: ClassVar[bool] = False
    numbers: ClassVar[dict[str, str]]

    def fits(self, run: Run) -> bool:
        options = by_option(list(run.words))
        return options.get("--task") == [self.task] and ("--regression-target" in options) == self.regression

    def check(self, measurement: Measurement) -> None:
        corpus, subset = measurement.run.corpus, measurement.subset
        for folder in corpus.folders or ("",):
            ending = "label" if folder == "label" and self.regression else "idx"
            if not os.path.isfile(path := os.path.join(corpus.binarized, folder, f"{subset}.{ending}")):
                raise UsageError(
                    f"{path} does not exist, so {measurement.run.name} cannot be evaluated on {subset}; "
                    "prepare the corpus with this part, or give the row another subset"
                )

    def is_done(self, measurement: Measurement, found: dict[str, Any]) -> bool:
        return self.key in found and os.path.isfile(measurement.path("predictions.tsv"))

    def command(self, measurement: Measurement) -> list[str]:
        """Return the words of the command that evaluates the model."""
        run = measurement.run
        given = by_option(options_of_batches(run))
        own = ["--path", run.checkpoint, "--gen-subset", measurement.subset]
        own += ["--out", measurement.path("predictions"), *run.plugin_option]
        own += [word for name in OPTIONS if name in given for word in (name, *given[name])]
        return ["modular-fairseq", "predict", run.corpus.binarized, *own, *measurement.model_overrides]

    def commands(self, measurement: Measurement) -> list[str]:
        return [shlex.join(self.command(measurement))]

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        measurement.run.execute(self.command(measurement), f"{measurement.name}.predict.log", say)
        found = read_json(measurement.path("predictions.json"))
        assert found is not None  # the command has written the file
        values = {column: finite(found[name]) for column, name in self.numbers.items()}
        return values | {name: found[name] for name in SAME if name in found}

    def lines(self, measurement: Measurement) -> list[list[str]]:
        """Return the words of the lines of the predictions, without the heads."""
        with open(measurement.path("predictions.tsv"), encoding="utf-8") as file:
            return [line.rstrip("\n").split("\t") for line in file][1:]

    def statistics(self, measurement: Measurement) -> Floats:
        """Return the numbers of the lines that have any, since a block may have no masked word."""
        found = np.array([self.count(line) for line in self.lines(measurement)], dtype=np.float64)
        return found[found.any(axis=1)]

    @abstractmethod
    def count(self, line: list[str]) -> list[float]:
        """Return the numbers of a line whose sums decide the score."""


@register
class MaskedWords(Predictions):
    """The evaluation that measures how well masked words are predicted."""

    columns = {
        "masked_nll": Column("NLL of masked words (bits)", "paper: NLL", "{:.3f}"),
        "masked_perplexity": Column("perplexity of masked words", "paper: perplexity"),
        "masked_accuracy": Column("accuracy of masked words", "paper: accuracy"),
    }
    test = "the paired bootstrap over blocks of text"
    units = "blocks of text"
    lower_is_better = True
    task = "masked_lm"
    numbers = {
        "masked_perplexity": "perplexity",
        "masked_nll": "nll",
        "masked_accuracy": "accuracy",
    }

    def count(self, line: list[str]) -> list[float]:
        return [float(line[0]), float(line[1])]

    def score(self, sums: Floats) -> Floats:
        """Return the NLL in bits; NaN if no word is masked."""
        with np.errstate(invalid="ignore"):
            return sums[..., 0] / sums[..., 1] / np.log(2)


@register
class Classes(Predictions):
    """The evaluation that measures how often the right class is predicted."""

    columns = {"class_accuracy": Column("accuracy", "paper: accuracy")}
    test = "the paired bootstrap over inputs"
    units = "inputs"
    task = "sentence_prediction"
    numbers = {"class_accuracy": "accuracy"}

    def count(self, line: list[str]) -> list[float]:
        return [float(line[0] == line[1]), 1.0]

    def score(self, sums: Floats) -> Floats:
        return 100 * sums[..., 0] / sums[..., 1]


@register
class Values(Predictions):
    """The evaluation that measures how predicted values correlate with the right ones, in percent."""

    columns = {
        "pearson": Column("Pearson", "paper: Pearson"),
        "spearman": Column("Spearman", "paper: Spearman"),
    }
    test = "the paired bootstrap over inputs"
    units = "inputs"
    task = "sentence_prediction"
    regression = True
    numbers = {"pearson": "pearson", "spearman": "spearman"}

    def count(self, line: list[str]) -> list[float]:
        return [1.0, *map(float, line)]

    def statistics(self, measurement: Measurement) -> Floats:
        """Return for each input the numbers whose sums decide the correlation.

        Both sides are shifted to a mean of 0, which changes no correlation. Otherwise the sums of squares of
        values that hardly differ would be lost in their rounding.
        """
        one, *sides = super().statistics(measurement).T
        x, y = (side - side.mean() if np.ptp(side) else np.zeros_like(side) for side in sides)
        return np.stack([one, x, y, x * x, y * y, x * y], axis=1)

    def score(self, sums: Floats) -> Floats:
        """Return Pearson's correlation; NaN if one side is constant."""
        n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return 100 * (n * xy - x * y) / np.sqrt((n * xx - x * x) * (n * yy - y * y))
