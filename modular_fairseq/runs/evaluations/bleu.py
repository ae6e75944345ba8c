"""BLEU and chrF: fairseq-generate translates a part of the corpus, and sacrebleu scores detokenised text.

NAME.out in the run's folder is the output of fairseq-generate, and NAME.ref.LANGUAGE is a copy of the
untokenised references.
"""

import os
import shlex
import shutil
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

from sacrebleu.metrics.base import Metric

from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, Pair, register
from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest
from modular_fairseq_cli.scoring import Output, paired_bootstrap, read_lines, read_output, score
from modular_fairseq_cli.scoring.intervals import Interval, of_scores
from modular_fairseq_cli.scoring.metrics import make_metrics


@register
class Bleu(Evaluation):
    """The evaluation that measures BLEU, tokenised and compound-split BLEU, and chrF of a translation."""

    columns = {
        "bleu": Column("BLEU", "paper: BLEU"),
        "tokenized_bleu": Column("tokenised BLEU", "paper: tokenised BLEU"),
        "compound_split_bleu": Column("compound-split BLEU", "paper: compound-split BLEU"),
        "chrf": Column("chrF", ""),
    }
    test = "the paired bootstrap"
    units = "sentences"

    def fits(self, run: Run) -> bool:
        return bool(run.corpus.languages)

    def is_done(self, measurement: Measurement, found: dict[str, Any]) -> bool:
        if self.key not in found or found.get("generate") != measurement.settings:
            return False
        if not all(map(os.path.isfile, (measurement.path("out"), copy_of_reference(measurement)))):
            return False  # the significance tests need them
        # Version 0.1 noted no digests of the data.
        reference = reference_of(measurement)
        is_known = "data" in found or not os.path.isfile(reference)
        return is_known or digest(reference) == digest(copy_of_reference(measurement))

    def commands(self, measurement: Measurement) -> list[str]:
        copy = copy_of_reference(measurement)
        score_command = ["modular-fairseq", "score", "--reference", copy, measurement.path("out")]
        return [
            f"{shlex.join(generate_command(measurement))} >{shlex.quote(measurement.path('out'))}",
            shlex.join(["cp", reference_of(measurement), copy]),
            shlex.join([*score_command, "--detokenize", detokenizer_of(measurement)]),
        ]

    def check(self, measurement: Measurement) -> None:
        if not os.path.isfile(reference_of(measurement)):
            raise UsageError(
                f"{reference_of(measurement)} is missing; it must hold the untokenised references, as the "
                "scripts of data-prep write them"
            )

    def measure(self, measurement: Measurement, say: Say) -> dict[str, Any]:
        reference, copy = reference_of(measurement), copy_of_reference(measurement)
        unfinished = measurement.path("out.tmp")
        with suppress(FileNotFoundError):
            os.remove(unfinished)
        measurement.run.execute(generate_command(measurement), os.path.basename(unfinished), say)
        os.replace(unfinished, measurement.path("out"))
        shutil.copyfile(reference, f"{copy}.tmp")
        os.replace(f"{copy}.tmp", copy)
        language = measurement.run.corpus.languages[1]
        scores = score(output_of(measurement), [read_lines(copy)], language=language)
        return {"generate": measurement.settings, **scores}

    def compare(
        self, ours: Measurement, baseline: Measurement, samples: int
    ) -> tuple[float, float | None] | None:
        """Return the difference in BLEU and the p of sacrebleu's paired bootstrap.

        The result is None if the two are of different corpora or parts of a corpus.

        Raises:
            UsageError: the two are of the same part of a corpus, but were scored with different references.
        """
        if reference_of(ours) != reference_of(baseline):
            return None
        copies = copy_of_reference(ours), copy_of_reference(baseline)
        references, others = map(read_lines, copies)
        if references != others:
            raise UsageError(
                f"{copies[0]} and {copies[1]} differ, so the rows cannot be compared; translate both again "
                "with --run"
            )
        hypotheses = [output_of(each).hypotheses for each in (baseline, ours)]
        language = ours.run.corpus.languages[1]
        (test,) = paired_bootstrap([references], hypotheses[0], hypotheses[1:], samples, language=language)
        return test["bleu"]["difference"], test["bleu"]["p_value"]

    def interval(self, by_seed: Sequence[Sequence[Pair]]) -> Interval | None:
        """Return the 95 % interval of the difference in BLEU, over seeds and sentences."""
        translations = [
            [(output_of(pair.baseline).hypotheses, output_of(pair.ours).hypotheses) for pair in pairs]
            for pairs in by_seed
        ]
        return of_scores(metric_of(by_seed[0][0].ours), translations)

    def notes(self, results: Iterable[dict[str, Any]]) -> list[str]:
        results = list(results)
        notes = [f"BLEU: {each}" for each in sorted({result["bleu_signature"] for result in results})]
        if any("tokenized_bleu" in result for result in results):
            notes.append("Tokenised and compound-split BLEU are for comparison with the paper only.")
        return notes


def generate_command(measurement: Measurement) -> list[str]:
    """Return the words of the command that translates the part of the corpus."""
    return [
        "fairseq-generate",
        measurement.run.corpus.binarized,
        *measurement.model_and_subset,
        *measurement.decoding,
        *measurement.model_overrides,
    ]


def detokenizer_of(measurement: Measurement) -> str:
    """Return the value of --detokenize: none if fairseq-generate joins the pieces of sentencepiece itself."""
    return "none" if "sentencepiece" in measurement.decoding else "moses"


def reference_of(measurement: Measurement) -> str:
    """Return the path of the untokenised references in the corpus."""
    return os.path.join(
        measurement.run.corpus.folder, "raw", f"{measurement.subset}.{measurement.run.corpus.languages[1]}"
    )


def copy_of_reference(measurement: Measurement) -> str:
    """Return the path of the copy of the references that the translation was scored with."""
    return measurement.path(f"ref.{measurement.run.corpus.languages[1]}")


def output_of(measurement: Measurement) -> Output:
    """Return the translation, with detokenised hypotheses."""
    return read_output(
        measurement.path("out"), measurement.run.corpus.languages[1], detokenizer_of(measurement)
    )


def metric_of(measurement: Measurement) -> Metric:
    """Return sacrebleu's BLEU, which knows the references of the measurement."""
    references = [read_lines(copy_of_reference(measurement))]
    return make_metrics(["bleu"], references, language=measurement.run.corpus.languages[1])["bleu"]
