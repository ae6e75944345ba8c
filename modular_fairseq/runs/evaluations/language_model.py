"""Perplexity of language models: fairseq-eval-lm scores every token of a part of the corpus.

The table has the perplexity that fairseq-eval-lm prints. NAME.documents.json in the run's folder has the
log-likelihood of each document, for significance tests. Documents are those of the prepared corpus (see
`modular_fairseq_cli.corpora.documents`).
"""

import json
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
from fairseq.data import indexed_dataset
from numpy.typing import NDArray

from modular_fairseq.runs.config import LANGUAGE_MODELING
from modular_fairseq.runs.evaluation import Column, Measurement, register
from modular_fairseq.runs.evaluations.parts import Floats, OverParts
from modular_fairseq.runs.evaluations.perplexity import options_of_batches
from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file

PRINTED = re.compile(r"Loss \(base 2\): ([\d.]+|nan|inf), Perplexity: ([\d.]+|nan|inf)")
BLOCK = re.compile(r"fairseq_cli\.eval_lm(?: \| |:)(\d+) (.* \[-?(?:[\d.]+|inf|nan)\])$")


@register
class LanguageModel(OverParts):
    """The evaluation that measures the perplexity of a language model by fairseq-eval-lm.

    "lm_perplexity" counts every token of the dictionary, with the end of each line. "word_perplexity" divides
    the same log-likelihood by the number of words and lines of the text, so that models with other sub-words
    can be compared. It is None if the corpus has no text beside its binarized data. "nats_per_token" is the
    logarithm of "lm_perplexity", as models of pictures are compared.
    """

    columns = {
        "lm_perplexity": Column("perplexity", "paper: perplexity"),
        "word_perplexity": Column("perplexity per word", "paper: perplexity per word"),
        "nats_per_token": Column("nats per token", "paper: nats per token", "{:.4f}"),
    }
    test = "the paired bootstrap over documents"
    units = "documents"
    lower_is_better = True

    def fits(self, run: Run) -> bool:
        return by_option(list(run.words)).get("--task") == [LANGUAGE_MODELING]

    def is_done(self, measurement: Measurement, found: dict[str, Any]) -> bool:
        has_documents = os.path.isfile(measurement.path("documents.json"))
        return self.key in found and found.get("eval_lm") == measurement.settings and has_documents

    def commands(self, measurement: Measurement) -> list[str]:
        return [shlex.join(eval_command(measurement))]

    def check(self, measurement: Measurement) -> None:
        if not os.path.isfile(data_of(measurement)):
            raise UsageError(
                f"{data_of(measurement)} is missing, so {measurement.run.name} cannot be evaluated on "
                f"{measurement.subset}; prepare the corpus with this part, or give the row another subset"
            )
        lines_of_documents(measurement)

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        run, log = measurement.run, f"{measurement.name}.eval-lm.log"
        blocks: dict[int, list[float]] = {}

        def read(line: str) -> None:
            if found := BLOCK.search(line):
                pairs = found[2].split("\t")
                blocks[int(found[1])] = [float(pair.rpartition(" [")[2][:-1]) for pair in pairs]

        lines = run.execute([*eval_command(measurement), "--output-word-probs"], log, say, read)
        printed = next((found for line in reversed(lines) if (found := PRINTED.search(line))), None)
        if printed is None:
            raise UsageError(f"{run.name}: fairseq-eval-lm showed no perplexity; see {run.path(log)}")
        _remove_blocks(run.path(log))
        scores = np.array([score for number in sorted(blocks) for score in blocks[number]])
        documents = self._documents(measurement, scores)
        write_file(measurement.path("documents.json"), json.dumps(documents) + "\n")
        words = words_of(measurement)
        return {
            "eval_lm": measurement.settings,
            "lm_perplexity": float(printed[2]),
            "word_perplexity": None if words is None else math.exp(-scores.sum() / words),
            "nats_per_token": float(-scores.mean()),
        }

    def _documents(self, measurement: Measurement, scores: Floats) -> list[list[float]]:
        """Return the negative log-likelihood in nats and the number of tokens of each document.

        Args:
            scores: the log-likelihood of each token [tokens].

        Raises:
            UsageError: fairseq-eval-lm has not scored all tokens.
        """
        lines = tokens_by_line(measurement)
        if lines.sum() != len(scores):
            raise UsageError(
                f"{measurement.run.name}: fairseq-eval-lm has scored {len(scores):,} of {lines.sum():,} "
                f"tokens of {data_of(measurement)}; see {measurement.path('eval-lm.log')}"
            )
        ends = np.cumsum(lines)[np.cumsum(lines_of_documents(measurement)) - 1]
        return [[-float(each.sum()), len(each)] for each in np.split(scores, ends[:-1]) if len(each)]

    def statistics(self, measurement: Measurement) -> Floats:
        """Return the negative log-likelihood and the number of tokens of each document [documents, 2]."""
        return np.asarray(read_json(measurement.path("documents.json")), dtype=np.float64)

    def score(self, sums: Floats) -> Floats:
        """Return perplexities from sums of negative log-likelihoods and tokens [..., 2]."""
        return np.exp(self.nats(sums))

    def nats(self, sums: Floats) -> Floats:
        """Return nats per token from sums of negative log-likelihoods and tokens [..., 2]."""
        return sums[..., 0] / sums[..., 1]

    @property
    def scores(self) -> dict[str, Callable[[Floats], Floats]]:
        return {"lm_perplexity": self.score, "nats_per_token": self.nats}

    def notes(self, results: Iterable[dict[str, Any]]) -> list[str]:
        settings = {" ".join(result["eval_lm"]) for result in results if "eval_lm" in result}
        return [f"Perplexity: fairseq-eval-lm {each}." for each in sorted(settings)]


