"""Reads members of .tgz and .zip archives as streams. Nothing is unpacked under a name that an archive chose.

An archive is refused as a whole when any member has an absolute name, a name with `..`, or is a link or a
device.
"""

import contextlib
import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from modular_fairseq_cli.errors import UsageError

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)
Opener = Callable[[str], BinaryIO]


class DamagedFile(UsageError):
    """A file that ends too early or does not unpack."""

    def __init__(self, path: Path, why: Exception):
        reason = (str(why).splitlines() or [type(why).__name__])[0].rstrip(":")
        super().__init__(f"{path} is damaged or cut short ({reason}); get it again")
        self.path = path


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turn what a reader says of a damaged or truncated file into a sentence that names the file."""
    try:
        yield
    except DAMAGE as error:
        raise DamagedFile(path, error) from None


@contextlib.contextmanager
def open_archive(path: Path, name: str) -> Iterator[Opener]:
    """Yield a function from a member's name to its bytes; `name` is the official name of the archive, for
    messages.
    """
    with damage_named(path), contextlib.ExitStack() as stack:
        if name.endswith(".zip"):
            archive = stack.enter_context(zipfile.ZipFile(path))
            for info in archive.infolist():
                refuse_bad_name(name, info.filename)
                refuse_link_in_zip(name, info)
            regular = {clean_name(info.filename): info for info in archive.infolist() if not info.is_dir()}
            yield opener(name, regular, archive.open)
        else:
            read_to_the_end(path)
            archive = stack.enter_context(tarfile.open(path, "r:*"))
            for info in archive:
                refuse_bad_name(name, info.name)
                refuse_link_in_tar(name, info)
            regular = {clean_name(info.name): info for info in archive if not info.isdir()}
            yield opener(name, regular, archive.extractfile)


def read_to_the_end(path: Path) -> None:
    """Read a compressed file to its end, where the sum of its text stands: tarfile does not, and misses
    damage.
    """
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return
    with gzip.open(path) as text:
        while text.read(1 << 20):
            pass


def opener(archive: str, members: dict, open_member: Callable) -> Opener:
    def open_by_name(name: str) -> BinaryIO:
        if name not in members:
            raise UsageError(f"{archive} has no member {name}: it is another archive than the official one")
        return open_member(members[name])

    return open_by_name


def refuse_bad_name(archive: str, member: str) -> None:
    parts = member.replace("\\", "/").split("/")
    if member.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise UsageError(
            f"{archive} has the member {member!r}, whose name leads out of the folder; it is refused"
        )


def clean_name(member: str) -> str:
    return "/".join(part for part in member.replace("\\", "/").split("/") if part not in ("", "."))


def refuse_link_in_tar(archive: str, member: tarfile.TarInfo) -> None:
    if not member.isfile() and not member.isdir():
        raise UsageError(
            f"{archive} has the member {member.name!r}, which is a link or a device; it is refused"
        )


def refuse_link_in_zip(archive: str, member: zipfile.ZipInfo) -> None:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind and not stat.S_ISREG(kind) and not member.is_dir():
        raise UsageError(
            f"{archive} has the member {member.filename!r}, which is a link or a device; it is refused"
        )
