"""Look for processes that a test has started, and wait for what they write."""

import re
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

PATIENCE = 600  # seconds: the longest time that a test waits for a command, on a busy machine


def wait_for(
    condition: Callable[[], object], process: subprocess.Popen | None = None, seconds: float = PATIENCE
) -> None:
    """Wait until a condition is true.

    Args:
        condition: is asked again and again.
        process: a process that makes the condition true and must not end before.
        seconds: the longest time to wait.

    Raises:
        AssertionError: the process ended before the condition was true, or the time is over.
    """
    end = time.monotonic() + seconds
    while not condition():
        if process is not None and process.poll() is not None:
            said = process.stderr.read() if process.stderr else ""
            raise AssertionError(f"{process} ended before the condition was true\n{said}")
        assert time.monotonic() < end, f"waited {seconds} seconds in vain"
        time.sleep(0.01)


def processes_of(folder, seconds=PATIENCE):
    """Return the command lines of processes that name a folder, once there are none or some seconds later.

    A process that reads data looks every 5 seconds whether its parent lives.
    """
    end = time.monotonic() + seconds
    named = re.compile(rf"{re.escape(str(folder))}(/|\s|$)")
    while True:
        command = ["ps", "-eww", "-o", "pid=,args="]
        shown = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        found = [line for line in shown.splitlines() if named.search(line)]
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)


def has_ended(process: int, seconds: float = PATIENCE) -> bool:
    """Return whether a process ends within some seconds. One for which nobody has waited has ended, too."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
        except (FileNotFoundError, ProcessLookupError):
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def line_of(path: Path) -> str:
    """Return the first line of a file, as soon as it is whole."""
    wait_for(lambda: path.exists() and "\n" in path.read_text())
    return path.read_text().partition("\n")[0]
