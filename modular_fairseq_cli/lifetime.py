"""A process ends with the one that started it: a killed command would leave one that waits for ever, or that
writes into a folder.

As a program, `lifetime.py PARENT MODULE ARGUMENTS` is `python -m MODULE ARGUMENTS` that ends with the process
PARENT; so do the processes that it forks.
"""

import ctypes
import functools
import os
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable

LIBC = ctypes.CDLL(None)  # loaded here, as little is safe between a fork and what follows
forking = 0  # the process that forks at this moment


def end_with(parent: int) -> None:
    """End this process when its parent ends; a process calls it first. The system does it on Linux; elsewhere
    a thread looks for the parent twice a second.
    """
    if sys.platform != "linux" or LIBC.prctl(1, signal.SIGKILL):  # PR_SET_PDEATHSIG
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before it was heard of
        os._exit(1)


def watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def before_exec() -> Callable[[], None] | None:
    """Return a `preexec_fn` for `subprocess`, for any program. Only on Linux it ends the program early."""
    return functools.partial(end_with, os.getpid()) if sys.platform == "linux" else None


def command(module: str, *arguments: str) -> list[str]:
    """Return the command that runs a Python module and ends with this process."""
    return [sys.executable, "-P", __file__, str(os.getpid()), module, *arguments]


def note_forking() -> None:
    global forking
    forking = os.getpid()


def main() -> None:
    end_with(int(sys.argv[1]))
    os.register_at_fork(before=note_forking, after_in_child=lambda: end_with(forking))
    module, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
