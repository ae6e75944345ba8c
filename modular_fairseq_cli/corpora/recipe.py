"""A recipe says what a data set is made from and how; each is a file of recipes/."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from modular_fairseq_cli.corpora.fetch import Source

FOLDER = Path(__file__).parent / "recipes"


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """What a file of recipes/ says; what it leaves out has the default here.

    Attributes:
        summary, description: for `--help`; "%(prog)s" in the description is the command.
        data_set: how the settings of a prepared folder call it.
        options: the options that its users may give (`options.OPTIONS`), with their help.
        languages: source and target; None where the user gives them, or where there is one language only.
        out: the folder to write where the user names none; None: the user must name one.
        server: where `fetch` comes from; the environment variable `server_variable` names another one.
        fetch: the archives: path on the server, and bytes and sum (ALGORITHM:HEX) where they are published.
        text: the kind of corpus, a function of `texts`.
        train: for news, archive and prefix of each part.
        valid, test: for news, names of sacrebleu's test sets.
        valid_every: each n-th train pair is for validation instead; 0: none.
        tokens: "moses" or "none"; None: the text is binarized as it is.
        normalize, aggressive_hyphens, lowercase: see `moses.Tokenizer`.
        clean: unit (tokens or subwords), min, max and ratio of the train pairs that stay.
        bpe_merges, vocab_size: of subword-nmt, or of sentencepiece; one of them.
        dictionaries: "joined" or "separate".
    """

    summary: str
    description: str
    data_set: str
    options: dict[str, str]
    text: str
    languages: tuple[str | None, str | None] = (None, None)
    licence: str = ""
    out: Path | None = None
    server: str = ""
    server_variable: str = ""
    fetch: list[dict] = field(default_factory=list)
    train: list[tuple[str, str]] = field(default_factory=list)
    valid: str | None = None
    test: str | None = None
    valid_every: int = 0
    tokens: str | None = None
    normalize: bool = False
    aggressive_hyphens: bool = False
    lowercase: bool = False
    clean: dict | None = None
    bpe_merges: int | None = None
    vocab_size: int | None = None
    dictionaries: str | None = None

    @property
    def sources(self) -> list[Source]:
        """The archives that the recipe fetches."""
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
    """Return the recipe of a name."""
    return Recipe(**yaml.safe_load((FOLDER / f"{name}.yaml").read_text(encoding="utf-8")))
