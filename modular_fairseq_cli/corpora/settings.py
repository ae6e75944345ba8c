"""The settings of a prepared folder: all that decides how its files look, by the recipe and its user.

They are kept in DIR/settings, so that a folder is never continued with others.
"""

import json
from argparse import Namespace
from pathlib import Path

from modular_fairseq_cli.corpora.recipe import Recipe
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file

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


def choose(recipe: Recipe, user: Namespace) -> dict:
    """Return what decides how the prepared files look, ready for JSON.

    Raises:
        UsageError: --like names no finished folder, or one of other languages.
    """
    source, target = recipe.languages if recipe.languages[0] else (user.source_lang, user.target_lang)
    chosen = {"data_set": recipe.data_set, "source_lang": source, "target_lang": target}
    if not recipe.tokens:
        return chosen
    every = 100 if user.valid == "every-100th" else recipe.valid_every
    words = recipe.bpe_merges and user.vocab_size is None  # else sentencepiece, which needs no words
    chosen |= {
        "valid": f"every {every}{'rd' if every % 10 == 3 else 'th'} train pair"
        if every
        else recipe.valid or "given",
        "valid_every": every,
        "test": recipe.test or "given",
        "tokens": recipe.tokens if words else "none",
        "normalize": recipe.normalize,
        "aggressive_hyphens": recipe.aggressive_hyphens,
        "lowercase": _first(user.lowercase, recipe.lowercase),
        "clean": recipe.clean if words else recipe.clean | {"unit": "subwords"},
        "subwords": "subword-nmt" if words else "sentencepiece",
        "bpe_merges": _first(user.bpe_merges, recipe.bpe_merges) if words else None,
        "vocab_size": _first(user.vocab_size, recipe.vocab_size),
        "dictionaries": _first(user.dictionaries, recipe.dictionaries if words else "separate"),
    }
    return chosen | (like(user.like, {source, target}) if user.like else {})


def _first(value, default):
    return default if value is None else value


def like(folder: Path, languages: set[str]) -> dict:
    """Return those settings of a prepared folder that text for its models must be prepared with."""
    kept = read(folder)
    if kept is None or "tokens" not in kept or not (folder / "bin").is_dir():
        raise UsageError(
            f"--like {folder}: is not a finished folder of `modular-fairseq prepare` with two languages; "
            "prepare it first"
        )
    others = {kept["source_lang"], kept["target_lang"]}
    if others != languages:
        raise UsageError(
            f"--like {folder}: has {' and '.join(sorted(others))}, and this corpus is "
            f"{' and '.join(sorted(languages))}"
        )
    # Without tokens, words are no measure of length.
    taken = [*FROM_LIKE, "clean"] if kept["tokens"] == "none" else FROM_LIKE
    return {name: kept[name] for name in taken} | {"like": str(folder.resolve())}


def read(folder: Path) -> dict | None:
    """Return the settings that a folder was begun with, or None where there are none."""
    return read_json(folder / "settings", f"give another --out, or remove {folder}")


def write(folder: Path, chosen: dict) -> None:
    write_file(folder / "settings", json.dumps(chosen, indent=1, ensure_ascii=False) + "\n")


def compare(folder: Path, chosen: dict) -> None:
    """Refuse to continue a folder in which a stage is done with other settings than it was begun with."""
    stages = [name for name in ("text", "raw", "tok", "bpe", "bin") if (folder / name).exists()]
    if not stages:
        return
    kept = read(folder)
    if kept is None:
        raise UsageError(
            f"{folder / stages[0]} exists and was not written by `modular-fairseq prepare`; give another "
            "--out"
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
