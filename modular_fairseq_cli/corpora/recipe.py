"""Recipes: each file of recipes/ describes what a data set is made from, and how."""

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict

import yaml

from modular_fairseq_cli.corpora.fetch import Source

FOLDER = Path(__file__).parent / "recipes"


class LengthRule(TypedDict):
    """The lengths of the training pairs that are kept."""

    unit: str  # "tokens" or "subwords": what is counted
    min: int  # the least length of either side
    max: int  # the greatest length of either side
    ratio: float  # the greatest length of the longer side divided by the length of the shorter one


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """The content of a file of recipes/; a key that the file leaves out has the default here.

    Attributes:
        summary: one line for the list of recipes.
        description: text for `--help`, in which "%(prog)s" stands for the command.
        data_set: the name of the data set in messages and in the settings of a prepared folder.
        options: the options that the user may give (see `options.OPTIONS`), each with its help.
        text: the kind of corpus: the name of the function of `texts` that reads it.
        documents: for text in one language, the rule that tells where a document begins: a key of
            `documents.RULES`; None for parallel text.
        languages: source and target; (None, None) if the user gives them, or if the corpus has one language.
        licence: the licence of the data, which is shown before anything is fetched.
        out: the folder that is written if the user names none; None if the user must name one.
        server: the address that the paths in `fetch` belong to.
        server_variable: the environment variable that may name another address.
        fetch: the archives, each with its "path" on the server, and with "bytes" (size) and "sum" (checksum,
            ALGORITHM:HEX) if they are published.
        train: for news, the archive of each part of the training data, and the prefix of its members.
        valid: for news, sacrebleu's name of the test set that serves for validation.
        test: for news, sacrebleu's name of the test set.
        valid_every: the distance of the training pairs that serve for validation instead; 0: none do.
        tokens: "moses", or "none" for text that is not tokenized; None: the text is binarized as it is. In
            settings also "given", for text that consists of tokens of Moses already.
        normalize: normalise the punctuation, see `moses.Tokenizer`.
        aggressive_hyphens: split words at hyphens, see `moses.Tokenizer`.
        lowercase: lower-case the text.
        clean: which training pairs are kept; None for text in one language, which is never filtered.
        bpe_merges: the number of merges of subword-nmt, for tokens of Moses.
        vocab_size: the number of sub-words of sentencepiece in each language, for other text.
        dictionaries: "joined" for one dictionary of both languages, or "separate".
        train_files: for one long text, the names of its files without their endings.
        percent: for one long text, the share of its lines at its beginning that is for training.
        held_out: for one long text, the number of lines at its end that are for test, and of those before
            them that are for validation.
        columns: for GLUE, the names of the columns that are the inputs.
        label: for GLUE, the name of the column with the label.
        members: for GLUE, the member of the archive for each split.
        values: whether labels are values, which a regression predicts.
        highest: for GLUE, the highest value, by which values are divided.
    """

    summary: str
    description: str
    data_set: str
    options: dict[str, str]
    text: str
    documents: str | None = None
    languages: tuple[str | None, str | None] = (None, None)
    licence: str = ""
    out: str | None = None
    server: str = ""
    server_variable: str = ""
    fetch: list[dict[str, Any]] = field(default_factory=list)
    train: list[tuple[str, str]] = field(default_factory=list)
    valid: str | None = None
    test: str | None = None
    valid_every: int = 0
    tokens: str | None = None
    normalize: bool = False
    aggressive_hyphens: bool = False
    lowercase: bool = False
    clean: LengthRule | None = None
    bpe_merges: int | None = None
    vocab_size: int | None = None
    dictionaries: str | None = None
    train_files: list[str] = field(default_factory=list)
    percent: int = 0
    held_out: int = 0
    columns: list[str] = field(default_factory=list)
    label: str = ""
    members: dict[str, str] = field(default_factory=dict)
    values: bool = False
    highest: float = 1.0

    @property
    def sources(self) -> list[Source]:
        """The archives that the recipe needs, with their addresses."""
        server = os.environ.get(self.server_variable) or self.server
        return [
            Source(
                name=archive["path"].rpartition("/")[2],
                url=f"{server}/{archive['path']}",
                bytes=archive.get("bytes"),
                sum=archive.get("sum"),
            )
            for archive in self.fetch
        ]


def names() -> list[str]:
    """Return the names of all recipes."""
    return sorted(path.stem for path in FOLDER.glob("*.yaml"))


def load(name: str) -> Recipe:
    """Read the recipe with this name."""
    return Recipe(**yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
