"""Make processes end with the process that started them.

Without this, a killed command would leave processes behind that wait for ever or write into a folder.

As a program, `lifetime.py PARENT MODULE ARGUMENTS` runs `python -m MODULE ARGUMENTS`. It ends when the
process with the id PARENT ends, and so do all processes that it forks.
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

LIBC = ctypes.CDLL(None)  # loaded at import, because few calls are safe in a child process after a fork
forking = 0  # id of this process while it forks; its children read it


def end_with(parent: int) -> None:
    """Make this process end when its parent process ends.

    Linux itself sends the signal. On other systems a thread checks twice a second whether the parent lives.

    Args:
        parent: id of the parent process. If another process is the parent by now, this one ends at once.
    """
    if sys.platform != "linux" or LIBC.prctl(1, signal.SIGKILL):  # PR_SET_PDEATHSIG
        threading.Thread(target=watch, args=(parent,), daemon=True).start()
    if os.getppid() != parent:  # the parent ended before prctl was called
        os._exit(1)


def watch(parent: int) -> None:
    """End this process as soon as `parent` is no longer its parent."""
    while os.getppid() == parent:
        time.sleep(0.5)
    os._exit(1)


def before_exec() -> Callable[[], None] | None:
    """Return a `preexec_fn` for `subprocess` that makes the program end with this process.

    It works for any program, but on Linux only: elsewhere it is None.
    """
    return functools.partial(end_with, os.getpid()) if sys.platform == "linux" else None


def command(module: str, *arguments: str) -> list[str]:
    """Return a command that runs a Python module in a process that ends with this one."""
    return [sys.executable, "-P", __file__, str(os.getpid()), module, *arguments]


def note_forking() -> None:
    """Remember the id of this process for the child that it is about to fork."""
    global forking
    forking = os.getpid()


def main() -> None:
    """Run this file as a program; the module's docstring gives its arguments."""
    end_with(int(sys.argv[1]))
    os.register_at_fork(before=note_forking, after_in_child=lambda: end_with(forking))
    module, sys.argv = sys.argv[2], sys.argv[2:]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
