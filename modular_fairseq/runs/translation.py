"""Translate the test set with a single run, for the commands that go from text to a score."""

import os
import re
from contextlib import suppress

from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.evaluations.bleu import generate_command
from modular_fairseq.runs.execution import Say
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.files import write_file

# The lines of fairseq-generate's output that `modular-fairseq score` reads, and its last one.
SENTENCES = re.compile(r"^(?:[STHDP]-\d+\t|Generate ).*\n", re.MULTILINE)


def translate(run: Run, decoding: list[str], say: Say) -> str:
    """Translate the test set of a run.

    The output of fairseq-generate is written to generate.log, and its sentences to generate.out, atomically.

    Args:
        run: a run that has been trained.
        decoding: options of fairseq-generate.
        say: is called with a sentence about the command.

    Returns:
        The path of generate.out.

    Raises:
        UsageError: fairseq-generate failed.
    """
    log, out = run.path("generate.log"), run.path("generate.out")
    with suppress(FileNotFoundError):
        os.remove(log)
    run.execute(generate_command(Measurement(run, decoding=tuple(decoding))), os.path.basename(log), say)
    with open(log, encoding="utf-8", errors="replace") as file:
        write_file(out, "".join(SENTENCES.findall(file.read())))
    return out
