"""BLEU and its like: the run translates a part of the corpus, and sacrebleu scores detokenised text.

`NAME.out` is what fairseq-generate said, `NAME.ref.LANGUAGE` the untokenised references.
"""

import os
import shlex
import shutil
from collections.abc import Iterable
from contextlib import suppress
from typing import Any

from modular_fairseq.runs.evaluation import Column, Evaluation, Measurement, register
from modular_fairseq.runs.run import PLUGIN, Run, Say
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest
from modular_fairseq_cli.scoring import Output, paired_bootstrap, read_lines, read_output, score


@register
class Bleu(Evaluation):
    columns = {
        "bleu": Column("BLEU", "paper: BLEU"),
        "tokenized_bleu": Column("tokenised BLEU", "paper: tokenised BLEU"),
        "compound_split_bleu": Column("compound-split BLEU", "paper: compound-split BLEU"),
        "chrf": Column("chrF", ""),
    }
    test = "the paired bootstrap"

    def fits(self, run: Run) -> bool:
        return bool(run.corpus.languages)

    def is_done(self, of: Measurement, found: dict[str, Any]) -> bool:
        if self.key not in found or found.get("generate") != decoding_of(of):
            return False
        there = os.path.isfile(reference_of(of))  # a table of old results needs no corpus
        return not there or digest(reference_of(of)) == digest(copy_of_reference(of))

    def commands(self, of: Measurement) -> list[str]:
        copy = copy_of_reference(of)
        score_command = ["modular-fairseq", "score", "--reference", copy, of.path("out")]
        return [
            f"{shlex.join(generate_command(of))} >{shlex.quote(of.path('out'))}",
            shlex.join(["cp", reference_of(of), copy]),
            shlex.join([*score_command, "--detokenize", detokenizer_of(of)]),
        ]

    def check(self, of: Measurement) -> None:
        if not os.path.isfile(reference_of(of)):
            raise UsageError(
                f"{reference_of(of)}: is missing; it must hold the untokenised references, as the scripts of "
                "data-prep write it"
            )

    def measure(self, of: Measurement, say: Say) -> dict[str, Any]:
        reference, copy, unfinished = reference_of(of), copy_of_reference(of), of.path("out.tmp")
        with suppress(FileNotFoundError):
            os.remove(unfinished)
        of.run.execute(generate_command(of), os.path.basename(unfinished), say)
        os.replace(unfinished, of.path("out"))
        shutil.copyfile(reference, f"{copy}.tmp")
        os.replace(f"{copy}.tmp", copy)
        scores = score(output_of(of), [read_lines(copy)], language=of.run.corpus.languages[1])
        return {"generate": decoding_of(of), **scores}

    def compare(
        self, ours: Measurement, baseline: Measurement, samples: int
    ) -> tuple[float, float | None] | None:
        """Return the difference in BLEU and the p of sacrebleu's paired bootstrap.

        Raises:
            UsageError: the two are of one corpus, and yet of other references.
        """
        if reference_of(ours) != reference_of(baseline):
            return None
        copies = copy_of_reference(ours), copy_of_reference(baseline)
        references, others = map(read_lines, copies)
        if references != others:
            raise UsageError(
                f"{copies[0]} and {copies[1]}: differ, so the rows cannot be compared; translate both again "
                "with --run"
            )
        hypotheses = [output_of(each).hypotheses for each in (baseline, ours)]
        language = ours.run.corpus.languages[1]
        (test,) = paired_bootstrap([references], hypotheses[0], hypotheses[1:], samples, language=language)
        return test["bleu"]["difference"], test["bleu"]["p_value"]

    def notes(self, results: Iterable[dict[str, Any]]) -> list[str]:
        results = list(results)
        notes = [f"BLEU: {each}" for each in sorted({result["bleu_signature"] for result in results})]
        if any("tokenized_bleu" in result for result in results):
            notes.append("Tokenised and compound-split BLEU are for comparison with the paper only.")
        return notes


def generate_command(of: Measurement) -> list[str]:
    own = ["--user-dir", PLUGIN, "--path", of.run.checkpoint, "--gen-subset", of.subset]
    return ["fairseq-generate", of.run.corpus.binarized, *own, *of.decoding, *of.model_overrides]


def decoding_of(of: Measurement) -> list[str]:
    """Return what a translation depends on beside the checkpoint."""
    return [*of.decoding, *map(str, of.overrides)]


def detokenizer_of(of: Measurement) -> str:
    return "none" if "sentencepiece" in of.decoding else "moses"


def reference_of(of: Measurement) -> str:
    """Return the path of the untokenised references in the corpus."""
    return os.path.join(of.run.corpus.folder, "raw", f"{of.subset}.{of.run.corpus.languages[1]}")


def copy_of_reference(of: Measurement) -> str:
    """Return the path of the references that the translation was scored with."""
    return of.path(f"ref.{of.run.corpus.languages[1]}")


def output_of(of: Measurement) -> Output:
    """Return the translation, detokenised."""
    return read_output(of.path("out"), of.run.corpus.languages[1], detokenizer_of(of))
