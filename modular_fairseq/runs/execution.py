"""Execute a command of fairseq or of this project in a process of its own, and keep its output."""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import progress
from modular_fairseq_cli.files import append_line
from modular_fairseq_cli.processes import call, python_module

MODULES = {
    "fairseq-preprocess": "fairseq_cli.preprocess",
    "fairseq-train": "fairseq_cli.train",
    "fairseq-validate": "fairseq_cli.validate",
    "fairseq-generate": "fairseq_cli.generate",
    "fairseq-eval-lm": "fairseq_cli.eval_lm",
    "modular-fairseq": "modular_fairseq_cli",
}
DIVERGED = re.compile(r"FloatingPointError: (gradients are Nan/Inf|.*Minimum loss scale reached)")
Say = Callable[[str], Any]  # a function that shows a line of text to the user


class Diverged(UsageError):
    """A training that has ended because its gradients were infinite or no numbers."""


def execute(
    name: str,
    log: str,
    command: Sequence[str],
    say: Say,
    show: Say | None = None,
    may_diverge: bool = False,
    launcher: Sequence[str] = (),
) -> list[str]:
    """Run a command, and append it and its output to a file.

    Args:
        name: the name of the run that needs the command, for messages.
        log: path of the file. Its folder is made if it does not exist.
        command: the words of the command; the first one is a key of `MODULES`.
        say: is called with a sentence about the command, and with its progress.
        show: is called with each line of the output; then `say` is not called with the progress.
        may_diverge: whether a training that diverges counts as ended. If not, it counts as failed.
        launcher: words before the command, such as srun.

    Returns:
        The last lines of the command's output.

    Raises:
        Diverged: a training diverged, and `may_diverge` is false.
        UsageError: the command failed.
    """
    os.makedirs(os.path.dirname(log), exist_ok=True)
    append_line(log, f"$ {shlex.join([*launcher, *command])}")
    say(f"{name}: {command[0]} (its command and its output: {log})")

    def say_progress(line: str) -> None:
        if text := progress(line):
            say(f"{name}{text}")

    program = [*launcher, *python_module(MODULES[command[0]]), *command[1:]]
    status, tail = call(program, log, show or say_progress)
    if status == 0:
        return tail
    if diverged := next((found for line in tail if (found := DIVERGED.search(line))), None):
        if may_diverge:
            return tail
        raise Diverged(
            f"{name}: the training diverged ({diverged[1]}); see {log}; lower the learning rate, or make its "
            "warm-up longer"
        )
    last = next((line.strip()[:300] for line in reversed(tail) if line.strip()), "no output")
    raise UsageError(
        f"{name}: {command[0]} failed with status {status} ({last}); see {log}; finished work is kept"
    )
