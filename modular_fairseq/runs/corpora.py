"""Corpora that plans prepare themselves: raw text, and toys that stand in for the papers' corpora."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import Name
from modular_fairseq_cli.processes import say

# For each corpus of the tables: the seed of the toy corpus, the source language, and words for `prepare_raw`.
TOYS = {
    "iwslt14.de-en": (1, "de", "--bpe-merges 1000 --separate-dictionaries"),
    "wmt14.en-de": (2, "de", "--keep-case --bpe-merges 1000"),
    "wmt14.en-de.40k": (2, "de", "--keep-case --bpe-merges 1500"),
    "iwslt14.de-en.like-wmt14": (1, "de", "--like wmt14.en-de"),
    "wmt17.zh-en": (3, "zh", "--keep-case --separate-dictionaries --vocab-size 600"),
}


def prepare_raw(folder: Name, source: str, target: str, out: Name, *words: str) -> None:
    """Prepare a folder with raw {train,valid,test}.{SOURCE,TARGET} as `modular-fairseq prepare raw` does;
    what is done is not done again.

    Raises:
        UsageError: something is wrong with the text; what it is has been said.
    """
    languages = ["--source-lang", source, "--target-lang", target]
    _call("prepare", "raw", folder, *languages, "--out", out, *words)


def make_toys(data: Name, names: Iterable[str]) -> None:
    """Make small stand-ins for corpora of the papers, from the toy corpus. German stands for Chinese, too.

    Args:
        data: the folder for all of them. What is there is left alone; a killed call is continued.
        names: keys of `TOYS`.

    Raises:
        UsageError: another name.
    """
    for name in names:
        if name not in TOYS:
            raise UsageError(f"--scale smoke has no stand-in for the corpus {name}; give --data")
        seed, source, words = TOYS[name]
        folder, options = Path(data, name), words.split()
        if options[0] == "--like":
            make_toys(data, [options[1]])
            options[1] = str(Path(data, options[1]))
        text = Path(f"{folder}.text")
        if not (text / "done").exists():
            sizes = ["--train", 4800, "--valid", 100, "--test", 100]
            _call("toy-corpus", text, *sizes, "--seed", seed)
            for split in ("train", "valid", "test"):
                shutil.copyfile(text / f"{split}.de", text / f"{split}.zh")
            (text / "done").touch()
        say(f"preparing {folder} from the toy corpus")
        prepare_raw(text, source, "en", folder, *options)


def _call(*words: object) -> None:
    """Run a command of modular-fairseq; what it says goes to standard error."""
    command = [sys.executable, "-m", "modular_fairseq_cli", *map(str, words)]
    if subprocess.run(command, stdout=sys.__stderr__, preexec_fn=lifetime.before_exec()).returncode:
        raise UsageError(f"modular-fairseq {shlex.join(command[3:])} failed; what it says is above")
