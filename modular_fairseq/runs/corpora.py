"""Commands prepare corpora with this module: from raw text, or as toy corpora in place of the papers'."""

import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import Name
from modular_fairseq_cli.processes import python_module, say
from modular_fairseq_cli.toy_corpus.classes import KINDS

# For each corpus of the tables: the seed of its toy corpus, the source language ("": a text in English, for
# language models; or the kind of a classification, or of pictures), and options of `modular-fairseq prepare`
# or prepare-pixels.
TOYS = {
    "iwslt14.de-en": (1, "de", "--bpe-merges 1000 --separate-dictionaries"),
    "wmt14.en-de": (2, "de", "--keep-case --bpe-merges 1000"),
    "wmt14.en-de.40k": (2, "de", "--keep-case --bpe-merges 1500"),
    "iwslt14.de-en.like-wmt14": (1, "de", "--like wmt14.en-de"),
    "multi30k.de-en": (4, "de", "--bpe-merges 1000"),
    "iwslt14-seventh.de-en": (5, "de", "--bpe-merges 1000"),
    "multi30k.de-en.like-iwslt14-seventh": (4, "de", "--like iwslt14-seventh.de-en"),
    "wmt17.zh-en": (3, "zh", "--keep-case --separate-dictionaries --vocab-size 600"),
    "wikitext-103": (6, "", "--words"),
    "books": (7, "", "--bpe-merges 1000"),
    "books-wiki": (8, "", "--lowercase --bpe-merges 1000"),
    "glue.mnli": (9, "entailment", "--like books-wiki"),
    "glue.qnli": (10, "topic", "--like books-wiki"),
    "glue.sst-2": (11, "plural", "--like books-wiki"),
    "glue.sts-b": (12, "similarity", "--like books-wiki --values"),
    "pixels-pairs": (13, "pairs", "--size 8x8 --grey --colours 16"),
    "pixels-photos": (14, "photos", "--size 8x8 --colours 16"),
}
PICTURES = ("pairs", "photos")  # pictures of two sources, and of one


def prepare_raw(folder: Name, source: str, target: str, out: Name, *words: str) -> None:
    """Prepare raw text for fairseq-train by `modular-fairseq prepare raw`, which skips finished steps.

    Args:
        folder: folder of the text files {train,valid,test}.{SOURCE,TARGET}.
        source, target: the languages, which are the suffixes of the files.
        out: folder of the prepared corpus.
        words: further options of the command.

    Raises:
        UsageError: the command failed. It has written the reason to standard error.
    """
    languages = ["--source-lang", source, "--target-lang", target]
    call_command("prepare", "raw", folder, *languages, "--out", out, *words)


def make_toys(data: Name, names: Iterable[str]) -> None:
    """Make toy corpora that stand in for corpora of the papers. German stands in for Chinese, too.

    Finished corpora are left as they are, and a killed call is continued.

    Args:
        data: folder of all corpora.
        names: names of the corpora, which are keys of `TOYS`.

    Raises:
        UsageError: a name is not in `TOYS`, or a command failed.
    """
    for name in names:
        if name not in TOYS:
            raise UsageError(f"--scale smoke has no toy corpus in place of {name}; give --data")
        seed, source, words = TOYS[name]
        folder, options = Path(data, name), words.split()
        if options[0] == "--like":
            make_toys(data, [options[1]])
            options[1] = str(Path(data, options[1]))
        text = Path(f"{folder}.text")
        if not (text / "done").exists():
            sizes = ["--train", 4800, "--valid", 100, "--test", 100]
            kind = [] if source else ["--documents"]
            if source in KINDS:
                kind = ["--classes", source]
            elif source in PICTURES:
                kind = ["--pictures"]
            call_command("toy-corpus", text, *sizes, "--seed", seed, *kind)
            for side in ("input0", "input1", "label") if source == "entailment" else ():
                shutil.move(text / f"test.{side}", text / f"valid1.{side}")  # MNLI has two validation sets
            for split in ("train", "valid", "test") if source == "zh" else ():
                shutil.copyfile(text / f"{split}.de", text / f"{split}.zh")
            (text / "done").touch()
        say(f"preparing {folder} from the toy corpus")
        if source in PICTURES:
            files = [text / "strokes.idx", "--right"] if source == "pairs" else []
            numbers = ("--valid", 100, "--test", 100)
            call_command("prepare-pixels", *files, text / "textures.npz", "--out", folder, *numbers, *options)
        elif source in KINDS:
            call_command("prepare", "classes", text, "--out", folder, *options)
        elif source:
            prepare_raw(text, source, "en", folder, *options)
        else:
            call_command("prepare", "text", text, "--out", folder, *options)


def call_command(*words: object) -> None:
    """Run a command of modular-fairseq, with its output on standard error.

    Raises:
        UsageError: the command failed.
    """
    command = [*python_module("modular_fairseq_cli"), *map(str, words)]
    if subprocess.run(command, stdout=sys.__stderr__, preexec_fn=lifetime.before_exec()).returncode:
        raise UsageError(f"modular-fairseq {shlex.join(map(str, words))} failed; its output above says why")
