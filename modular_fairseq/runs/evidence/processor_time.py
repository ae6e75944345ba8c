"""Measure the time of processors that a run takes, also if it is killed and continued."""

import json
import os
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from modular_fairseq_cli.files import read_json, write_file

INTERVAL = 20.0  # s from one time that is saved to the next
UTIME, CSTIME = 11, 15  # in /proc/PID/stat the times from utime to cstime, counted from the end of the name


@contextmanager
def measured(path: str) -> Iterator[None]:
    """Add the processor time in s of a `with` block to the number in the JSON file `path`.

    The time of the processes that this process starts counts too. The file is written every 20 s, so a kill
    loses no more. On systems other than Linux it is complete only after the block.
    """
    total = before = read_json(path) or 0.0
    start = used()
    ended = threading.Event()

    def save() -> None:
        nonlocal total
        total = max(total, before + used() - start)  # the time of an orphan is lost when it ends
        write_file(path, json.dumps(total) + "\n")

    def save_regularly() -> None:
        while not ended.wait(INTERVAL):
            save()

    saving = threading.Thread(target=save_regularly, daemon=True)
    saving.start()
    try:
        yield
    finally:
        ended.set()
        saving.join()
        save()


def used() -> float:
    """Return the time of processors in s that this process and the processes that it started have used."""
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in usage) + _of_children(os.getpid())


def _of_children(parent: int) -> float:
    """Return the time in s of the processes that `parent` has started and that still run; 0 without /proc."""
    seconds = 0.0
    for path in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):  # a process may end meanwhile
            for child in path.read_text().split():
                with suppress(OSError):
                    fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
                    ticks = sum(map(int, fields[UTIME:CSTIME]))
                    seconds += ticks / os.sysconf("SC_CLK_TCK") + _of_children(int(child))
    return seconds
