"""Files and folders that several processes use: locks, and writes that are whole or not there."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from modular_fairseq_cli.errors import UsageError


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
