"""The settings of a prepared folder: everything in the recipe and the options that affects its files.

They are kept in DIR/settings, so that a run never continues a folder with other settings.
"""

import json
from argparse import Namespace
from pathlib import Path
from typing import Any, TypeVar

from modular_fairseq_cli.corpora.recipe import Recipe
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, read_json, write_json

Value = TypeVar("Value")
SPLITS = ("train", "valid", "test")
CLASSIFIED = ("train", "valid", "valid1", "test")  # the splits that a classification may have
INPUTS = ("input0", "input1")

# The settings that --like takes from the other folder, and which cannot be given beside it.
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


def choose(recipe: Recipe, user: Namespace) -> dict[str, Any]:
    """Return the settings that follow from a recipe and the options of its user, ready for JSON.

    The keys are the fields of `Recipe`, and also "source_lang", "target_lang", "subwords" ("subword-nmt" or
    "sentencepiece"). "like" (the path of the other folder), "train_files" and the like, "documents",
    "dictionary_size" and "valid_last" are there only if the user or the recipe gives these options. Text in
    one language has None for both languages, and "language", the language of Moses' tokens. Data that is
    binarized as it is has none of what follows it. A classification has also "inputs" (the
    endings of its texts), "splits" and "values" (whether labels are values), and always "like".

    Raises:
        UsageError: --like does not name a finished folder with the same languages.
    """
    source, target = recipe.languages if recipe.languages[0] else (user.source_lang, user.target_lang)
    chosen: dict[str, Any] = {"data_set": recipe.data_set, "source_lang": source, "target_lang": target}
    if user.train or recipe.train_files:
        chosen["train_files"] = user.train.split(",") if user.train else recipe.train_files
    for split in ("valid", "test"):
        if names := getattr(user, f"{split}_files"):
            chosen[f"{split}_files"] = names.split(",")
    if recipe.percent:
        chosen |= {
            "percent": _first(user.percent, recipe.percent),
            "held_out": _first(user.held_out, recipe.held_out),
        }
    documents = user.documents if user.documents != recipe.documents else None
    if documents or (recipe.documents and recipe.label):
        chosen["documents"] = documents or recipe.documents
    if user.dictionary_size:
        chosen["dictionary_size"] = user.dictionary_size
    if not recipe.tokens or user.words:
        return chosen
    every = 100 if user.valid == "every-100th" else recipe.valid_every
    words = recipe.bpe_merges and user.vocab_size is None  # else sentencepiece, which works without words
    clean = recipe.clean
    chosen |= {
        "valid": f"every {every}{'rd' if every % 10 == 3 else 'th'} train pair"
        if every
        else recipe.valid or "given",
        "valid_every": every,
        "test": recipe.test or "given",
        "tokens": ("given" if user.tokenized else recipe.tokens) if words else "none",
        "normalize": _first(user.normalize, recipe.normalize),
        "aggressive_hyphens": recipe.aggressive_hyphens,
        "lowercase": _first(user.lowercase, recipe.lowercase),
        "clean": clean if words or clean is None else clean | {"unit": "subwords"},
        "subwords": "subword-nmt" if words else "sentencepiece",
        "bpe_merges": _first(user.bpe_merges, recipe.bpe_merges) if words else None,
        "vocab_size": _first(user.vocab_size, recipe.vocab_size),
        "dictionaries": _first(user.dictionaries, recipe.dictionaries if words else "separate"),
    }
    if user.valid_last:
        chosen["valid_last"] = user.valid_last
    if not source:
        chosen["language"] = user.language or "en"
    if recipe.label:
        chosen |= classification(recipe, user)
        return chosen | like(user.like, ("txt",))
    return chosen | (like(user.like, suffixes(chosen)) if user.like else {})


def classification(recipe: Recipe, user: Namespace) -> dict[str, Any]:
    """Return the settings that only a classification has: its inputs, its splits, and the kind of its labels.

    Those of a folder of the user follow from the files that are there.

    Raises:
        UsageError: a part has second inputs, and train has none.
    """
    if recipe.documents:
        inputs, splits = [*INPUTS], [*SPLITS]
    elif recipe.columns:
        inputs, splits = [f"input{number}" for number in range(len(recipe.columns))], [*recipe.members]
    else:
        inputs = [name for name in INPUTS if name == "input0" or has(user.folder, f"train.{name}")]
        for split in CLASSIFIED if "input1" not in inputs else ():
            if has(user.folder, f"{split}.input1"):
                raise UsageError(
                    f"{user.folder / 'train.input1'} is missing, but there is {split}.input1; add the second "
                    f"inputs of train, or remove {split}.input1"
                )
        splits = [
            split
            for split in CLASSIFIED
            if split in ("train", "valid") or has(user.folder, f"{split}.input0")
        ]
    return {"inputs": inputs, "splits": splits, "values": recipe.values or bool(user.values)}


