"""Look for processes that a test has started, and wait for what they write."""

import re
import socket
import subprocess
import time
from pathlib import Path


def processes_of(folder, seconds=10):
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


def has_ended(process: int, seconds: float = 60) -> bool:
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


def free_port() -> int:
    """Return a port of this machine that no process listens to at this moment."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


def line_of(path: Path, seconds: float = 60) -> str:
    """Return the first line of a file, as soon as it is whole."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if path.exists() and "\n" in (text := path.read_text()):
            return text.partition("\n")[0]
        time.sleep(0.01)
    raise AssertionError(f"{path} has no line")
