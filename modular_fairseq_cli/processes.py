"""Commands that run other commands: each in a process of its own, logged, shown, and never left behind."""

import os
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from modular_fairseq_cli import lifetime

# The threads of OpenMP, torch's among them, spin while they wait for each other. Beside another busy process
# that makes training several times slower; a thread that sleeps instead costs next to nothing.
WAIT_PASSIVELY = {"OMP_WAIT_POLICY": "PASSIVE"}


def wait_passively() -> None:
    """Let the threads of OpenMP sleep while they wait, unless the user has set OMP_WAIT_POLICY.

    It must be called before torch is imported.
    """
    os.environ |= WAIT_PASSIVELY | os.environ


def processors() -> int:
    """Return how many processors this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(text: str) -> None:
    """Write a line with the time to standard error; in one piece, as several threads may say something."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def call(command: list[str], log: str, show: Callable[[str], Any]) -> tuple[int, list[str]]:
    """Run a command that never outlives this process, and add all it says to a file as it comes.

    Args:
        log: path of the file.
        show: called with each line that the command says, without its end.

    Returns:
        Its exit status, and the last lines that it said.
    """
    lines: deque[str] = deque(maxlen=10_000)  # fairseq says much after "gradients are Nan/Inf"
    pipe = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "errors": "replace",
        "env": WAIT_PASSIVELY | os.environ,
    }
    with open(log, "a", encoding="utf-8") as file:
        process = subprocess.Popen(command, **pipe, preexec_fn=lifetime.before_exec())
        try:
            for line in process.stdout:
                file.write(line)
                file.flush()
                lines.append(line.rstrip("\n"))
                show(lines[-1])
            return process.wait(), list(lines)
        except BaseException:
            process.terminate()
            process.wait()
            raise