def has(folder: Path, name: str) -> bool:
    """Return whether a folder has a file of this name, or the same with .gz."""
    return (folder / name).is_file() or (folder / f"{name}.gz").is_file()


def files_of(settings: dict[str, Any], split: str) -> list[str]:
    """Return the names of the user's files of a split, without their endings."""
    return settings.get(f"{split}_files", [split])


def endings_of_files(settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the endings of the user's files.

    A classification has labels beside its inputs, unless it is made from the documents of a text.
    """
    if not settings.get("inputs"):
        return suffixes(settings)
    return ("txt",) if "documents" in settings else (*settings["inputs"], "label")


def suffixes(settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the endings of the files of a corpus: source and target, or only txt for one language.

    Those of a classification are input0 and input1, or only input0.
    """
    languages = tuple(filter(None, (settings["source_lang"], settings["target_lang"])))
    return tuple(settings.get("inputs", ())) or languages or ("txt",)


def splits(settings: dict[str, Any]) -> tuple[str, ...]:
    """Return the names of the parts of a corpus."""
    return tuple(settings.get("splits", SPLITS))


def _first(value: Value | None, default: Value) -> Value:
    return default if value is None else value


def like(folder: Path, languages: tuple[str, ...]) -> dict[str, Any]:
    """Return the settings with which other text must be prepared for a model of a prepared folder.

    Args:
        folder: the prepared folder.
        languages: the endings of the files of the other text (see `suffixes`).

    Raises:
        UsageError: the folder is not finished, has no tokens, or has other languages.
    """
    kept = read(folder)
    if kept is None and read(folder.parent) is not None:
        raise UsageError(f"--like {folder}: give {folder.parent}, the folder that was prepared")
    if kept is None or "tokens" not in kept or not (folder / "bin").is_dir():
        raise UsageError(
            f"--like {folder}: is not a finished folder of `modular-fairseq prepare` with tokens; prepare it "
            "first"
        )
    others = suffixes(kept)
    if set(others) != set(languages):
        raise UsageError(
            f"--like {folder}: has {' and '.join(sorted(others))}, and this corpus is "
            f"{' and '.join(sorted(languages))}"
        )
    # The rule of this recipe may count tokens, which such text does not have.
    taken = [*FROM_LIKE, "clean"] if kept["tokens"] == "none" else [*FROM_LIKE]
    taken += ["language"] if "language" in kept else []
    # Tokens that were given are those of Moses.
    tokens = "moses" if kept["tokens"] == "given" else kept["tokens"]
    copied = [folder / "bpe" / "codes", *(folder / "bpe").glob("spm.*"), *(folder / "bin").glob("dict.*txt")]
    digests = {f"{path.parent.name}/{path.name}": digest(path) for path in sorted(copied) if path.is_file()}
    shared = {"tokens": tokens, "like": str(folder.resolve()), "like_files": digests}
    return {name: kept[name] for name in taken} | shared


def read(folder: Path) -> dict[str, Any] | None:
    """Return the settings that are recorded in a folder, or None if none are."""
    return read_json(folder / "settings", f"give another --out, or remove {folder}")


def write(folder: Path, chosen: dict[str, Any]) -> None:
    """Record the settings of a folder."""
    write_json(folder / "settings", chosen)


def compare(folder: Path, chosen: dict[str, Any]) -> None:
    """Raise UsageError if a stage of the folder is finished and its recorded settings are not `chosen`."""
    stages = [name for name in ("text", "raw", "tok", "bpe", "bin") if (folder / name).exists()]
    if not stages:
        return
    kept = read(folder)
    if kept is None:
        raise UsageError(
            f"{folder / stages[0]} exists and was not written by `modular-fairseq prepare`; give another "
            "--out"
        )
    remedy = f"give another folder, or remove {', '.join(stages)} and settings from {folder}"
    different = [name for name in {**chosen, **kept} if kept.get(name) != chosen.get(name)]
    if "like_files" not in kept and "like_files" in different:  # version 0.1 did not note them
        different.remove("like_files")
    if different == ["like_files"]:
        raise UsageError(
            f"{chosen['like']} was prepared again, with other sub-words or dictionaries, after {folder} was; "
            f"{remedy}"
        )
    if different == ["files"]:
        files, new_files = kept.get("files") or {}, chosen.get("files") or {}
        changed = next(file for file in {**new_files, **files} if files.get(file) != new_files.get(file))
        raise UsageError(f"{changed} is not the file that {folder} was prepared from; {remedy}")
    if different:
        shown = [
            f"{name.replace('_', ' ')} {_shown(kept.get(name))} (now {_shown(chosen.get(name))})"
            for name in different
            if name not in ("files", "like_files")
        ]
        raise UsageError(f"{folder} was prepared with {', '.join(shown[:3])}; {remedy}")


def _shown(value: Any) -> str:
    """Return a setting as a message shows it."""
    return "not given" if value is None else json.dumps(value, ensure_ascii=False)
