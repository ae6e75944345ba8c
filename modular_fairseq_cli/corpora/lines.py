"""Read text of one sentence a line, and write it so that every tool downstream sees the same lines.

Only LF ends a line. Other characters that some tools take for the end of a line (CR, vertical tab, form feed,
U+001C to U+001E, U+0085, U+2028, U+2029) become spaces. A CR before LF and a byte order mark at the beginning
are removed.
"""

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

ODD_SEPARATOR = re.compile("[\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029]")


def read_lines(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Yield the lines of a binary file without their ends; say how many had to be changed.

    Args:
        file: the lines, each with its LF.
        name: the name of the file in messages.

    Raises:
        UsageError: a line is not UTF-8, no line has any text, or all lines end in CR alone.
    """
    number = crlf = odd = 0
    blank, inner_cr = True, False
    for number, data in enumerate(file, 1):
        try:
            line = data.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"{name}, line {number}: is not UTF-8; convert the file, for example with iconv -f latin1 "
                "-t utf-8, with its own encoding for latin1"
            ) from None
        line = line.removesuffix("\n")
        if number == 1:
            line = line.removeprefix("\ufeff")
        if line.endswith("\r"):
            line = line[:-1]
            crlf += 1
        inner_cr = "\r" in line
        if ODD_SEPARATOR.search(line):
            line = ODD_SEPARATOR.sub(" ", line)
            odd += 1
        blank = blank and not line.strip()
        yield line
    if blank:
        raise UsageError(f"{name}: is empty; it must hold lines of text")
    if number == 1 and inner_cr:
        raise UsageError(
            f"{name}: is one line that holds CRs; if they end its lines, convert it, for example with tr "
            "'\\r' '\\n'"
        )
    if crlf:
        say(f"{name}: {crlf:,} of {number:,} lines end in CR LF; the CR is removed")
    if odd:
        say(f"{name}: {odd:,} lines hold other line separators (CR, U+2028, ...); they become spaces")


@dataclass
class Side:
    """What was written of one language of a parallel text.

    Attributes:
        name: its name in messages.
        lines: the number of its lines.
        blank: the number of the first line without visible text, from 1; 0 if there is none.
    """

    name: str
    lines: int = 0
    blank: int = 0


def write_lines(lines: Iterable[str], out: BinaryIO, name: str) -> Side:
    """Write lines in UTF-8, each with an LF, and return what was written under this name."""
    side = Side(name)
    buffer: list[str] = []
    for line in lines:
        side.lines += 1
        if not side.blank and not is_visible(line):
            side.blank = side.lines
        buffer.append(line)
        if len(buffer) == 10_000:
            out.write(("\n".join(buffer) + "\n").encode())
            buffer.clear()
    out.write("".join(line + "\n" for line in buffer).encode())
    return side


def is_visible(line: str) -> bool:
    """Return whether a line has a character that is neither a space nor a control or format character.

    A tokenizer returns no token for a line without one.
    """
    return bool(line) and (
        line[0].isalnum() or any(char.isprintable() and not char.isspace() for char in line)
    )


def check_pair(source: Side, target: Side, blank_lines: bool) -> None:
    """Raise UsageError if the sides of a parallel text differ in length, or if one has a blank line.

    Args:
        blank_lines: allow blank lines, as in training data, from which the next stage removes them.
    """
    if source.lines != target.lines:
        raise UsageError(
            f"{source.name} has {source.lines} lines and {target.name} has {target.lines}: line n of one "
            "must translate line n of the other"
        )
    for side in (source, target):
        if side.blank and not blank_lines:
            raise UsageError(
                f"{side.name}, line {side.blank}: is empty, and a score needs both sides; remove this line "
                "from both sides"
            )


def read_chunks(paths: list[Path], lines: int) -> Iterator[tuple[bytes, ...]]:
    """Yield blocks of at most `lines` lines: a tuple with the bytes of each of the parallel files.

    The files end their lines with LF, as `write_lines` does.
    """
    files = [path.open("rb") for path in paths]
    try:
        while True:
            blocks = tuple(read_block(file, lines) for file in files)
            if not any(blocks):
                return
            yield blocks
    finally:
        for file in files:
            file.close()


def read_block(file: BinaryIO, lines: int) -> bytes:
    """Return the next lines of a file, at most `lines` of them."""
    return b"".join(itertools.islice(file, lines))


def split_block(block: bytes) -> list[str]:
    """Return the lines of a block without their ends."""
    return block.decode().removesuffix("\n").split("\n")


def join_block(lines: list[str]) -> bytes:
    """Return the block that `split_block` splits into these lines."""
    return ("\n".join(lines) + "\n").encode() if lines else b""
