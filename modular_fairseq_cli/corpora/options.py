"""Read the options of `modular-fairseq prepare RECIPE`: those that the recipe names, and --workers."""

import argparse
import re
import sys
from pathlib import Path
from typing import Any, NoReturn

from modular_fairseq_cli.corpora.documents import RULES
from modular_fairseq_cli.corpora.recipe import Recipe
from modular_fairseq_cli.corpora.settings import FROM_LIKE
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import check_data_folder
from modular_fairseq_cli.processes import processors

# The arguments of `add_argument` for every option that a recipe may name; the recipe adds the help.
OPTIONS: dict[str, dict[str, Any]] = {
    "source-lang": {"required": True, "metavar": "L"},
    "target-lang": {"required": True, "metavar": "L"},
    "language": {"metavar": "L"},
    "documents": {"choices": sorted(RULES)},
    "values": {"action": "store_true", "default": None},
    "words": {"action": "store_true", "default": None},
    "archive": {"action": "append", "type": Path, "metavar": "FILE"},
    "train": {"metavar": "NAME,NAME"},
    "valid-files": {"metavar": "NAME,NAME"},
    "test-files": {"metavar": "NAME,NAME"},
    "valid-last": {"type": int, "metavar": "N"},
    "percent": {"type": int, "metavar": "P"},
    "held-out": {"type": int, "metavar": "N"},
    "tokenized": {"action": "store_true", "default": None},
    "lowercase": {"action": "store_true"},
    "keep-case": {"action": "store_false", "dest": "lowercase"},
    "bpe-merges": {"type": int, "metavar": "N"},
    "vocab-size": {"type": int, "metavar": "N"},
    "dictionary-size": {"type": int, "metavar": "N"},
    "normalize": {"action": "store_true", "default": None},
    "valid": {"metavar": "SET"},
    "joined-dictionary": {"action": "store_const", "const": "joined", "dest": "dictionaries"},
    "separate-dictionaries": {"action": "store_const", "const": "separate", "dest": "dictionaries"},
    "like": {"type": Path, "metavar": "DIR"},
}
OPPOSITES = (("lowercase", "keep-case"), ("joined-dictionary", "separate-dictionaries"))
# The name of a file below a folder, without its ending; no part of it is "..".
FILE = re.compile(r"(?!(.*/)?\.\.(/|$))[^/\s]+(/[^/\s]+)*")
# The options that set a key of the settings, where the key is not the name of an option.
SAID_BY = {
    "lowercase": "--lowercase or --keep-case",
    "dictionaries": "--joined-dictionary or --separate-dictionaries",
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that refuses abbreviations and reports an error in one sentence after `name`."""

    def __init__(self, name: str, **arguments: Any):
        super().__init__(
            allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter, **arguments
        )
        self.name = name

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.name}: error: {message}; --help lists the options\n")
        sys.exit(2)


def parse(recipe: Recipe, argv: list[str], name: str, command: str) -> argparse.Namespace:
    """Return the options that the user of a recipe gave, and exit with status 2 if one makes no sense.

    An option that is not given, or that the recipe does not have, is None.

    Args:
        recipe: the recipe.
        argv: the words after the name of the recipe.
        name: the name of the program, with which messages begin.
        command: the command that --help shows.

    Returns:
        The value of every option in `OPTIONS`, and besides: `name`; `out`, the folder to write; `workers`,
        the number of processes; `archives`, the absolute paths of the given archives by official name; and
        `folder` if the recipe takes one.
    """
    parser = Parser(name, prog=command, description=_description(recipe))
    groups: dict[str, Any] = {}
    for pair in OPPOSITES:
        if not recipe.options.keys() >= set(pair):
            continue
        groups |= dict.fromkeys(pair, parser.add_mutually_exclusive_group())
    for option, text in recipe.options.items():
        if option == "folder":
            parser.add_argument("folder", type=Path, metavar="FOLDER", help=text)
        elif option == "out":
            required = recipe.out is None
            parser.add_argument("--out", type=Path, required=required, metavar="DIR", help=text)
        else:
            groups.get(option, parser).add_argument(f"--{option}", help=text, **OPTIONS[option])
    parser.add_argument(
        "--workers", type=int, metavar="N", help="number of processes; default: one for each processor"
    )
    given = ("out", "workers", *(options.get("dest", option) for option, options in OPTIONS.items()))
    user = parser.parse_args(argv, argparse.Namespace(**{key.replace("-", "_"): None for key in given}))
    _check(parser, recipe, user)
    user.name = name
    if recipe.out is not None:
        user.out = user.out or Path(recipe.out)
    user.workers = user.workers or processors()
    user.archives = {path.name: path.resolve() for path in user.archive or []}
    return user


def _description(recipe: Recipe) -> str:
    """Return the text that --help shows above the options."""
    lines = [
        recipe.description,
        "The same command continues a run that was stopped, and does not repeat finished stages.",
    ]
    if recipe.server:
        lines.append(f"{recipe.server_variable}=ADDRESS in the environment replaces {recipe.server}.")
    if recipe.test:
        lines.append("The test sets come from sacrebleu, which keeps them in $SACREBLEU or ~/.sacrebleu.")
    return "\n".join(lines)


def _check(parser: Parser, recipe: Recipe, user: argparse.Namespace) -> None:
    """Exit with a sentence if a value is impossible, or if options exclude each other."""
    for name in (
        "workers",
        "bpe_merges",
        "vocab_size",
        "dictionary_size",
        "valid_last",
        "percent",
        "held_out",
    ):
        if getattr(user, name) is not None and getattr(user, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(user, name)}: give 1 or more")
    if recipe.label and user.like is None:
        parser.error(
            "--like is missing: give the folder of the text on which the model was pre-trained, as the model "
            "knows only its words"
        )
    if user.bpe_merges and user.vocab_size:
        parser.error("--vocab-size is for sentencepiece, and --bpe-merges for subword-nmt; give one of them")
    if user.normalize and user.vocab_size:
        parser.error("--normalize: cannot be given beside --vocab-size; sentencepiece has rules of its own")
    for option in ("vocab_size", "like", "normalize") if user.tokenized else ():
        if getattr(user, option) is not None:
            parser.error(
                f"--tokenized: cannot be given beside --{option.replace('_', '-')}, which takes text that is "
                "not tokenized"
            )
    if user.tokenized and not recipe.clean and getattr(user, "language", None) is not None:
        parser.error("--language: has no effect beside --tokenized; leave it out")
    beside = [
        name
        for name in ("tokenized", "language", *FROM_LIKE, "like")
        if getattr(user, name, None) is not None
    ]
    if user.words and beside:
        option = SAID_BY.get(beside[0], f"--{beside[0].replace('_', '-')}")
        parser.error(
            f"--words: cannot be given beside {option}, because the words are binarized as they are; leave "
            "out one of them"
        )
    try:
        check_data_folder(user.out or "", "--out")
    except UsageError as error:
        parser.error(str(error))
    for option, lang in (("--source-lang", user.source_lang), ("--target-lang", user.target_lang)):
        if lang is not None and not re.fullmatch(r"[A-Za-z0-9_]+", lang):
            parser.error(f"{option} {lang}: give the ending of the files, such as de")
    for option in ("train", "valid-files", "test-files"):
        given = getattr(user, option.replace("-", "_"))
        names = given.split(",") if given is not None else []
        if not all(map(FILE.fullmatch, names)) or len(set(names)) < len(names):
            parser.error(
                f"--{option} {given}: give different names of files without their endings, as in train,extra"
            )
    if user.source_lang and user.source_lang == user.target_lang:
        parser.error(f"--target-lang {user.target_lang}: must differ from --source-lang")
    _check_archives(parser, recipe, user.archive or [])
    for name in (*FROM_LIKE, "language", "dictionary_size"):
        if user.like and getattr(user, name, None) is not None:
            option = SAID_BY.get(name, f"--{name.replace('_', '-')}")
            parser.error(f"{option}: cannot be given beside --like, which takes it from {user.like}")
    if user.valid not in (None, "newstest2013", "every-100th"):
        parser.error(f"--valid {user.valid}: give newstest2013 or every-100th")


def _check_archives(parser: Parser, recipe: Recipe, paths: list[Path]) -> None:
    """Exit with a sentence if a given archive is missing, given twice, or not one of the recipe."""
    official = [source.name for source in recipe.sources]
    names = [path.name for path in paths]
    for path in paths:
        if path.name not in official:
            parser.error(f"--archive {path}: must have the official name {' or '.join(official)}")
        if not path.is_file():
            parser.error(f"--archive {path}: there is no such file")
        if names.count(path.name) > 1:
            parser.error(f"--archive {path}: {path.name} is given twice")
