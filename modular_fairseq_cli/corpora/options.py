"""The words of a recipe, the options of its users, and the settings that both come to.

A recipe is written in a prepare-*.sh script as options, too; `--accepts` names those of OPTIONAL that its
users may give. The settings are what decides how the prepared files look. They are kept in DIR/settings, so
that a folder is never continued with others.
"""

import argparse
import json
import re
import sys
from pathlib import Path
from typing import NoReturn

from modular_fairseq_cli.corpora.fetch import Source
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file
from modular_fairseq_cli.processes import processors

OPTIONAL = {
    "archive": {"action": "append", "default": [], "type": Path},
    "bpe-merges": {"type": int},
    "vocab-size": {"type": int},
    "valid": {},
    "like": {"type": Path},
    "source-lang": {"required": True},
    "target-lang": {"required": True},
    "lowercase": {"action": "store_true", "default": None},
    "keep-case": {"action": "store_false", "dest": "lowercase", "default": None},
    "joined-dictionary": {"action": "store_const", "const": "joined", "dest": "dictionaries"},
    "separate-dictionaries": {"action": "store_const", "const": "separate", "dest": "dictionaries"},
}
# What --like takes from the other folder, and so cannot be given beside it.
FROM_LIKE = [
    "tokens",
    "normalize",
    "aggressive_hyphens",
    "lowercase",
    "subwords",
    "bpe_merges",
    "vocab_size",
    "dictionaries",
]
SAID_BY = {
    "lowercase": "--lowercase or --keep-case",
    "dictionaries": "--joined-dictionary or --separate-dictionaries",
}


class Parser(argparse.ArgumentParser):
    """An ArgumentParser that says what is wrong in one sentence, and takes no abbreviations."""

    def __init__(self, script: str):
        super().__init__(prog=script, add_help=False, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"{self.prog}: {message}; --help says what may be given\n")
        sys.exit(2)


def parse(argv: list[str]) -> tuple[argparse.Namespace, argparse.Namespace]:
    """The recipe, before the first `--`, and the user's options, after it. Exits with 2 when the user's make
    no sense.
    """
    border = argv.index("--")
    recipe = recipe_parser().parse_args(argv[:border])
    recipe.sources = [Source(*source) for source in recipe.fetch]
    return recipe, user_options(recipe, argv[border + 1 :])


def recipe_parser() -> argparse.ArgumentParser:
    parser = Parser("recipe")
    parser.add_argument("--script", required=True, help="the name that messages begin with")
    parser.add_argument("--data-set", required=True)
    parser.add_argument("--out", type=Path, help="the folder to write where the user names none")
    parser.add_argument("--languages", nargs=2, default=[None, None], metavar=("SOURCE", "TARGET"))
    parser.add_argument("--licence", default="")
    parser.add_argument(
        "--fetch", nargs=4, action="append", default=[], metavar=("NAME", "URL", "BYTES", "SUM")
    )
    parser.add_argument("--text", required=True, choices=["talks", "news", "folder", "articles"])
    parser.add_argument("--train", nargs=2, action="append", default=[], metavar=("ARCHIVE", "PREFIX"))
    parser.add_argument("--valid", help="a test set of sacrebleu")
    parser.add_argument("--test", help="a test set of sacrebleu")
    parser.add_argument(
        "--valid-every",
        type=int,
        default=0,
        metavar="N",
        help="each N-th train pair is for validation instead",
    )
    parser.add_argument("--tokens", choices=["moses", "none"])
    parser.add_argument("--normalize", action="store_true")
    parser.add_argument("--aggressive-hyphens", action="store_true")
    parser.add_argument("--lowercase", action="store_true")
    parser.add_argument("--clean", nargs=4, metavar=("UNIT", "MIN", "MAX", "RATIO"))
    parser.add_argument("--bpe-merges", type=int)
    parser.add_argument("--vocab-size", type=int)
    parser.add_argument("--dictionaries", choices=["joined", "separate"])
    parser.add_argument("--accepts", nargs="*", default=[], choices=["folder", *OPTIONAL])
    return parser


def user_options(recipe: argparse.Namespace, argv: list[str]) -> argparse.Namespace:
    parser = Parser(recipe.script)
    parser.add_argument("--out", type=Path, default=recipe.out, required=recipe.out is None)
    parser.add_argument(
        "--workers",
        type=int,
        default=processors(),
    )
    for name in recipe.accepts:
        if name == "folder":
            parser.add_argument("folder", type=Path, metavar="FOLDER")
        else:
            parser.add_argument(f"--{name}", **OPTIONAL[name])
    user = parser.parse_args(argv)
    for name in ("workers", "bpe_merges", "vocab_size"):
        if getattr(user, name, None) is not None and getattr(user, name) < 1:
            parser.error(f"--{name.replace('_', '-')} {getattr(user, name)}: give 1 or more")
    if getattr(user, "bpe_merges", None) and getattr(user, "vocab_size", None):
        parser.error("--vocab-size: is of sentencepiece, and --bpe-merges of subword-nmt; give one of them")
    check_languages(parser, user)
    check_archives(parser, recipe, user)
    for name in FROM_LIKE:
        if getattr(user, "like", None) and getattr(user, name, None) is not None:
            option = SAID_BY.get(name, f"--{name.replace('_', '-')}")
            parser.error(f"{option}: cannot be given beside --like, which takes it from {user.like}")
    if getattr(user, "valid", None) not in (None, recipe.valid, "newstest2013", "every-100th"):
        parser.error(f"--valid {user.valid}: give newstest2013 or every-100th")
    return user


