"""The stage text/ of a classification: {train,valid,...}.input0, .input1 and .label, one input a line.

A label is the name of a class, or a value for a regression.
"""

import math
import random
import re
from argparse import Namespace
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from modular_fairseq_cli.corpora.archives import open_archive
from modular_fairseq_cli.corpora.documents import Documents
from modular_fairseq_cli.corpora.lines import is_visible, read_lines, write_lines
from modular_fairseq_cli.corpora.recipe import Recipe
from modular_fairseq_cli.corpora.settings import SPLITS, files_of, splits, suffixes
from modular_fairseq_cli.corpora.user_files import find, read_file
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

SHORTEST, LONGEST = 10, 40  # words of a line that is part of a pair
# What fairseq has in its dictionaries beside words.
SYMBOL = re.compile(r"<s>|<pad>|</s>|<unk>|<mask>|madeupword\d{4}")


def classes(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write the classification of the user's folder: the files have the names that this stage writes."""
    known: set[str] = set()
    for split in splits(settings):
        sides = {}
        for kind in (*suffixes(settings), "label"):
            path = find(user.folder, split, kind)
            sides[kind] = (str(path), list(read_lines(read_file(path), str(path))))
        write(part, split, sides, settings["values"], known)


def glue(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write a task of GLUE from its archive, in which a file of tab-separated values is a split."""
    name = recipe.sources[0].name
    known: set[str] = set()
    with open_archive(archives[name], name) as member:
        for split, path in recipe.members.items():
            rows = list(cells(read_lines(member(path), f"{name}, {path}"), f"{name}, {path}", recipe))
            *inputs, labels = (list(column) for column in zip(*rows, strict=True))
            if settings["values"]:
                numbers = values(labels, f"{name}, {path}", first=2)  # after the names of the columns
                labels = [f"{number / recipe.highest:.6g}" for number in numbers]
            sides = dict(zip((*suffixes(settings), "label"), [*inputs, labels], strict=True))
            named = {kind: (f"{name}, {path} ({kind})", lines) for kind, lines in sides.items()}
            write(part, split, named, settings["values"], known)


def same_document(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write pairs of lines of the user's text: whether both are of the same document, "same" or "other".

    Each line of at least `SHORTEST` words is the first one of a pair, and is cut after `LONGEST` words. In
    half of the pairs the second one is another such line of the same document, and else one of another.
    """
    known: set[str] = set()
    for split in SPLITS:
        texts = [find(user.folder, name, "txt") for name in files_of(settings, split)]
        documents: list[list[str]] = []
        for path in texts:
            counted = Documents(settings["documents"])
            lines = iter(list(counted.count(read_lines(read_file(path), str(path)))))
            for length in counted.lengths:
                words = [line.split() for line in islice(lines, length)]
                documents.append([" ".join(each[:LONGEST]) for each in words if len(each) >= SHORTEST])
        documents = [document for document in documents if len(document) > 1]
        if len(documents) < 2:
            raise UsageError(
                f"{texts[0]}: has fewer than two documents with two lines of {SHORTEST} words; give more "
                "text, or another rule by --documents"
            )
        pairs = list(_pairs(documents, random.Random(split)))
        sides = dict(zip((*suffixes(settings), "label"), map(list, zip(*pairs, strict=True)), strict=True))
        named = {kind: (f"{texts[0]} ({kind})", lines) for kind, lines in sides.items()}
        write(part, split, named, False, known)


def _pairs(documents: list[list[str]], rng: random.Random) -> Iterator[tuple[str, str, str]]:
    """Yield pairs of lines with their labels, for each line one pair."""
    for number, document in enumerate(documents):
        for place, line in enumerate(document):
            if rng.random() < 0.5:
                other = document[(place + 1 + int(rng.random() * (len(document) - 1))) % len(document)]
                yield line, other, "same"
            else:
                another = documents[(number + 1 + int(rng.random() * (len(documents) - 1))) % len(documents)]
                yield line, another[int(rng.random() * len(another))], "other"


def cells(lines: Iterator[str], name: str, recipe: Recipe) -> Iterator[list[str]]:
    """Yield the inputs and the label of each line of a file of GLUE, whose first line names the columns.

    Quotation marks have no meaning in these files.

    Raises:
        UsageError: the file lacks a column, or a line has fewer cells, or nothing in a column that is read.
    """
    heads = next(lines, "").split("\t")
    wanted = [*recipe.columns, recipe.label]
    missing = [column for column in wanted if column not in heads]
    if missing:
        raise UsageError(f"{name}: has no column {missing[0]}, so it is not the official file; give that one")
    places = [heads.index(column) for column in wanted]
    empty = True
    for number, line in enumerate(lines, 2):
        found = line.split("\t")
        if len(found) != len(heads):
            raise UsageError(
                f"{name}, line {number}: has {len(found)} cells and not {len(heads)}, so it is damaged; "
                "download it again"
            )
        blank = next((heads[place] for place in places if not is_visible(found[place])), None)
        if blank:
            raise UsageError(
                f"{name}, line {number}: has nothing in the column {blank}, so it is damaged; download it "
                "again"
            )
        yield [found[place] for place in places]
        empty = False
    if empty:
        raise UsageError(f"{name}: has no line below the names of the columns; download it again")


def write(
    part: Path, split: str, sides: dict[str, tuple[str, list[str]]], regression: bool, known: set[str]
) -> None:
    """Write the inputs and labels of a split.

    Args:
        part: the folder of the files.
        split: the name of the split; train is the first.
        sides: for each ending of files the name of the text in messages, and its lines.
        regression: whether labels are values.
        known: the classes of train, which this function adds.

    Raises:
        UsageError: the sides differ in length, a line is blank, or a label is none.
    """
    (first, lines), *_ = sides.values()
    for name, other in sides.values():
        if len(other) != len(lines):
            raise UsageError(
                f"{name} has {len(other)} lines and {first} has {len(lines)}: line n of each must belong to "
                "the same input"
            )
        blank = next((number for number, line in enumerate(other, 1) if not is_visible(line)), None)
        if blank:
            raise UsageError(f"{name}, line {blank}: is empty; remove this line from all files of {split}")
    name, labels = sides["label"]
    if regression:
        values(labels, name)
    else:
        check_classes(labels, name, known, split == "train")
    for kind, (_, texts) in sides.items():
        with (part / f"{split}.{kind}").open("wb") as out:
            write_lines((text.strip() if kind == "label" else text for text in texts), out, kind)
    found = "values" if regression else f"{len(known)} classes"
    say(f"{split}: {len(lines):,} inputs, {found}")


def check_classes(labels: Iterable[str], name: str, known: set[str], train: bool) -> None:
    """Refuse labels that are no classes, or that train lacks, and add the classes of train to `known`.

    Raises:
        UsageError: a class has spaces or is a symbol of fairseq, train has only one, or another split has one
            that train lacks.
    """
    for number, label in enumerate(labels, 1):
        if len(label.split()) != 1:
            raise UsageError(
                f"{name}, line {number}: {label!r} is no name of a class, which has no spaces; write it as "
                "one word, or give --values if labels are values"
            )
        if SYMBOL.fullmatch(label.strip()):
            raise UsageError(
                f"{name}, line {number}: {label.strip()} is a symbol of fairseq and cannot be the name of a "
                "class; give the class another name"
            )
        if train:
            known.add(label.strip())
        elif label.strip() not in known:
            raise UsageError(
                f"{name}, line {number}: train has no class {label.strip()}; correct the label, add inputs "
                "of this class to train, or give --values if labels are values"
            )
    if train and len(known) < 2:
        raise UsageError(f"{name}: has only the class {min(known)}; a classification needs two classes")


def values(labels: Iterable[str], name: str, first: int = 1) -> list[float]:
    """Return labels as values. Raises UsageError for a label that is no number.

    Args:
        name: the file, for the message.
        first: the line of the file that has the first label.
    """
    found = []
    for number, label in enumerate(labels, first):
        try:
            found.append(float(label))
        except ValueError:
            found.append(math.nan)
        if not math.isfinite(found[-1]):
            raise UsageError(f"{name}, line {number}: {label!r} is no number; give the value of each input")
    return found