def eval_command(measurement: Measurement) -> list[str]:
    """Return the words of the command that evaluates the model.

    It has no --post-process, because fairseq-eval-lm would then leave out the beginnings of words at the ends
    of blocks.
    """
    options = by_option(list(measurement.decoding))
    for name in ("", "--post-process"):
        options.pop(name, None)
    words = [word for name, values in options.items() for word in (name, *values)]
    return [
        "fairseq-eval-lm",
        measurement.run.corpus.binarized,
        *measurement.model_and_subset,
        *words,
        *batches_of(measurement),
        *measurement.model_overrides,
    ]


def batches_of(measurement: Measurement) -> list[str]:
    """Return the options that limit batches to about as many tokens as in training, with their contexts.

    fairseq-eval-lm compares --max-tokens with the lengths of blocks without their contexts.
    """
    words = options_of_batches(measurement.run)
    options = by_option([*measurement.decoding, *words])
    limited = "--batch-size" in options or "--max-sentences" in options
    if "--context-window" in options and "--max-tokens" in options and not limited:
        blocks = int(options["--max-tokens"][0]) // int(options.get("--tokens-per-sample", ["1024"])[0])
        words += ["--batch-size", str(max(blocks, 1))]
    return words


def data_of(measurement: Measurement) -> str:
    """Return the path of the index of the data."""
    return os.path.join(measurement.run.corpus.binarized, f"{measurement.subset}.idx")


def text_of(measurement: Measurement, ending: str) -> str:
    """Return the path of the text from which the data were made, or of the lengths of its documents."""
    return os.path.join(measurement.run.corpus.folder, "text", f"{measurement.subset}.{ending}")


def tokens_by_line(measurement: Measurement) -> NDArray[np.int64]:
    """Return the number of tokens of each line of the data, with the end of the line [lines]."""
    dataset = indexed_dataset.make_dataset(data_of(measurement).removesuffix(".idx"), "mmap")
    return np.array(dataset.sizes)  # a copy, because the data set unmaps its memory when it is deleted


def lines_of_documents(measurement: Measurement) -> list[int]:
    """Return the number of lines of each document.

    A corpus that was not prepared by this project is one document.

    Raises:
        UsageError: the documents do not have as many lines as the data.
    """
    lines, path = len(tokens_by_line(measurement)), text_of(measurement, "documents")
    try:
        with open(path, encoding="utf-8") as file:
            counts = [int(line) for line in file]
    except FileNotFoundError:
        return [lines]
    if sum(counts) != lines:
        raise UsageError(
            f"{path} has documents of {sum(counts):,} lines, and {data_of(measurement)} has {lines:,} lines; "
            "prepare the corpus again"
        )
    return counts


def words_of(measurement: Measurement) -> int | None:
    """Return the number of words and lines of the text, or None if the corpus has no text."""
    path = text_of(measurement, "txt")
    if not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8") as file:
        return sum(len(line.split()) + 1 for line in file)


def _remove_blocks(log: str) -> None:
    """Remove the lines with the probabilities of words from a log, which are many megabytes."""
    with open(log, encoding="utf-8", errors="replace", newline="\n") as file:
        kept = [line for line in file if not BLOCK.search(line.rstrip("\n"))]
    write_file(log, "".join(kept))
