"""Members of .tgz and .zip archives, as streams. Nothing is unpacked under a name that an archive chose.

An archive is refused as a whole when any member has an absolute name, a name with `..`, or is a link or a device.
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

from preparation import CorpusError

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)
Opener = Callable[[str], BinaryIO]


class DamagedFile(CorpusError):
    """A file that ends too early or does not unpack."""

    def __init__(self, path: Path, why: Exception):
        super().__init__(f"{path} is damaged or cut short ({why}); get it again")
        self.path = path


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Turns what a reader says of a damaged or truncated file into a sentence that names it."""
    try:
        yield
    except DAMAGE as error:
        raise DamagedFile(path, error) from None


@contextlib.contextmanager
def open_archive(path: Path, name: str) -> Iterator[Opener]:
    """A function from a member's name to its bytes; `name` is the archive's official one, for messages."""
    with damage_named(path), contextlib.ExitStack() as stack:
        if name.endswith(".zip"):
            archive = stack.enter_context(zipfile.ZipFile(path))
            members = {clean_name(name, info.filename): info for info in archive.infolist()}
            regular = {key: info for key, info in members.items() if not info.is_dir() and is_file_in_zip(name, info)}
            yield opener(name, regular, archive.open)
        else:
            archive = stack.enter_context(tarfile.open(path, "r:*"))
            members = {clean_name(name, info.name): info for info in archive}
            regular = {key: info for key, info in members.items() if not info.isdir() and is_file_in_tar(name, info)}
            yield opener(name, regular, archive.extractfile)


def opener(archive: str, members: dict, open_member: Callable) -> Opener:
    def open_by_name(name: str) -> BinaryIO:
        if name not in members:
            raise CorpusError(f"{archive} has no member {name}: it is another archive than the official one")
        return open_member(members[name])

    return open_by_name


def clean_name(archive: str, member: str) -> str:
    parts = member.replace("\\", "/").split("/")
    if member.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise CorpusError(f"{archive} has the member {member!r}, whose name leads out of the folder; it is refused")
    return "/".join(part for part in parts if part not in ("", "."))


def is_file_in_tar(archive: str, member: tarfile.TarInfo) -> bool:
    if not member.isfile():
        raise CorpusError(f"{archive} has the member {member.name!r}, which is a link or a device; it is refused")
    return True


def is_file_in_zip(archive: str, member: zipfile.ZipInfo) -> bool:
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind and not stat.S_ISREG(kind):
        raise CorpusError(f"{archive} has the member {member.filename!r}, which is a link or a device; it is refused")
    return True