def check_languages(parser: Parser, user: argparse.Namespace) -> None:
    if not hasattr(user, "source_lang"):
        return
    for option, lang in (("--source-lang", user.source_lang), ("--target-lang", user.target_lang)):
        if not re.fullmatch(r"[A-Za-z0-9_]+", lang):
            parser.error(f"{option} {lang}: give the ending of the files, such as de")
    if user.source_lang == user.target_lang:
        parser.error(f"--target-lang {user.target_lang}: must be another than --source-lang")


def check_archives(parser: Parser, recipe: argparse.Namespace, user: argparse.Namespace) -> None:
    names = [source.name for source in recipe.sources]
    user.archives = {}
    for path in getattr(user, "archive", []):
        if path.name not in names:
            parser.error(f"--archive {path}: must have an official name, {' or '.join(names)}")
        if not path.is_file():
            parser.error(f"--archive {path}: there is no such file")
        if path.name in user.archives:
            parser.error(f"--archive {path}: {path.name} is given twice")
        user.archives[path.name] = path.resolve()


def settings(recipe: argparse.Namespace, user: argparse.Namespace) -> dict:
    """What decides how the prepared files look, ready for JSON."""
    source, target = (
        recipe.languages
        if recipe.languages[0]
        else (getattr(user, "source_lang", None), getattr(user, "target_lang", None))
    )
    chosen = {"data_set": recipe.data_set, "source_lang": source, "target_lang": target}
    if recipe.tokens:
        every = 100 if getattr(user, "valid", None) == "every-100th" else recipe.valid_every
        words = (
            recipe.bpe_merges and getattr(user, "vocab_size", None) is None
        )  # else sentencepiece, which takes text without words, too
        unit, low, high, ratio = recipe.clean
        chosen |= {
            "valid": f"every {every}{'rd' if every % 10 == 3 else 'th'} train pair"
            if every
            else recipe.valid or "given",
            "valid_every": every,
            "test": recipe.test or "given",
            "tokens": recipe.tokens if words else "none",
            "normalize": recipe.normalize,
            "aggressive_hyphens": recipe.aggressive_hyphens,
            "lowercase": first(getattr(user, "lowercase", None), recipe.lowercase),
            "clean": {
                "unit": unit if words else "subwords",
                "min": int(low),
                "max": int(high),
                "ratio": float(ratio),
            },
            "subwords": "subword-nmt" if words else "sentencepiece",
            "bpe_merges": first(getattr(user, "bpe_merges", None), recipe.bpe_merges) if words else None,
            "vocab_size": first(getattr(user, "vocab_size", None), recipe.vocab_size),
            "dictionaries": first(
                getattr(user, "dictionaries", None), recipe.dictionaries if words else "separate"
            ),
        }
        if getattr(user, "like", None):
            chosen |= like(user.like, {source, target})
    return chosen


def first(value, default):
    return default if value is None else value


def like(folder: Path, languages: set[str]) -> dict:
    """Those settings of a prepared folder that text for its models must be prepared with."""
    kept = read_settings(folder)
    if kept is None or "tokens" not in kept or not (folder / "bin").is_dir():
        raise UsageError(
            f"--like {folder}: is not a finished folder of these scripts with two languages; prepare it first"
        )
    others = {kept["source_lang"], kept["target_lang"]}
    if others != languages:
        raise UsageError(
            f"--like {folder}: has {' and '.join(sorted(others))}, and this corpus is "
            f"{' and '.join(sorted(languages))}"
        )
    taken = (
        [*FROM_LIKE, "clean"] if kept["tokens"] == "none" else FROM_LIKE
    )  # words are no measure of length there
    return {name: kept[name] for name in taken} | {"like": str(folder.resolve())}


def read_settings(folder: Path) -> dict | None:
    """Return the settings that a folder was begun with, or None where there are none."""
    return read_json(folder / "settings", f"give another --out, or remove {folder}")


def write_settings(folder: Path, chosen: dict) -> None:
    write_file(folder / "settings", json.dumps(chosen, indent=1, ensure_ascii=False) + "\n")


def compare_settings(folder: Path, chosen: dict) -> None:
    """A folder in which a stage is done is continued only with the settings that it was begun with."""
    stages = [name for name in ("text", "raw", "tok", "bpe", "bin") if (folder / name).exists()]
    if not stages:
        return
    kept = read_settings(folder)
    if kept is None:
        raise UsageError(
            f"{folder / stages[0]} exists and was not written by this script; give another --out"
        )
    for name in [*chosen, *kept]:
        was, now = kept.get(name), chosen.get(name)
        if was == now:
            continue
        if name == "files":
            changed = next(file for file in now if was.get(file) != now[file])
            raise UsageError(
                f"{changed} is not the file that {folder} was prepared from; give another --out, or remove "
                f"{folder}"
            )
        shown = [json.dumps(value, ensure_ascii=False) for value in (was, now)]
        raise UsageError(
            f"{folder} was prepared with {name.replace('_', ' ')} {shown[0]}, not {shown[1]}; give another "
            f"--out, or remove {folder}"
        )
