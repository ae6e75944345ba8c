"""The folder that `modular-fairseq analyze --out` writes: analysis.json, a .tsv file for each table, and the
sample sentences.

analysis.json is written last and names the other files: where it is, all of it is there.
"""

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file

FORMAT = 1  # of all JSON files in it
SUFFIXES = (".tsv", ".json", ".npz")
LEFT_OVER = re.compile(r"\.(tsv|json|npz)\.\d+\.tmp$")  # by `write_file`
INDEX, SAMPLES, ARRAYS = "analysis.json", "samples.json", "samples.npz"


def prepare(folder: Path) -> None:
    """Make the folder, before long work is done for it.

    Raises:
        UsageError: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".writable.{os.getpid()}"
        write_file(probe, "")
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"--out {folder} cannot be written ({error.strerror}); give another folder"
        ) from None


def write(
    folder: Path,
    about: dict[str, Any],
    analyses: dict[str, Any],
    tables: dict[str, list[dict]],
    samples: Any | None,
) -> None:
    """Write results in the place of those that were there.

    Args:
        about: of the checkpoint and the data.
        analyses: data by name, for JSON.
        tables: rows by name; a row is a dictionary from columns to values.
        samples: `Samples`, or None.

    Raises:
        UsageError: the folder cannot be written.
    """
    files = {f"{name}.tsv": tsv(rows).encode() for name, rows in tables.items()}
    if samples is not None:
        content = {"format": FORMAT, **samples.data()}
        files |= {SAMPLES: json.dumps(content, ensure_ascii=False, indent=1).encode(), ARRAYS: samples.npz()}
    index = {"format": FORMAT, **about, "analyses": analyses, "files": sorted(files)}
    try:
        remove(folder)
        for name, content in files.items():
            write_file(folder / name, content)
        write_file(folder / INDEX, json.dumps(index, ensure_ascii=False, indent=1, allow_nan=False))
    except OSError as error:
        raise UsageError(
            f"--out {folder} cannot be written ({error.strerror}); give another folder"
        ) from None


def remove(folder: Path) -> None:
    """Remove what an earlier analysis wrote, its index first, and what a killed one left half-written;
    nothing else.
    """
    for path in folder.iterdir():
        if LEFT_OVER.search(path.name):
            path.unlink()
    try:
        index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return
    if (
        not isinstance(index, dict)
        or index.get("format") != FORMAT
        or "analyses" not in index
        or not isinstance(index.get("files"), list)
    ):
        return
    (folder / INDEX).unlink()
    for name in index["files"]:
        if isinstance(name, str) and Path(name).name == name and Path(name).suffix in SUFFIXES:
            (folder / name).unlink(missing_ok=True)


def tsv(rows: list[dict]) -> str:
    """Return rows as tab-separated text. Columns are in the order in which rows bring them, numbers have six
    digits, and None is an empty field.
    """
    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, delimiter="\t", lineterminator="\n", quoting=csv.QUOTE_MINIMAL)
    writer.writeheader()
    writer.writerows(
        {column: f"{value:.6g}" if isinstance(value, float) else value for column, value in row.items()}
        for row in rows
    )
    return text.getvalue()
