"""Commands meet a full disk, a disk that becomes read-only, a lack of memory, a pipe that nobody reads, and a
terminal that is closed. They are started again, and their results are compared with uninterrupted ones.
"""

import fcntl
import os
import pty
import random
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.soak.cases import Attempt, Case, Ended, attempts, call, judged, wait_for
from tests.soak.materials import Materials
from tests.soak.scenarios import scenarios, start, uninterrupted, words_of, wrong_after

# Makes an accident happen, and returns what is wrong, or None if the command ended before it could happen.
Accident = Callable[[Materials, str, random.Random, Attempt], str | None]
# Runs fairseq-train, in which the memory is used up by the G step of this number.
OUT_OF_MEMORY = """
import sys
import torch
import modular_fairseq
from modular_fairseq.training.g_steps import GSteps
from fairseq_cli.train import cli_main
plain, left = GSteps.take, [int(sys.argv.pop(1))]
def take(self, samples):
    left[0] -= 1
    if left[0] < 0:
        torch.empty(2**60)
    return plain(self, samples)
GSteps.take = take
cli_main()
"""


def missing() -> str:
    """Return the reason why disks cannot be spoilt here, or ""."""
    return "" if os.geteuid() == 0 else "a small disk (tmpfs) can be mounted by root only"


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield accidents of all kinds in turn."""
    rng = random.Random(seed)
    for number in range(count):
        kind, (accident, names) = [*KINDS.items()][number % len(KINDS)]
        names = names or [*scenarios(materials)]
        name = names[number // len(KINDS) % len(names)]
        yield _case(materials, f"{number} {name}: {kind}", accident, name, random.Random(rng.random()))


def _case(materials: Materials, title: str, accident: Accident, name: str, rng: random.Random) -> Case:
    def run(folder: Path) -> str:
        for attempt in attempts(folder):
            if (wrong := accident(materials, name, rng, attempt)) is not None:
                return wrong
        return "the command always ends before its accident"

    return Case(title, run)


@contextmanager
def _disk(folder: Path, kilobytes: int) -> Iterator[Path]:
    """Mount a disk of a size in a folder, and yield its path."""
    if reason := missing():
        raise PermissionError(reason)
    disk = folder / "disk"
    disk.mkdir()
    _mount(disk, f"size={kilobytes}k", "tmpfs")
    try:
        yield disk
    finally:
        subprocess.run(["umount", "--lazy", disk], check=True)


def _mount(disk: Path, options: str, *source: str) -> bool:
    """Mount a disk, or change how it is mounted, and return whether this was done."""
    words = ["mount", *(["-t", "tmpfs", *source] if source else []), "-o", options, str(disk)]
    return subprocess.run(words, capture_output=True, check=bool(source)).returncode == 0


def _full(materials: Materials, name: str, rng: random.Random, attempt: Attempt) -> str | None:
    """Let the disk become full, and make it larger afterwards.

    A disk has at least one page of 4 kB. If a command that writes less is to meet a full disk, the page is
    filled before.
    """
    uninterrupted(materials, name)
    made = materials.folder / "uninterrupted" / name
    size = sum(path.stat().st_size for path in made.rglob("*") if path.is_file()) // 1024
    room = int(rng.uniform(0.02, 0.9) * size * attempt.share)
    with _disk(attempt.folder, max(4, room)) as disk:
        if room < 4:
            (disk / "filler").write_bytes(bytes(4096))
        ended = call(words_of(materials, name, disk), attempt.folder, materials.environment)
        if wrong := judged(ended):
            return wrong
        if ended.status == 0:
            return None  # there was room enough
        _mount(disk, "remount,size=1g")
        return wrong_after(materials, name, disk)


def _read_only(materials: Materials, name: str, rng: random.Random, attempt: Attempt) -> str | None:
    """Let the disk become read-only at a random moment, and make it writable afterwards."""
    _, seconds = uninterrupted(materials, name)
    with _disk(attempt.folder, 2**20) as disk:
        process = start(
            words_of(materials, name, disk),
            materials,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        time.sleep(rng.random() * seconds * attempt.share)
        while process.poll() is None and not _mount(disk, "remount,ro"):  # refused while a file is written
            time.sleep(0.01)
        ended = wait_for(process)
        if wrong := judged(ended):
            return wrong
        if ended.status == 0:
            return None  # nothing was left to write
        _mount(disk, "remount,rw")
        return wrong_after(materials, name, disk)


def _out_of_memory(materials: Materials, name: str, rng: random.Random, attempt: Attempt) -> str:
    """Let a G step fail for want of memory."""
    folder = attempt.folder
    words = words_of(materials, name, folder)
    words = [sys.executable, "-c", OUT_OF_MEMORY, str(rng.randrange(6)), *words[words.index("-m") + 2 :]]
    ended = call(words, folder, materials.environment)
    if ended.status == 0 or "not enough memory" not in ended.err:
        return judged(ended) or "does not notice that the memory is used up"
    return judged(ended) or wrong_after(materials, name, folder)


def _unread_pipe(
    materials: Materials, name: str, rng: random.Random, attempt: Attempt, messages: bool = False
) -> str | None:
    """Write to a pipe of a page that nobody reads, and that is closed at a random moment.

    fairseq-train must go on. Another command may end without a sentence about it, as in `... | head`.

    Args:
        messages: whether standard error goes to the pipe, too.
    """
    _, seconds = uninterrupted(materials, name)
    folder = attempt.folder
    reads, writes = os.pipe()
    fcntl.fcntl(writes, fcntl.F_SETPIPE_SZ, 4096)
    streams = {"stdout": writes, "stderr": writes if messages else subprocess.PIPE, "text": True}
    process = start(words_of(materials, name, folder), materials, **streams)
    os.close(writes)
    time.sleep(rng.random() * seconds * attempt.share)
    early = process.poll() is not None
    os.close(reads)
    ended = wait_for(process)
    if early:
        return None
    if name == "train" and ended.status != 0:
        return f"the training ends with status {ended.status}"
    silent = ended.status in (1, 120) and "Traceback" not in ended.err and "error:" not in ended.err
    return ("" if silent else judged(ended)) or wrong_after(materials, name, folder)


def _unread_messages(materials: Materials, name: str, rng: random.Random, attempt: Attempt) -> str | None:
    return _unread_pipe(materials, name, rng, attempt, messages=True)


def _closed_terminal(materials: Materials, name: str, rng: random.Random, attempt: Attempt) -> str | None:
    """Start a command in a terminal, and close the terminal at a random moment."""
    _, seconds = uninterrupted(materials, name)
    folder = attempt.folder
    master, slave = pty.openpty()

    def belong_to_terminal() -> None:
        fcntl.ioctl(0, termios.TIOCSCTTY, 0)

    process = start(
        words_of(materials, name, folder),
        materials,
        stdin=slave,
        stdout=slave,
        stderr=slave,
        preexec_fn=belong_to_terminal,
    )
    os.close(slave)
    time.sleep(rng.random() * seconds * attempt.share)
    early = process.poll() is not None
    os.close(master)
    ended: Ended = wait_for(process)
    if early:
        return None
    if ended.status is None:
        return judged(ended)
    return wrong_after(materials, name, folder)


# For each kind of accident: what happens, and the scenarios to which it happens (none: all).
KINDS: dict[str, tuple[Accident, list[str]]] = {
    "the disk is full": (_full, []),
    "the disk becomes read-only": (_read_only, []),
    "the disk is full (2)": (_full, ["train", "table"]),
    "a G step has no memory": (_out_of_memory, ["train"]),
    "nobody reads the output": (_unread_pipe, []),
    "nobody reads the output and the messages": (_unread_messages, []),
    "the terminal is closed": (_closed_terminal, []),
}
