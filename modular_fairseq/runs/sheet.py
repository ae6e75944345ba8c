"""Write tables: as text and Markdown for people, and as tab-separated values for programs."""

import os
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file


class Line(NamedTuple):
    """A line of a table that people read.

    Args:
        cells: the label and the other cells.
        heads: whether the line heads a block of lines. If any line of a table does, blank lines separate the
            blocks, and the other lines are indented.
    """

    cells: Sequence[str]
    heads: bool = False


class Sheet(NamedTuple):
    """A table that can be written in several formats.

    Args:
        title: the first line of the text.
        heads: headings of the columns; the first one is above the labels.
        lines: the lines for people.
        numbers: the lines of words and numbers for programs; the first one names the columns.
        notes: sentences below the table.
    """

    title: str
    heads: Sequence[str]
    lines: Sequence[Line]
    numbers: Sequence[Sequence[Any]]
    notes: Sequence[str] = ()

    @property
    def in_blocks(self) -> bool:
        """Whether the lines form blocks."""
        return any(line.heads for line in self.lines)

    def text(self) -> str:
        """Return the table as text: the title, aligned columns and the notes."""
        indent = "  " if self.in_blocks else ""
        table = [list(self.heads)]
        table += [[("" if line.heads else indent) + line.cells[0], *line.cells[1:]] for line in self.lines]
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        head, *rest = (_aligned(cells, widths) for cells in table)
        text = [self.title, "", head]
        if not self.in_blocks:
            text.append("  ".join("-" * width for width in widths))
        for line, aligned in zip(self.lines, rest, strict=True):
            text += ["", aligned] if line.heads else [aligned]
        return "\n".join([*text, *([""] if self.notes else []), *self.notes]) + "\n"

    def markdown(self) -> str:
        """Return the table in GitHub's Markdown; labels that head a block are bold."""
        table = [[self.heads[0] or "model", *self.heads[1:]], ["---", *["---:"] * (len(self.heads) - 1)]]
        table += [[f"**{c[0]}**" if heads else c[0], *c[1:]] for c, heads in self.lines]
        lines = [f"| {' | '.join(cells)} |" for cells in table]
        notes = ["", *(f"- {note}" for note in self.notes)] if self.notes else []
        return "\n".join([f"**{self.title}**", "", *lines, *notes]) + "\n"

    def tsv(self) -> str:
        """Return the numbers, unrounded, as tab-separated values; None becomes an empty cell."""
        return "".join(
            "\t".join("" if cell is None else str(cell) for cell in line) + "\n" for line in self.numbers
        )

    def write(self, folder: str) -> str:
        """Write table.txt, table.md and table.tsv into a folder, each atomically.

        Returns:
            The content of table.txt.

        Raises:
            UsageError: the folder cannot be written.
        """
        text = self.text()
        try:
            os.makedirs(folder, exist_ok=True)
            for kind, content in (("txt", text), ("md", self.markdown()), ("tsv", self.tsv())):
                write_file(os.path.join(folder, f"table.{kind}"), content)
        except OSError as error:
            raise UsageError(
                f"--out: the table cannot be written to {folder} ({error.strerror}); correct that, or give "
                "another folder"
            ) from None
        return text


def _aligned(cells: Iterable[str], widths: Sequence[int]) -> str:
    """Return a line with the first cell aligned to the left and the others to the right."""
    label, *others = cells
    line = [label.ljust(widths[0]), *map(str.rjust, others, widths[1:])]
    return "  ".join(line)
