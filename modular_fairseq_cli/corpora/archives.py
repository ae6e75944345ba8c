"""Read the members of .tgz and .zip archives as streams, without unpacking them to disk.

An archive may come from anywhere, so the names in it are never used as paths. The whole archive is refused if
any member has an absolute name or a name with `..`, or is a link or a device.
"""

import contextlib
import gzip
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import IO, TypeVar

from modular_fairseq_cli.errors import UsageError

DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError)
Opener = Callable[[str], IO[bytes]]  # from the name of a member to its content
Member = TypeVar("Member", tarfile.TarInfo, zipfile.ZipInfo)


class DamagedFile(UsageError):
    """The file `path` ends too early or cannot be decompressed."""

    def __init__(self, path: Path, why: Exception):
        reason = (str(why).splitlines() or [type(why).__name__])[0].rstrip(":")
        super().__init__(f"{path} is damaged or cut short ({reason}); download or copy it again")
        self.path = path


@contextlib.contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Replace any error by which a reader reports damage inside the block with a `DamagedFile` for `path`."""
    try:
        yield
    except DAMAGE as error:
        raise DamagedFile(path, error) from None


@contextlib.contextmanager
def open_archive(path: Path, name: str) -> Iterator[Opener]:
    """Check an archive, and yield a function that opens a member by its name.

    Args:
        path: the archive.
        name: its official name, which tells .zip from .tgz and which messages show.

    Raises:
        UsageError: the archive is damaged or has a member that is refused; or, from the yielded function, it
            has no such member.
    """
    with damage_named(path), contextlib.ExitStack() as stack:
        if name.endswith(".zip"):
            zip_file = stack.enter_context(zipfile.ZipFile(path))
            for zip_member in zip_file.infolist():
                refuse_bad_name(name, zip_member.filename)
                refuse_link_in_zip(name, zip_member)
            in_zip = {clean_name(one.filename): one for one in zip_file.infolist() if not one.is_dir()}
            yield opener(name, in_zip, zip_file.open)
        else:
            read_to_the_end(path)
            tar = stack.enter_context(tarfile.open(path, "r:*"))
            for tar_member in tar:
                refuse_bad_name(name, tar_member.name)
                refuse_link_in_tar(name, tar_member)
            in_tar = {clean_name(one.name): one for one in tar if not one.isdir()}

            def extract(member: tarfile.TarInfo) -> IO[bytes]:
                content = tar.extractfile(member)
                assert content is not None  # true of regular files, and `in_tar` holds nothing else
                return content

            yield opener(name, in_tar, extract)


def read_to_the_end(path: Path) -> None:
    """Decompress a gzip file to its end, where its checksum stands.

    tarfile stops before it, so it would not notice damage that the checksum reveals.
    """
    with path.open("rb") as file:
        if file.read(2) != b"\x1f\x8b":
            return
    with gzip.open(path) as text:
        while text.read(1 << 20):
            pass


def opener(archive: str, members: Mapping[str, Member], open_member: Callable[[Member], IO[bytes]]) -> Opener:
    """Return a function that opens one of `members` by its name, and raises UsageError for other names."""

    def open_by_name(name: str) -> IO[bytes]:
        if name not in members:
            raise UsageError(
                f"{archive} has no member {name}, so it is not the official archive; give that one"
            )
        return open_member(members[name])

    return open_by_name


def refuse_bad_name(archive: str, member: str) -> None:
    """Raise UsageError if the name of a member leads out of the folder in which it would be unpacked."""
    parts = member.replace("\\", "/").split("/")
    if member.startswith(("/", "\\")) or ".." in parts or ":" in parts[0]:
        raise UsageError(
            f"{archive} has the member {member!r}, whose name leads out of the folder; it is refused"
        )


def clean_name(member: str) -> str:
    """Return the name of a member with `/` between its parts and without `.`: "./a\\b" is "a/b"."""
    return "/".join(part for part in member.replace("\\", "/").split("/") if part not in ("", "."))


def refuse_link_in_tar(archive: str, member: tarfile.TarInfo) -> None:
    """Raise UsageError if a member is neither a file nor a folder."""
    if not member.isfile() and not member.isdir():
        raise UsageError(
            f"{archive} has the member {member.name!r}, which is a link or a device; it is refused"
        )


def refuse_link_in_zip(archive: str, member: zipfile.ZipInfo) -> None:
    """Raise UsageError unless the Unix mode of a member says that it is a file or a folder."""
    kind = stat.S_IFMT(member.external_attr >> 16)
    if kind and not stat.S_ISREG(kind) and not member.is_dir():
        raise UsageError(
            f"{archive} has the member {member.filename!r}, which is a link or a device; it is refused"
        )
