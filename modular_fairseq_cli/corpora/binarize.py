"""The stage bin/ runs fairseq-preprocess, and checks that every sentence was binarized."""

import re
import shutil
import struct
import subprocess
from argparse import Namespace
from collections import Counter
from pathlib import Path
from typing import Any

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.corpora.settings import splits, suffixes
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

LINES_A_WORKER = 5000  # starting another process takes longer than binarizing fewer lines
SYMBOLS = 4  # of fairseq, before the types of each dictionary
OWN_SYMBOL = re.compile(rb"(?<![^ \t])(?:<s>|</s>|<pad>)(?![^ \t\r\n])")


def binarize(settings: dict[str, Any], user: Namespace, out: Path, part: Path) -> None:
    """Binarize the three splits of the data set in `out`: its sub-words, or its text if it has no sub-words.

    Args:
        settings: see `settings.choose`; with `like`, the dictionaries of that folder are used. A dictionary
            of text in one language has at most `dictionary_size` types.
        user: `workers` is the largest number of processes.
        out: the folder of the data set, which gets preprocess.log.
        part: the folder in which fairseq-preprocess writes.

    Raises:
        UsageError: fairseq-preprocess failed, or wrote fewer sentences than there are lines.
    """
    if settings.get("inputs"):
        binarize_classes(settings, user, out, part)
        return
    source, target = settings["source_lang"], settings["target_lang"]
    stage = out / ("bpe" if settings.get("tokens") else "text")
    like = Path(settings["like"]) / "bin" if settings.get("like") else None
    if source:
        names = {split: stage / split for split in ("train", "valid", "test")}
        arguments = ["--source-lang", source, "--target-lang", target]
        if like:
            dictionaries = [str(like / f"dict.{lang}.txt") for lang in (source, target)]
            arguments += ["--srcdict", dictionaries[0], "--tgtdict", dictionaries[1]]
        elif settings["dictionaries"] == "joined":
            arguments += ["--joined-dictionary"]
        counted = [
            (split, f"{split}.{source}-{target}.{lang}", f"{split}.{lang}")
            for split in names
            for lang in (source, target)
        ]
    else:
        names = {split: stage / f"{split}.txt" for split in ("train", "valid", "test")}
        arguments = ["--only-source", *(["--srcdict", str(like / "dict.txt")] if like else [])]
        if size := settings.get("dictionary_size"):
            arguments += ["--nwordssrc", str(size)]
        counted = [(split, split, path.name) for split, path in names.items()]
    preprocess(names, counted, arguments, user, out, part)
    for path in sorted(part.glob("dict.*txt")):
        say(f"bin/{path.name}: {count_lines(path):,} types")


