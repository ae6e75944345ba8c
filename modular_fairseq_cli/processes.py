"""Run commands in processes of their own, which are logged and which end with this process."""

import os
import platform
import re
import select
import shutil
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, TextIO

from modular_fairseq_cli import lifetime

# OpenMP's threads, which torch uses, spin while they wait for each other. Beside another busy process, that
# makes training several times slower. Threads that sleep instead cost almost nothing.
WAIT_PASSIVELY = {"OMP_WAIT_POLICY": "PASSIVE"}
LINE_END = re.compile(rb"\r?\n|\r(?!\n|\Z)")


def wait_passively() -> None:
    """Make OpenMP's threads sleep while they wait, unless the user has set OMP_WAIT_POLICY.

    This has an effect only before torch is imported.
    """
    os.environ |= WAIT_PASSIVELY | os.environ


def processors() -> int:
    """Return the number of processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor_name() -> str:
    """Return the name of the processor with its numbers, such as "AMD EPYC (family 25, model 17)".

    Processors of one name can compute otherwise, and the numbers tell some of them apart. Where the system
    does not tell the name, the kind of the processor is returned, such as "aarch64".
    """
    found: dict[str, str] = {}
    if os.path.exists("/proc/cpuinfo"):
        with open("/proc/cpuinfo") as file:
            for name, value in re.findall(r"^([\w ]+?)\s*: (.+)$", file.read(), re.MULTILINE):
                found.setdefault(name, value)
    if "model name" not in found:
        return platform.machine()
    keys = {"cpu family": "family", "model": "model"}
    numbers = [f"{short} {found[key]}" for key, short in keys.items() if key in found]
    return found["model name"] + (f" ({', '.join(numbers)})" if numbers else "")


def own_program() -> str:
    """Return how a shell calls `modular-fairseq` of this environment: by its path, unless it is on PATH."""
    path, found = (
        os.path.join(os.path.dirname(sys.executable), "modular-fairseq"),
        shutil.which("modular-fairseq"),
    )
    if not os.path.exists(path) or (found and os.path.samefile(found, path)):
        return "modular-fairseq"
    return path


def share_processors(processes: int) -> None:
    """Give each of the commands that run at a time its share of processors, unless OMP_NUM_THREADS is set.

    Without this, each would use all processors.
    """
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors() // processes)))


def python_module(name: str) -> list[str]:
    """Return the words that run a Python module in another process.

    It imports nothing from the present folder, where a clone of fairseq or a statistics.py may be.
    """
    return [sys.executable, "-P", "-m", name]


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
    """Run a command, which appends its output to a log file.

    The command writes into the file itself. What it has written is there even if this process is killed. The
    command ends when this process ends, on Linux even if this process is killed.

    Args:
        command: the program and its arguments.
        log: path of the log file.
        show: is called with each line of the output, without the line's end, a moment after it is written.

    Returns:
        The exit status of the command, and the last 10,000 lines of its output.

    Raises:
        OSError: the command failed, and nothing can be written into the log, for example because the disk is
            full.
    """
    lines: deque[str] = deque(maxlen=10_000)  # fairseq prints many lines after "gradients are Nan/Inf"
    with open(log, "a", encoding="utf-8") as file, open(log, "rb") as output:
        output.seek(0, os.SEEK_END)
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            env=WAIT_PASSIVELY | os.environ,
            preexec_fn=lifetime.before_exec(),
        )
        try:
            for line in _lines(output, process):
                lines.append(line)
                show(line)
        except BaseException:
            process.terminate()
            process.wait()
            raise
        if process.returncode:
            file.write(f"(ended with status {process.returncode})\n")
        return process.returncode, list(lines)


def _lines(file: BinaryIO, process: subprocess.Popen) -> Iterator[str]:
    """Yield the lines that a process appends to a file, without their ends, until the process has ended."""
    ended, rest = False, b""
    while not ended:
        try:
            process.wait(0.1)
            ended = True
        except subprocess.TimeoutExpired:
            pass
        *whole, rest = LINE_END.split(rest + file.read())
        if ended and rest:
            whole.append(rest)
        for line in whole:
            yield line.decode("utf-8", "replace")
