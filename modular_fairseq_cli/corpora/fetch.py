"""The folder archives/ holds the official archives, downloaded by curl or given by the user, and their sums.

Corpora that lie beside each other share it. A download goes to NAME.part, is continued where it was cut off,
and gets its name once its size and sum are right. Where no sum is published, that of the first file that
could be unpacked is recorded as NAME.sha256 beside it, and each file that is used later is compared with it.
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
    """An archive: its official name and address, and its size in bytes and its sum as ALGORITHM:HEX where
    they are published.
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
            else "no sum published: that of the first download is recorded"
        )
        return f"{self.url} ({size}, {checked})"


@contextlib.contextmanager
def open_archives(sources: list[Source], given: dict[str, Path], folder: Path) -> Iterator[dict[str, Path]]:
    """Yield where each archive is, by its name, and keep other runs from them. An archive that was read to
    its end is from then on known by its sum.
    """
    with contextlib.ExitStack() as stack:
        paths = {}
        for source in sources:
            folder.mkdir(parents=True, exist_ok=True)
            stack.enter_context(lock_archive(source, folder))
            paths[source.name] = fetch(source, given.get(source.name), folder)
        try:
            yield paths
        except DamagedFile as error:
            if error.path in paths.values() and error.path not in given.values():
                error.path.unlink()  # a download begins anew
            raise
        for source in sources:
            record(source, paths[source.name], folder)


def lock_archive(source: Source, folder: Path) -> contextlib.AbstractContextManager[None]:
    """Keep two runs from fetching one archive, and one from using what the other has not yet found sound.

    A curl that outlives a killed run holds the lock, and so keeps others from its file.
    """
    waiting = f"{source.name}: waiting for another run that fetches or reads it"
    return lock(folder / f".{source.name}.lock", seconds=math.inf, waiting=waiting, inheritable=True)


def fetch(source: Source, given: Path | None, folder: Path) -> Path:
    """Return where the right archive is: the file that the user gave, or folder/NAME, which may have to be
    downloaded.
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
    if part.exists() and part.stat().st_size == source.bytes:
        return
    say(
        f"{source.name}: from {source.url}"
        + (f", going on after {part.stat().st_size:,} bytes" if part.exists() else "")
    )
    result = curl(source.url, part)
    if part.exists() and (result.returncode in (33, 36) or result.stdout.endswith("416")):
        # The server does not continue downloads, or has nothing behind what is there already: the whole file
        # once more.
        part.unlink()
        result = curl(source.url, part)
    if result.returncode:
        why = (result.stderr or "").strip().splitlines()[-1:] or [f"curl ended with {result.returncode}"]
        raise UsageError(
            f"{source.url} could not be fetched ({why[0]}); call the script again to go on, or give the file "
            f"with --archive {source.name}"
        )


def curl(url: str, part: Path) -> subprocess.CompletedProcess:
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
    lasting = {"close_fds": False, "preexec_fn": lifetime.before_exec()}  # see `lock_archive`
    try:
        return subprocess.run(
            command,
            stdout=subprocess.PIPE,
            stderr=None if terminal else subprocess.PIPE,
            text=True,
            **lasting,
        )
    except FileNotFoundError:
        raise UsageError(
            f"{url} cannot be fetched without curl; install curl, or give the file with --archive"
        ) from None


def verify(path: Path, source: Source, folder: Path) -> None:
    """Compare an archive with its published size and sum, or with the sum recorded at the first time."""
    size = path.stat().st_size
    if source.bytes and size != source.bytes:
        raise UsageError(
            f"{path} has {size:,} bytes, and {source.name} has {source.bytes:,}: it is another file, or cut "
            "short"
        )
    if source.sum:
        algorithm, expected = source.sum.split(":")
        if (found := digest(path, algorithm)) != expected:
            raise UsageError(
                f"{path} has the {algorithm} sum {found}, and {source.name} has {expected}: it is another "
                "file, or damaged"
            )
        return
    recorded = folder / f"{source.name}.sha256"
    if recorded.exists() and (found := digest(path)) != (first := recorded.read_text().split()[0]):
        raise UsageError(
            f"{path} has the sha256 sum {found}, and that of the first {source.name}, in {recorded}, is "
            f"{first}"
        )


def record(source: Source, archive: Path, folder: Path) -> None:
    """Remember an archive that was found sound: link to it if the user gave it, and write its sum if none is
    published.
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
        f"{source.name}: no sum is published; that of this file, sha256 {found}, is recorded in {path} and "
        "compared from now on"
    )
