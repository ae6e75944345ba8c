"""The test set translated by a single run, for plans that show the whole way from text to a score."""

import os
import re
from contextlib import suppress

from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.evaluations.bleu import generate_command
from modular_fairseq.runs.run import Run, Say
from modular_fairseq_cli.files import write_file

SENTENCES = re.compile(r"^(?:[STHDP]-\d+\t|Generate ).*\n", re.MULTILINE)


def translate(run: Run, decoding: list[str], say: Say) -> str:
    """Write what fairseq-generate says to generate.log, and its sentences to generate.out in one piece.

    Args:
        decoding: words of fairseq-generate.

    Returns:
        The path of generate.out.

    Raises:
        UsageError: fairseq-generate failed.
    """
    log, out = run.path("generate.log"), run.path("generate.out")
    with suppress(FileNotFoundError):
        os.remove(log)
    run.execute(generate_command(Measurement(run, decoding=tuple(decoding))), os.path.basename(log), say)
    with open(log, encoding="utf-8") as file:
        write_file(out, "".join(SENTENCES.findall(file.read())))
    return out
