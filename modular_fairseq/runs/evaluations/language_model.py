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
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from fairseq.data import indexed_dataset
from numpy.typing import NDArray

from modular_fairseq.runs.config import LANGUAGE_MODELING
from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, Pair, register
from modular_fairseq.runs.evaluations.perplexity import options_of_batches
from modular_fairseq.runs.run import PLUGIN, Run, Say
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, read_json, write_file
from modular_fairseq_cli.scoring.intervals import Interval, jackknife, over_pairs
from modular_fairseq_cli.scoring.significance import bootstrap_p

Floats = NDArray[np.float64]
PRINTED = re.compile(r"Loss \(base 2\): ([\d.]+|nan|inf), Perplexity: ([\d.]+|nan|inf)")
BLOCK = re.compile(r"fairseq_cli\.eval_lm(?: \| |:)(\d+) (.* \[-?(?:[\d.]+|inf|nan)\])$")
# For each --post-process: whether a piece counts as a word. The last or the first piece of each word does.
COUNTS_AS_WORD: dict[str, Callable[[str], bool]] = {
    "": lambda piece: True,
    "subword_nmt": lambda piece: not piece.endswith("@@"),
    "sentencepiece": lambda piece: piece.startswith("\u2581") or piece == "</s>",
}


@register
class LanguageModel(Evaluation):
    """The evaluation that measures the perplexity of a language model by fairseq-eval-lm.

    "lm_perplexity" counts every token of the dictionary, with the end of each line. "word_perplexity" divides
    the same log-likelihood by the number of words, if the tokens are pieces of words.
    """

    columns = {
        "lm_perplexity": Column("perplexity", "paper: perplexity"),
        "word_perplexity": Column("perplexity per word", "paper: perplexity per word"),
    }
    test = "the paired bootstrap over documents"
    interval_over = "seeds and documents"

    def fits(self, run: Run) -> bool:
        return by_option(list(run.words)).get("--task") == [LANGUAGE_MODELING]

    def is_done(self, measurement: Measurement, found: dict[str, Any]) -> bool:
        if self.key not in found or found.get("eval_lm") != decoding_of(measurement):
            return False
        # Without the corpus, a table of earlier results can still be made.
        data = data_of(measurement)
        return not os.path.isfile(data) or digest(data) == found.get("data")

    def commands(self, measurement: Measurement) -> list[str]:
        return [shlex.join(eval_command(measurement))]

    def check(self, measurement: Measurement) -> None:
        if not os.path.isfile(data_of(measurement)):
            raise UsageError(
                f"{data_of(measurement)} is missing, so {measurement.run.name} cannot be evaluated on "
                f"{measurement.subset}; prepare the corpus with this part, or give the row another subset"
            )

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        run, log = measurement.run, f"{measurement.name}.eval-lm.log"
        blocks: dict[int, tuple[list[str], list[float]]] = {}

        def read(line: str) -> None:
            if found := BLOCK.search(line):
                pairs = [pair.rpartition(" [") for pair in found[2].split("\t")]
                blocks[int(found[1])] = [word for word, *_ in pairs], [float(p[:-1]) for *_, p in pairs]

        lines = run.execute([*eval_command(measurement), "--output-word-probs"], log, say, read)
        printed = next((found for line in reversed(lines) if (found := PRINTED.search(line))), None)
        if printed is None:
            raise UsageError(f"{run.name}: fairseq-eval-lm showed no perplexity; see {run.path(log)}")
        _remove_blocks(run.path(log))
        ordered = [blocks[number] for number in sorted(blocks)]
        words = [word for symbols, _ in ordered for word in symbols]
        scores = np.array([score for _, each in ordered for score in each])
        documents = self._documents(measurement, scores)
        write_file(measurement.path("documents.json"), json.dumps(documents) + "\n")
        count = sum(map(COUNTS_AS_WORD[post_process_of(measurement)], words))
        return {
            "eval_lm": decoding_of(measurement),
            "data": digest(data_of(measurement)),
            "lm_perplexity": float(printed[2]),
            "word_perplexity": math.exp(-scores.sum() / count),
        }

    def _documents(self, measurement: Measurement, scores: Floats) -> list[list[float]]:
        """Return the negative log-likelihood in nats and the number of tokens of each document.

        Args:
            scores: the log-likelihood of each token [tokens].

        Raises:
            UsageError: fairseq-eval-lm has not scored all tokens.
        """
        stem = data_of(measurement).removesuffix(".idx")
        dataset = indexed_dataset.make_dataset(stem, "mmap")
        lines = np.array(dataset.sizes)  # a copy, because the data set unmaps its memory when it is deleted
        if lines.sum() != len(scores):
            raise UsageError(
                f"{measurement.run.name}: fairseq-eval-lm has scored {len(scores):,} of {lines.sum():,} "
                f"tokens of {stem}; see {measurement.path('eval-lm.log')}"
            )
        try:
            with open(documents_of(measurement), encoding="utf-8") as file:
                counts = [int(line) for line in file]
        except FileNotFoundError:  # a corpus that was not prepared by this project is one document
            counts = [len(lines)]
        if sum(counts) != len(lines):
            raise UsageError(
                f"{documents_of(measurement)} has documents of {sum(counts):,} lines, and {stem} has "
                f"{len(lines):,} lines; prepare the corpus again"
            )
        ends = np.cumsum(lines)[np.cumsum(counts) - 1]
        return [[-float(each.sum()), len(each)] for each in np.split(scores, ends[:-1]) if len(each)]

    def compare(
        self, ours: Measurement, baseline: Measurement, samples: int
    ) -> tuple[float, float | None] | None:
        """Return the difference in perplexity and the p of the paired bootstrap over documents.

        The result is None if the two were measured on different data, and p is None if the text has only one
        document.
        """
        results = [each.finished_result() for each in (baseline, ours)]
        if results[0]["data"] != results[1]["data"]:
            return None
        statistics = [by_document(each) for each in (baseline, ours)]
        difference = results[1][self.key] - results[0][self.key]
        return difference, bootstrap_p(statistics[0], statistics[1], perplexity, samples)

    def interval(self, by_seed: Sequence[Sequence[Pair]]) -> Interval | None:
        """Return the 95 % interval of the difference in perplexity, over seeds and documents."""
        return over_pairs(
            [[(of_documents(pair.baseline), of_documents(pair.ours)) for pair in pairs] for pairs in by_seed]
        )

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
    own = ["--user-dir", PLUGIN, "--path", measurement.run.checkpoint, "--gen-subset", measurement.subset]
    words = [word for name, values in options.items() for word in (name, *values)]
    return [
        "fairseq-eval-lm",
        measurement.run.corpus.binarized,
        *own,
        *words,
        *options_of_batches(measurement.run),
        *measurement.model_overrides,
    ]