def preprocess(
    names: dict[str, Path],
    counted: list[tuple[str, str, str]],
    arguments: list[str],
    user: Namespace,
    out: Path,
    part: Path,
) -> None:
    """Run fairseq-preprocess, and check that every sentence was binarized.

    Args:
        names: for each split, what fairseq-preprocess gets as its name.
        counted: for each file to check its split, the name of its index, and the name of its text.
        arguments: further options of fairseq-preprocess.
        user: `workers` is the largest number of processes.
        out: the folder of the data set, which gets preprocess.log.
        part: the folder in which fairseq-preprocess writes.

    Raises:
        UsageError: fairseq-preprocess failed, or wrote fewer sentences than there are lines.
    """
    folder = names["train"].parent
    lines = {name: count_lines(folder / name) for _, _, name in counted}
    for name in lines:
        if found := count_symbols(folder / name):
            say(
                f"{folder / name}: {found:,} of its words are <s>, </s> or <pad>, which fairseq takes for "
                "symbols of its own; remove them from the text, or write them in another way"
            )
    workers = min(user.workers, 1 + max(lines.values()) // LINES_A_WORKER)
    words: dict[str, list[str]] = {}
    for split, path in names.items():  # fairseq calls a second validation set valid1
        words.setdefault(f"--{split.rstrip('1')}pref", []).append(str(path))
    given = [word for option, paths in words.items() for word in (option, ",".join(paths))]
    say(f"fairseq-preprocess with {workers} {'processes' if workers > 1 else 'process'}")
    command = [*arguments, *given, "--workers", str(workers), "--destdir", str(part)]
    run_preprocess(command, out / "preprocess.log")
    # fairseq's own log repeats out/preprocess.log, and names the folder `part`, which is renamed.
    (part / "preprocess.log").unlink(missing_ok=True)
    for _, binary, name in counted:
        found = count_sentences(part / f"{binary}.idx")
        if found != lines[name]:
            raise UsageError(
                f"{folder / name} has {lines[name]} lines, and fairseq-preprocess wrote {found} of them; see "
                f"{out / 'preprocess.log'}"
            )


def binarize_classes(settings: dict[str, Any], user: Namespace, out: Path, part: Path) -> None:
    """Binarize a classification: a folder for each input, and one for the labels; see `binarize`.

    Inputs have the dictionary of the folder `like`. Labels have one of their own (see `write_classes`).
    Values are no words, so they are copied.
    """
    for kind in (*suffixes(settings), "label"):
        stage = out / ("text" if kind == "label" else "bpe")
        names = {split: stage / f"{split}.{kind}" for split in splits(settings)}
        folder = part / kind
        folder.mkdir()
        if kind == "label" and settings["values"]:
            for split, path in names.items():
                shutil.copyfile(path, folder / f"{split}.label")
            continue
        dictionary = Path(settings["like"]) / "bin" / "dict.txt"
        if kind == "label":
            dictionary = folder / "dict.txt"
            known = write_classes(names["train"], dictionary)
        counted = [(split, split, path.name) for split, path in names.items()]
        preprocess(names, counted, ["--only-source", "--srcdict", str(dictionary)], user, out, folder)
        if kind == "label":
            shown = ", ".join([*known[:5], *(["..."] if len(known) > 5 else [])])
            say(f"bin/label/dict.txt: {len(known):,} classes: {shown}")
        else:
            say(f"bin/{kind}/dict.txt: {count_lines(folder / 'dict.txt'):,} types")


def write_classes(labels: Path, dictionary: Path) -> list[str]:
    """Write the dictionary of the classes that a file has, a label in each line, and return the classes.

    The classes are sorted by their names. fairseq-preprocess would sort them by their frequency, so that the
    numbers of the same classes would differ between corpora. As in its dictionaries, made-up types fill the
    dictionary up to a multiple of 8 types.
    """
    with labels.open(encoding="utf-8") as file:
        counts = Counter(line.strip() for line in file)
    types = sorted(counts.items())
    types += [(f"madeupword{number:04}", 0) for number in range(-(SYMBOLS + len(types)) % 8)]
    dictionary.write_text("".join(f"{name} {count}\n" for name, count in types), encoding="utf-8")
    return sorted(counts)


def run_preprocess(arguments: list[str], log: Path) -> None:
    """Run fairseq-preprocess with its output in `log`. Raises UsageError, with its last line, if it fails."""
    with log.open("wb") as file:
        command = lifetime.command("fairseq_cli.preprocess", *arguments)
        code = subprocess.run(command, stdout=file, stderr=subprocess.STDOUT).returncode
    if code:
        last = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()[-1:] or [
            f"exit code {code}"
        ]
        raise UsageError(f"fairseq-preprocess failed ({last[0]}); its whole output is in {log}")


def count_lines(path: Path) -> int:
    """Return the number of lines of a file."""
    with path.open("rb") as file:
        return sum(1 for _ in file)


def count_symbols(path: Path) -> int:
    """Return how many words of a file are symbols of fairseq, but for <unk>, which texts may have."""
    with path.open("rb") as file:
        return sum(len(OWN_SYMBOL.findall(line)) for line in file)


def count_sentences(index: Path) -> int:
    """Return the number of sentences that fairseq's memory-mapped index (.idx) announces.

    The index begins with a magic word (9 bytes), its version (8), a code for the type of the numbers (1), and
    the number of sentences (8, little-endian).
    """
    with index.open("rb") as file:
        return struct.unpack("<9sQBQ", file.read(26))[3]
