"""The folder archives/ holds the official archives and their checksums.

curl downloads an archive, or the user gives it. Data sets that lie beside each other share the folder. A
download is written to NAME.part, continues if it was cut off, and gets its name once its size and checksum
are right. If no checksum is published, NAME.sha256 records the one of the first file that could be unpacked.
Every file that is used later must have the same.
"""

import contextlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.corpora.archives import DamagedFile
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, lock, write_file
from modular_fairseq_cli.processes import say


@dataclass(frozen=True)
class Source:
    """An archive that a recipe needs.

    Attributes:
        name: the official name of the file.
        url: where it is downloaded from.
        bytes: its size; None if no size is published.
        sum: its checksum, as ALGORITHM:HEX; None if no checksum is published.
    """

    name: str
    url: str
    bytes: int | None = None
    sum: str | None = None

    def __str__(self) -> str:
        size = f"{self.bytes:,} bytes" if self.bytes else "size not published"
        checked = (
            f"checked by {self.sum.split(':')[0]}"
            if self.sum
            else "no checksum published: the checksum of the first download is recorded"
        )
        return f"{self.url} ({size}, {checked})"


@contextlib.contextmanager
def open_archives(sources: list[Source], given: dict[str, Path], folder: Path) -> Iterator[dict[str, Path]]:
    """Fetch the archives if necessary, and yield the path of each by its name.

    No other run can fetch or read them inside the block. When the block ends without an error, the checksums
    that are not published are recorded. A download that the block finds damaged is removed.

    Args:
        sources: the archives.
        given: paths of the archives that the user gave, by official name.
        folder: the folder archives/.

    Raises:
        UsageError: an archive cannot be fetched, or has another size or checksum than it must have.
    """
    with contextlib.ExitStack() as stack:
        paths: dict[str, Path] = {}
        for source in sources:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_archive(source, folder))
            paths[source.name] = fetch(source, given.get(source.name), folder)
        try:
            yield paths
        except DamagedFile as error:
            if error.path in paths.values() and error.path not in given.values():
                error.path.unlink()  # the next run downloads it again
            raise
        for source in sources:
            record(source, paths[source.name], folder)


def lock_archive(source: Source, folder: Path) -> contextlib.AbstractContextManager[None]:
    """Return the lock of an archive, which only one run can hold at a time.

    It keeps two runs from fetching the same archive, and a run from using an archive that another run has not
    yet checked. A curl process that outlives its killed run still holds the lock, so nobody else writes its
    file.
    """
    waiting = f"{source.name}: waiting for another run that fetches or reads it"
    return lock(folder / f".{source.name}.lock", seconds=math.inf, waiting=waiting, inheritable=True)


def fetch(source: Source, given: Path | None, folder: Path) -> Path:
    """Return the path of a checked archive: the file that the user gave, or folder/NAME.

    folder/NAME is downloaded if it does not exist. Raises UsageError if that fails, or if the file is another
    one.
    """
    path = folder / source.name
    if given:
        verify(given, source, folder)
        return given
    if path.exists():
        verify(path, source, folder)
    else:
        part = folder / f"{source.name}.part"
        download(source, part)
        try:
            verify(part, source, folder)
        except UsageError:
            part.unlink()
            raise
        os.replace(part, path)
    return path


def download(source: Source, part: Path) -> None:
    """Download an archive to `part`, after the bytes that `part` has. Raises UsageError if that fails."""
    if part.exists() and part.stat().st_size == source.bytes:
        return
    say(
        f"{source.name}: from {source.url}"
        + (f", continued after {part.stat().st_size:,} bytes" if part.exists() else "")
    )
    result = curl(source.url, part)
    if part.exists() and (result.returncode in (33, 36) or result.stdout.endswith("416")):
        # The server cannot continue downloads, or its file is not longer than `part`: download all of it.
        part.unlink()
        result = curl(source.url, part)
    if result.returncode:
        why = (result.stderr or "").strip().splitlines()[-1:] or [f"curl ended with {result.returncode}"]
        raise UsageError(
            f"{source.url} could not be fetched ({why[0]}); the same command continues the download, or give "
            f"the file with --archive {source.name}"
        )


def curl(url: str, part: Path) -> subprocess.CompletedProcess[str]:
    """Run curl, which continues `part`. Its standard output is the HTTP status; on a terminal curl shows its
    progress, elsewhere `stderr` has its error message.
    """
    terminal = sys.stderr.isatty()
    command = [
        "curl",
        "--fail",
        "--location",
        "--retry",
        "4",
        "--retry-delay",
        "1",
        "--connect-timeout",
        "30",
    ]
    command += ["--progress-bar" if terminal else "--silent", "--show-error"]
    command += ["--continue-at", "-", "--output", str(part), "--write-out", "%{http_code}", url]
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=None if terminal else subprocess.PIPE,
            text=True,
            close_fds=False,  # curl inherits the lock, see `lock_archive`
            preexec_fn=lifetime.before_exec(),
        )
    except FileNotFoundError:
        raise UsageError(
            f"{url} cannot be fetched without curl; install curl, or give the file with --archive"
        ) from None


def verify(path: Path, source: Source, folder: Path) -> None:
    """Raise UsageError unless an archive has the published size and checksum, or the recorded checksum."""
    size = path.stat().st_size
    if source.bytes and size != source.bytes:
        raise UsageError(
            f"{path} has {size:,} bytes, and {source.name} has {source.bytes:,}: it is another file, or cut "
            "short; give the official file with --archive"
        )
    if source.sum:
        algorithm, expected = source.sum.split(":")
        if (found := digest(path, algorithm)) != expected:
            raise UsageError(
                f"{path} has the {algorithm} checksum {found}, and {source.name} has {expected}: it is "
                "another file, or damaged; give the official file with --archive"
            )
        return
    recorded = folder / f"{source.name}.sha256"
    if recorded.exists() and (found := digest(path)) != (first := recorded.read_text().split()[0]):
        raise UsageError(
            f"{path} has the sha256 checksum {found}, but the first {source.name} had {first}, as recorded "
            f"in {recorded}; give that file"
        )


def record(source: Source, archive: Path, folder: Path) -> None:
    """Record an archive that could be unpacked, for the runs that follow.

    folder/NAME becomes a link to an archive that the user gave, if there was no such file. If no checksum is
    published, folder/NAME.sha256 gets the checksum of this file, unless it holds one.
    """
    if not (folder / source.name).exists():
        link = folder / f"{source.name}.link"
        link.unlink(missing_ok=True)
        link.symlink_to(archive)
        os.replace(link, folder / source.name)
    path = folder / f"{source.name}.sha256"
    if source.sum or path.exists():
        return
    found = digest(archive)
    write_file(path, f"{found}  {source.name}\n")
    say(
        f"{source.name}: no checksum is published; the one of this file, sha256 {found}, is recorded in "
        f"{path}, and every later file must have the same"
    )