def decoding_of(measurement: Measurement) -> list[str]:
    """Return everything but the checkpoint and the data that the perplexity depends on."""
    return [*measurement.decoding, *map(str, measurement.overrides)]


def post_process_of(measurement: Measurement) -> str:
    """Return the value of --post-process, or "" if tokens are words."""
    return by_option(list(measurement.decoding)).get("--post-process", [""])[0]


def data_of(measurement: Measurement) -> str:
    """Return the path of the index of the data."""
    return os.path.join(measurement.run.corpus.binarized, f"{measurement.subset}.idx")


def documents_of(measurement: Measurement) -> str:
    """Return the path of the lengths of the documents."""
    return os.path.join(measurement.run.corpus.folder, "text", f"{measurement.subset}.documents")


def by_document(measurement: Measurement) -> Floats:
    """Return the negative log-likelihood and the number of tokens of each document [documents, 2]."""
    return np.asarray(read_json(measurement.path("documents.json")), dtype=np.float64)


def perplexity(sums: Floats) -> Floats:
    """Return perplexities from sums of negative log-likelihoods and tokens [..., 2]."""
    return np.exp(sums[..., 0] / sums[..., 1])


def of_documents(measurement: Measurement) -> tuple[float, Floats]:
    """Return the perplexity, and the jackknife's pseudo-value of each document."""
    return jackknife(by_document(measurement), lambda sums: float(perplexity(sums)))


def _remove_blocks(log: str) -> None:
    """Remove the lines with the probabilities of words from a log, which are many megabytes."""
    with open(log, encoding="utf-8", errors="replace", newline="\n") as file:
        kept = [line for line in file if not BLOCK.search(line.rstrip("\n"))]
    write_file(log, "".join(kept))
