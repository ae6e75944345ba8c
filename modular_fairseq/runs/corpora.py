"""Corpora that plans prepare themselves: raw text, and toys that stand in for the papers' corpora."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say
from modular_fairseq_cli.shipped import configs

# For each corpus of the tables: the seed of the toy corpus, the source language, and words for `prepare_raw`.
TOYS = {
    "iwslt14.de-en": (1, "de", "--bpe-merges 1000 --separate-dictionaries"),
    "wmt14.en-de": (2, "de", "--keep-case --bpe-merges 1000"),
    "wmt14.en-de.40k": (2, "de", "--keep-case --bpe-merges 1500"),
    "iwslt14.de-en.like-wmt14": (1, "de", "--like wmt14.en-de"),
    "wmt17.zh-en": (3, "zh", "--keep-case --separate-dictionaries --vocab-size 600"),
}


def prepare_raw(
    folder: str | os.PathLike, source: str, target: str, out: str | os.PathLike, *words: str
) -> None:
    """Prepare a folder with raw {train,valid,test}.{SOURCE,TARGET} as data-prep/prepare-raw.sh does; what is
    done already is not done again.

    Raises:
        UsageError: something is wrong with the text; what it is has been said.
    """
    script = configs().parent / "data-prep" / "prepare-raw.sh"
    _call("bash", script, folder, "--source-lang", source, "--target-lang", target, "--out", out, *words)


def make_toys(data: str | os.PathLike, names: Iterable[str]) -> None:
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
            _call(sys.executable, "-m", "modular_fairseq_cli", "toy-corpus", text, *sizes, "--seed", seed)
            for split in ("train", "valid", "test"):
                shutil.copyfile(text / f"{split}.de", text / f"{split}.zh")
            (text / "done").touch()
        say(f"preparing {folder} from the toy corpus")
        prepare_raw(text, source, "en", folder, *options)


def _call(*command: object) -> None:
    """Run a command whose output goes to standard error."""
    words = [str(word) for word in command]
    if subprocess.run(words, stdout=sys.__stderr__, preexec_fn=lifetime.before_exec()).returncode:
        raise UsageError(f"{' '.join(words)}: failed; what it says is above")
