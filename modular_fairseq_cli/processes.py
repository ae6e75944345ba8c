"""Run commands in processes of their own, which are logged and which end with this process."""

import os
import select
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TextIO

from modular_fairseq_cli import lifetime

# OpenMP's threads, which torch uses, spin while they wait for each other. Beside another busy process, that
# makes training several times slower. Threads that sleep instead cost almost nothing.
WAIT_PASSIVELY = {"OMP_WAIT_POLICY": "PASSIVE"}


def wait_passively() -> None:
    """Make OpenMP's threads sleep while they wait, unless the user has set OMP_WAIT_POLICY.

    This has an effect only before torch is imported.
    """
    os.environ |= WAIT_PASSIVELY | os.environ


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def share_processors(processes: int) -> None:
    """Give each of the commands that run at a time its share of processors, unless OMP_NUM_THREADS is set.

    Without this, each would use all processors.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors() // processes)))


def say(text: str) -> None:
    """Write the time and `text` to standard error, as one line."""
    # One call writes the whole line, so that lines of several threads do not mix.
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def discard_unread() -> None:
    """Throw away what standard output and standard error still hold for pipes that nobody reads any more."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in filter(nobody_reads, (sys.stdout, sys.stderr)):
        os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def nobody_reads(stream: TextIO) -> bool:
    """Return whether a stream is a pipe that its reader has closed, as in `... | head`."""
    poll = select.poll()
    try:
        poll.register(stream, 0)
    except (OSError, ValueError):  # the stream is closed, or is no file of the system
        return False
    return any(event & select.POLLERR for _, event in poll.poll(0))


def call(command: list[str], log: str, show: Callable[[str], Any]) -> tuple[int, list[str]]:
    """Run a command, and append its output to a log file as it comes.

    The command ends when this process ends, on Linux even if this process is killed.

    Args:
        command: the program and its arguments.
        log: path of the log file.
        show: is called with each line of the output, without the line's end.

    Returns:
        The exit status of the command, and the last 10,000 lines of its output.
    """
    lines: deque[str] = deque(maxlen=10_000)  # fairseq prints many lines after "gradients are Nan/Inf"
    with open(log, "a", encoding="utf-8") as file:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=WAIT_PASSIVELY | os.environ,
            preexec_fn=lifetime.before_exec(),
        )
        assert process.stdout is not None  # it is a pipe
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
