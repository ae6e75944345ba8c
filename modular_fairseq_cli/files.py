"""Files and folders that several processes use: locks, files that are whole or not there, digests."""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

Name = str | os.PathLike


@contextmanager
def lock(
    path: Name, refusal: str = "", *, seconds: float = 0, waiting: str = "", inheritable: bool = False
) -> Iterator[None]:
    """Hold the lock of a file or folder, so that no other process works on what it stands for.

    A process that was forked inside the block holds the lock, too, if this one is killed. A file system
    without locks locks nothing.

    Args:
        path: a folder that exists, or a file, which is made if it is not there.
        refusal: the sentence of the error.
        seconds: how long to wait for another process that holds the lock; `math.inf` waits until it ends.
        waiting: what to say before the first wait; nothing if it is empty.
        inheritable: a program that is started inside the block with `close_fds=False` holds the lock, too.

    Raises:
        UsageError: another process still holds the lock after `seconds`.
    """
    mode = os.O_RDONLY if os.path.isdir(path) else os.O_WRONLY | os.O_CREAT
    descriptor = os.open(path, mode, 0o666)
    try:
        os.set_inheritable(descriptor, inheritable)
        end = time.monotonic() + seconds
        while not _try_to_lock(descriptor):
            if time.monotonic() >= end:
                raise UsageError(refusal)
            if waiting:
                say(waiting)
                waiting = ""
            time.sleep(0.1)
        yield
    finally:
        # Closing is not enough: what another thread has just forked still has the file open.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def only_one(folder: Name) -> AbstractContextManager[None]:
    """Keep other processes from working in a folder, by the lock of the file .lock in it.

    Raises:
        UsageError: another process works in it.
    """
    refusal = f"{folder}: another process works in it; wait for it, or give another --out"
    return lock(os.path.join(folder, ".lock"), refusal)


def write_file(path: Name, content: str | bytes) -> None:
    """Write all of a file or nothing: under a name of this process first. Text is written in UTF-8."""
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


def read_json(path: Name, remedy: str = "remove it to have that step done again") -> Any | None:
    """Return the content of a JSON file, or None if there is no such file.

    Raises:
        UsageError: it cannot be read or is no JSON; the sentence ends with `remedy`.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); {remedy}") from None


def digest(path: Name, algorithm: str = "sha256") -> str:
    """Return the digest of a file's content in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def _try_to_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # this file system has no locks
    return True
