"""Find and read the text files of a user's folder, which may be compressed by gzip."""

import gzip
from collections.abc import Iterator
from pathlib import Path

from modular_fairseq_cli.corpora.archives import damage_named
from modular_fairseq_cli.errors import UsageError


def read_file(path: Path) -> Iterator[bytes]:
    """Yield the lines of a file, which may be compressed by gzip. Raises UsageError if it is damaged."""
    with damage_named(path), gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        yield from file


def find(folder: Path, stem: str, lang: str) -> Path:
    """Return the path of one side of a text, such as train. Raises UsageError if there is none."""
    if not folder.is_dir():
        raise UsageError(f"{folder} is no folder; give the folder that has the text")
    whole = (stem, f"{stem}.gz") if lang == "txt" else ()  # such as train.en
    for name in (f"{stem}.{lang}", f"{stem}.{lang}.gz", *whole):
        if (folder / name).is_file():
            return folder / name
    other_names = "; --train gives the names of training files that are called otherwise"
    text = "{train,valid,test}.txt" if stem in ("train", "valid", "test") else f"{stem}.txt or {stem}.txt.gz"
    what = {
        "txt": f"{text}{other_names}",
        "input0": "train.input0 and valid.input0, with a text in each line",
        "input1": "input1 beside input0 for each part, as train has it",
        "label": "the label of each line, in {train,valid}.label",
    }.get(lang, f"train, valid and test text in both languages{other_names}")
    raise UsageError(f"{folder / f'{stem}.{lang}'} is missing: the folder needs {what}")
