"""Read the tables and names of the pages in docs/, so that tests can compare them with the code."""

import importlib
import re


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of a table."""
    return [cell.strip() for cell in line.strip("|").split(" |")]


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Return the tables of a page in their order, each with its heading and its rows."""
    found = re.findall(r"^\|.*\n\|[-|]+\|\n(?:\|.*\n?)*", text, re.MULTILINE)
    return [
        (cells_of(heading), [cells_of(row) for row in rows])
        for heading, _, *rows in (table.splitlines() for table in found)
    ]


def names_in(cell: str) -> list[str]:
    """Return the words of a text that stand between backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def resolve(name: str) -> object:
    """Return the object that a dotted name of a page means. Pages leave out a leading `modular_fairseq.`.

    Raises:
        AssertionError, AttributeError: there is no such module, or it has no such name.
    """
    parts = (name if name.startswith("modular_fairseq") else f"modular_fairseq.{name}").split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ModuleNotFoundError:
            continue
        for part in parts[end:]:
            found = getattr(found, part)
        return found
    raise AssertionError(f"{name} is no module")
