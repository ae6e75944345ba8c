"""Write the folder of `modular-fairseq analyze --out`: analysis.json, tables as .tsv files, and samples.

analysis.json is written last and names the other files. If it exists, the folder is therefore complete.
"""

import csv
import io
import json
import os
import re
from pathlib import Path
from typing import Any, Protocol

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file

FORMAT = 2  # version of the format of all JSON files in the folder
SUFFIXES = (".tsv", ".json", ".npz")
LEFT_OVER = re.compile(r"\.(tsv|json|npz)\.(.+\.)?\d+\.tmp$")  # files that a killed `write_file` leaves
INDEX, SAMPLES, ARRAYS = "analysis.json", "samples.json", "samples.npz"


class SampleFiles(Protocol):
    """Sample sentences that can be written, such as `modular_fairseq.analysis.samples.Samples`."""

    def data(self) -> dict[str, Any]:
        """Return everything but the arrays, for JSON."""

    def npz(self) -> bytes:
        """Return the arrays as the content of an .npz file."""


def prepare(folder: Path) -> None:
    """Create the folder and check that it is writable, before a long analysis begins.

    Raises:
        UsageError: the folder cannot be created or written.
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
    samples: SampleFiles | None,
) -> None:
    """Write the results of an analysis, and remove the results of an earlier one.

    Args:
        about: facts about the checkpoint and the data, for analysis.json.
        analyses: the data of each analysis, keyed by its name, for JSON.
        tables: the rows of each table, keyed by its name. A row maps columns to values.
        samples: the sample sentences, or None.

    Raises:
        UsageError: a number is not finite, or the folder cannot be written. In the former case the earlier
            results are still there.
    """
    files = {f"{name}.tsv": tsv(rows).encode() for name, rows in tables.items()}
    if samples is not None:
        described = {"format": FORMAT, **samples.data()}
        files[SAMPLES] = json.dumps(described, ensure_ascii=False, indent=1).encode()
        files[ARRAYS] = samples.npz()
    index = {"format": FORMAT, **about, "analyses": analyses, "files": sorted(files)}
    try:
        content = json.dumps(index, ensure_ascii=False, indent=1, allow_nan=False)
    except ValueError:
        raise UsageError(
            f"--out {folder} is not written, because a result is infinite or NaN; use a checkpoint from "
            "before the training diverged"
        ) from None
    try:
        remove(folder)
        for name, data in files.items():
            write_file(folder / name, data)
        write_file(folder / INDEX, content)
    except OSError as error:
        raise UsageError(
            f"--out {folder} cannot be written ({error.strerror}); give another folder"
        ) from None


def remove(folder: Path) -> None:
    """Remove the files of an earlier analysis, analysis.json first, and the temporary files of a killed one.

    All other files are kept.
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
        or index.get("format") not in (1, FORMAT)  # both name their files in the same way
        or "analyses" not in index
        or not isinstance(index.get("files"), list)
    ):
        return
    (folder / INDEX).unlink()
    for name in index["files"]:
        if isinstance(name, str) and Path(name).name == name and Path(name).suffix in SUFFIXES:
            (folder / name).unlink(missing_ok=True)


def tsv(rows: list[dict]) -> str:
    """Return the rows of a table as tab-separated text.

    Columns are in the order of their first appearance. Numbers have six significant digits. None is an empty
    field.
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
