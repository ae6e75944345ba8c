"""Commands that run other commands: each in a process of its own, logged, shown, and never left behind."""

import ctypes
import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from modular_fairseq.errors import UsageError

LOGGED = re.compile(r"\| (\w+) \| (\{.*\})$")  # a line of fairseq's --log-format json
LIBC = ctypes.CDLL(None)


@contextmanager
def only_one(folder: str) -> Iterator[None]:
    """Keeps other processes from training in the folder."""
    with open(os.path.join(folder, ".lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(
                f"{folder}: another process works in it; wait for it, or give another --out"
            ) from None
        except OSError:
            pass  # this file system has no locks
        try:
            yield
        finally:
            with suppress(OSError):
                fcntl.flock(
                    file, fcntl.LOCK_UN
                )  # closing is not enough: what another thread has just forked still has the file, too


def processors() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def say(text: str) -> None:
    """A line on standard error, with the time; in one piece, as several threads may have something to say."""
    sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")
    sys.stderr.flush()


def progress(line: str) -> str | None:
    """What a user wants to see of a line of the log of fairseq-train."""
    logged = LOGGED.search(line)
    stats = json.loads(logged[2]) if logged else {}
    if logged and logged[1] == "train_inner":
        return (
            f"  epoch {stats['epoch']}, update {stats['num_updates']}: training perplexity {stats.get('ppl')}"
        )
    if logged and logged[1] == "valid" and "epoch" in stats:
        return f"  epoch {stats['epoch']}, update {stats['valid_num_updates']}: validation perplexity {stats.get('valid_ppl')}"
    return None


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


def write_file(path: str | os.PathLike, content: str | bytes) -> None:
    """All of it or nothing: under a name of this process first."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise
