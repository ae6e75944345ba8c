"""Work on files and folders that several processes share: locks, atomic writing, digests."""

import fcntl
import glob
import hashlib
import json
import math
import os
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

Name = str | os.PathLike


@contextmanager
def lock(
    path: Name, refusal: str = "", *, seconds: float = 0, waiting: str = "", inheritable: bool = False
) -> Iterator[None]:
    """Hold the lock of a file or folder for the length of a `with` block.

    If this process is killed, a process that was forked inside the block keeps the lock. On a file system
    without locks this does nothing.

    Args:
        path: an existing folder, or a file, which is created if it does not exist.
        refusal: the message of the error.
        seconds: how long to wait while another process holds the lock. `math.inf` waits without limit.
        waiting: a sentence that is written to standard error before the wait begins; "" writes nothing.
        inheritable: whether a program that is started inside the block with `close_fds=False` keeps the
            lock, too.

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
        # Closing the file is not enough: a process that another thread has just forked has it open, too.
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


def is_locked(path: Name) -> bool:
    """Return whether another process holds the lock of a file or folder now; False if it does not exist.

    The file is not changed. While this looks, another process cannot get the lock for a moment.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return False
    try:
        return not _try_to_lock(descriptor, fcntl.LOCK_SH)
    finally:
        os.close(descriptor)


def only_one(folder: Name, option: str = "--out") -> AbstractContextManager[None]:
    """Lock a folder, through the file .lock in it, so that no other process works there.

    A process that only looks whether the folder is locked (`is_locked`) is waited for.

    Args:
        folder: the folder.
        option: the option that names it, for the message.

    Raises:
        UsageError: another process works in the folder.
    """
    refusal = f"{folder}: another process works in it; wait for it, or give another {option}"
    return lock(os.path.join(folder, ".lock"), refusal, seconds=1)


def make_folder(folder: Name, option: str = "--out") -> None:
    """Make a folder, and those that it is in; one that exists is left as it is.

    Args:
        folder: the folder.
        option: the option that names it, for the message.

    Raises:
        UsageError: it cannot be made, for example because a file has its name.
    """
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise UsageError(
            f"{option} {folder}: cannot be made ({error.strerror}); give another folder"
        ) from None


def check_file(path: Name, option: str) -> None:
    """Raise UsageError unless a file can have this path: it is no folder, and its folder exists.

    Args:
        path: the path.
        option: the option that names it, for the message.
    """
    real = os.path.realpath(path)
    if os.path.isdir(real) or not os.path.isdir(os.path.dirname(real)):
        raise UsageError(
            f"{option} {path} is a folder, or its folder does not exist; give a file in an existing folder"
        )


def check_data_folder(path: Name, option: str) -> None:
    """Raise UsageError if fairseq cannot read data from a folder of this name; `option` names it."""
    _refuse_in_name(path, option, "data", (",", os.pathsep))


def check_run_folder(path: Name, option: str) -> None:
    """Raise UsageError if fairseq cannot read checkpoints from a folder of this name; `option` names it."""
    _refuse_in_name(path, option, "checkpoints", (os.pathsep,))


def _refuse_in_name(path: Name, option: str, what: str, separators: tuple[str, ...]) -> None:
    """Raise UsageError if a path has one of fairseq's separators."""
    if any(each in str(path) for each in separators):
        raise UsageError(
            f"{option} {path}: fairseq cannot read {what} from a folder with {' or '.join(separators)} in "
            "its name; give another name"
        )


def write_file(path: Name, content: str | bytes) -> None:
    """Write a file atomically: after an error or a kill, an earlier file of that name is unchanged.

    The content is written to a temporary file beside `path`, which is then renamed. Text is encoded as UTF-8.
    A link stays a link. A device or a pipe, such as /dev/null, is written to as it is, and so are /dev/stdout
    and /dev/stderr, even if they are files.
    """
    encoded = content.encode("utf-8") if isinstance(content, str) else content
    # They share the position in the file with what this process prints.
    if stream := {"/dev/stdout": sys.stdout, "/dev/stderr": sys.stderr}.get(os.fspath(path)):
        stream.flush()
        stream.buffer.write(encoded)
        stream.flush()
        return
    if os.path.exists(path) and not os.path.isfile(path):  # realpath cannot resolve the link to a pipe
        with open(path, "wb") as file:
            file.write(encoded)
        return
    path = os.path.realpath(path)
    temporary = temporary_beside(path)
    try:
        with open(temporary, "wb") as file:
            file.write(encoded)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            os.remove(temporary)
        raise


