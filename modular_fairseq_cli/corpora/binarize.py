"""The stage bin/ runs fairseq-preprocess, and checks that every sentence was binarized."""

import struct
import subprocess
from argparse import Namespace
from pathlib import Path
from typing import Any

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

LINES_A_WORKER = 5000  # starting another process takes longer than binarizing fewer lines


def binarize(settings: dict[str, Any], user: Namespace, out: Path, part: Path) -> None:
    """Binarize the three splits of the data set in `out`: its sub-words, or its text if it has no sub-words.

    Args:
        settings: see `settings.choose`; with `like`, the dictionaries of that folder are used.
        user: `workers` is the largest number of processes.
        out: the folder of the data set, which gets preprocess.log.
        part: the folder in which fairseq-preprocess writes.

    Raises:
        UsageError: fairseq-preprocess failed, or wrote fewer sentences than there are lines.
    """
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
        counted = [(split, split, path.name) for split, path in names.items()]
    folder = names["train"].parent
    lines = {name: count_lines(folder / name) for _, _, name in counted}
    workers = min(user.workers, 1 + max(lines.values()) // LINES_A_WORKER)
    for split, path in names.items():
        arguments += [f"--{split}pref", str(path)]
    say(f"fairseq-preprocess with {workers} {'processes' if workers > 1 else 'process'}")
    run_preprocess([*arguments, "--workers", str(workers), "--destdir", str(part)], out / "preprocess.log")
    # fairseq's own log repeats out/preprocess.log, and names the folder `part`, which is renamed.
    (part / "preprocess.log").unlink(missing_ok=True)
    for _, binary, name in counted:
        found = count_sentences(part / f"{binary}.idx")
        if found != lines[name]:
            raise UsageError(
                f"{folder / name} has {lines[name]} lines, and fairseq-preprocess wrote {found} of them; see "
                f"{out / 'preprocess.log'}"
            )
    for path in sorted(part.glob("dict.*txt")):
        say(f"bin/{path.name}: {count_lines(path):,} types")


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


def count_sentences(index: Path) -> int:
    """Return the number of sentences that fairseq's memory-mapped index (.idx) announces.

    The index begins with a magic word (9 bytes), its version (8), a code for the type of the numbers (1), and
    the number of sentences (8, little-endian).
    """
    with index.open("rb") as file:
        return struct.unpack("<9sQBQ", file.read(26))[3]
