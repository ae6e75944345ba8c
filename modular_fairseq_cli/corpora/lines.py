"""Reads text, one sentence a line, with care, and writes it so that no tool downstream can see other lines.

Lines end at LF only. What some tools take for the end of a line too (CR, vertical tab, form feed, U+001C to
U+001E, U+0085, U+2028, U+2029) becomes a space; a CR before LF and a byte order mark at the beginning are
left out.
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
    """Yield the lines of a binary file, without their ends. Raises UsageError, naming file and line, on what
    is not UTF-8 or has no text.
    """
    number = crlf = odd = 0
    blank = True
    for number, data in enumerate(file, 1):
        try:
            line = data.decode()
        except UnicodeDecodeError:
            raise UsageError(
                f"{name}, line {number}: is not UTF-8; convert the file, for example with iconv -t utf-8"
            ) from None
        line = line.removesuffix("\n")
        if number == 1:
            line = line.removeprefix("\ufeff")
        if line.endswith("\r"):
            line = line[:-1]
            crlf += 1
        if ODD_SEPARATOR.search(line):
            line = ODD_SEPARATOR.sub(" ", line)
            odd += 1
        blank = blank and not line.strip()
        yield line
    if blank:
        raise UsageError(f"{name}: is empty; it must hold one sentence a line")
    if crlf:
        say(f"{name}: {crlf:,} of {number:,} lines end in CR LF; the CR is left out")
    if odd:
        say(f"{name}: {odd:,} lines hold other line separators (CR, U+2028, ...), now spaces")


@dataclass
class Side:
    """One language of a text that was written: its name for messages, its number of lines, and the first line
    without visible text (0: none).
    """

    name: str
    lines: int = 0
    blank: int = 0


def write_lines(lines: Iterable[str], out: BinaryIO, name: str) -> Side:
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
    """Return whether a tokenizer finds anything in a line: a character that is neither a space nor a control
    or format character.
    """
    return bool(line) and (
        line[0].isalnum() or any(char.isprintable() and not char.isspace() for char in line)
    )


def check_pair(source: Side, target: Side, blank_lines: bool) -> None:
    """Refuse sides of different length, as line n of one is the translation of line n of the other, and empty
    lines unless `blank_lines`: train may have them, as the next stage leaves them out.
    """
    if source.lines != target.lines:
        raise UsageError(
            f"{source.name} has {source.lines} lines and {target.name} has {target.lines}: line n of one "
            "must translate line n of the other"
        )
    for side in (source, target):
        if side.blank and not blank_lines:
            raise UsageError(
                f"{side.name}, line {side.blank}: is empty, and a score needs both sides; remove the line on "
                "both"
            )


def read_chunks(paths: list[Path], lines: int) -> Iterator[tuple[bytes, ...]]:
    """Yield blocks of so many lines of parallel files that these modules wrote."""
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
    return b"".join(itertools.islice(file, lines))


def split_block(block: bytes) -> list[str]:
    return block.decode().removesuffix("\n").split("\n")


def join_block(lines: list[str]) -> bytes:
    return ("\n".join(lines) + "\n").encode() if lines else b""
