"""No process outlives the run that started it: a killed run would leave one that waits for ever, or that
writes into a folder.

As a program, `lifetime.py PARENT MODULE ARGUMENTS` is `python -m MODULE ARGUMENTS` that ends with the process
PARENT; what it forks, too.
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

forking = 0  # the process that forks at this moment


def end_with(parent: int) -> None:
    """What a process calls first: the system ends it with its parent. Where a system does not know this, a
    thread looks twice a second.
    """
    if sys.platform != "linux" or ctypes.CDLL(None).prctl(1, signal.SIGKILL):  # PR_SET_PDEATHSIG
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # it ended before it was heard of
        os._exit(1)


def watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def before_exec() -> Callable[[], None] | None:
    """The preexec_fn of a program that is not Python's. Elsewhere than on Linux nothing ends it early."""
    return functools.partial(end_with, os.getpid()) if sys.platform == "linux" else None


def command(module: str, *arguments: str) -> list[str]:
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