def append_line(path: Name, line: str) -> None:
    """Append a line to a file, which may end in the middle of one because its writer was killed."""
    end_last_line(path)
    with open(path, "ab") as file:
        file.write(line.encode("utf-8") + b"\n")


def end_last_line(path: Name) -> None:
    """End the last line of a file if its writer was killed in the middle of it. A missing file is created."""
    with open(path, "ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read() != b"\n":
                file.write(b"\n")


def temporary_beside(path: Name) -> str:
    """Return the path of a temporary file beside `path`, to which it is renamed when it is complete.

    Such files of processes of this machine that were killed are removed. So a command that is killed again
    and again does not fill the disk.
    """
    stem = f"{os.fspath(path)}.{socket.gethostname()}."
    for left in glob.glob(f"{glob.escape(stem)}*.tmp"):
        number = left.removeprefix(stem).removesuffix(".tmp")
        if number.isdecimal() and not _lives(int(number)):
            with suppress(OSError):
                os.remove(left)
    return f"{stem}{os.getpid()}.tmp"


def read_json(path: Name, remedy: str = "remove it to repeat the step that wrote it") -> Any | None:
    """Return the content of a JSON file, or None if the file does not exist.

    Raises:
        UsageError: the file cannot be read or is not JSON. The message ends with `remedy`.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise UsageError(f"{path}: cannot be read ({error}); {remedy}") from None


def write_json(path: Name, content: Any, compact: bool = False) -> None:
    """Write a JSON file atomically (see `write_file`); `read_json` reads it.

    Each value has its own line. If `compact`, `content` is a dict, and each of its keys has a line without
    spaces. Bytes of file names that are not UTF-8 are escaped.
    """
    if compact:
        encoded = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode
        lines = [f"{encoded(key)}:{encoded(value)}" for key, value in content.items()]
        text = "{" + ",\n".join(lines) + "}"
    else:
        text = json.dumps(content, ensure_ascii=False, indent=1)
    write_file(path, f"{text}\n".encode("utf-8", "backslashreplace"))


def finite(value: float) -> float | None:
    """Return a value that JSON has: None instead of NaN and infinity."""
    return value if math.isfinite(value) else None


def digest(path: Name, algorithm: str = "sha256") -> str:
    """Return the digest of a file's content, in hexadecimal digits."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()


def files_below(folder: Path) -> list[Path]:
    """Return the files in a folder and in the folders below it, in the order of their paths.

    Links to folders are followed, but for those that lead to a folder that they are in.

    Raises:
        UsageError: a folder cannot be read.
    """
    return sorted(_files_below(folder, ()))


def _files_below(folder: Path, above: tuple[str, ...]) -> Iterator[Path]:
    """Yield the files of `files_below`; `above` holds the real paths of the folders that led to this one."""
    above += (os.path.realpath(folder),)
    try:
        entries = list(folder.iterdir())
    except OSError as error:
        raise UsageError(f"{folder} cannot be read ({error.strerror}); make it readable") from None
    for entry in entries:
        if entry.is_file():
            yield entry
        elif entry.is_dir() and os.path.realpath(entry) not in above:
            yield from _files_below(entry, above)


def _lives(process: int) -> bool:
    """Return whether there is a process of this number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:  # it belongs to another user
        return True
    return True


def _try_to_lock(descriptor: int, kind: int = fcntl.LOCK_EX) -> bool:
    """Return whether this process holds the lock now, without waiting."""
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass  # this file system has no locks
    return True
