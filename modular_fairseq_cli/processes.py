"""Commands that run other commands: each in a process of its own, logged, shown, and never left behind."""

import ctypes
import os
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

LIBC = ctypes.CDLL(None)


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(text: str) -> None:
    """A line on standard error, with the time; in one piece, as several threads may have something to say."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def call(command: list[str], log: str, show: Callable[[str], Any]) -> tuple[int, list[str]]:
    """Runs a command, adds all it says to a file as it comes, and gives its exit status and last lines. It
    never outlives this process.
    """
    lines: deque[str] = deque(maxlen=10_000)  # fairseq says much after "gradients are Nan/Inf"
    pipe = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.STDOUT,
        "text": True,
        "errors": "replace",
    }
    with open(log, "a", encoding="utf-8") as file:
        process = subprocess.Popen(
            command, **pipe, preexec_fn=_die_with_parent if sys.platform == "linux" else None
        )
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


def _die_with_parent() -> None:
    """Else a killed command would leave a training behind, and the next one would train in the same
    folder.
    """
    LIBC.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
