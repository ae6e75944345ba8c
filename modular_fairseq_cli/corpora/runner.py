"""Runs the stages, one after the other. A stage is a folder: it is written as NAME.part..., renamed when it
is whole, and skipped when it is there.

So a run that was killed at any moment goes on at the stage where it was, and ends with the same bytes.
"""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path

from modular_fairseq_cli.corpora import settings
from modular_fairseq_cli.corpora.binarize import binarize
from modular_fairseq_cli.corpora.fetch import open_archives
from modular_fairseq_cli.corpora.recipe import Recipe
from modular_fairseq_cli.corpora.subwords import subwords
from modular_fairseq_cli.corpora.texts import input_files, text
from modular_fairseq_cli.corpora.tokens import tokenize
from modular_fairseq_cli.files import lock
from modular_fairseq_cli.processes import say

WAIT = 10  # seconds for the workers of a killed run to notice


def run(recipe: Recipe, user: Namespace) -> None:
    """Prepare a data set.

    Args:
        user: what `options.parse` returned.

    Raises:
        UsageError: something is wrong with the data, with its archives, or with the folder.
    """
    chosen = settings.choose(recipe, user)
    out = user.out
    kept = (settings.read(out) or {}) if out.is_dir() else {}
    if recipe.text == "folder":
        languages = (chosen["source_lang"], chosen["target_lang"])
        chosen["files"] = input_files(user.folder, languages, kept.get("files", {}))
    finished = (out / "bin").is_dir()
    archives = Path(os.path.normpath(out / ".." / "archives"))
    if not finished:
        announce(recipe, user, out, archives)
    out.mkdir(parents=True, exist_ok=True)
    # The workers of a killed run hold its lock until they have ended.
    with lock(
        out / ".lock", f"{out} is being prepared by another run; wait until it has ended", seconds=WAIT
    ):
        settings.compare(out, chosen)
        if finished:
            sys.stderr.write(f"{user.name}: {out} is prepared; nothing to do\n")
            return
        stage(out, "text", lambda part: begin(recipe, chosen, user, out, archives, part))
        if recipe.tokens:
            stage(out, "tok", lambda part: tokenize(chosen, user, out, part))
            stage(out, "bpe", lambda part: subwords(chosen, user, out, part))
        stage(out, "bin", lambda part: binarize(chosen, user, out, part))
    say(f"{out / 'bin'} is ready for fairseq-train")


def announce(recipe: Recipe, user: Namespace, out: Path, archives: Path) -> None:
    """Say what will be fetched, from where, how large it is, and under which licence."""
    lines = [f"{user.name}: prepares {recipe.data_set} in {out}"]
    for source in recipe.sources:
        if given := user.archives.get(source.name):
            lines.append(f"  {source.name} is given: {given}")
        elif (archives / source.name).exists():
            lines.append(f"  {source.name} is there already: {archives / source.name}")
        else:
            lines.append(f"  fetches {source}")
    for name in filter(None, (recipe.valid, recipe.test)):
        lines.append(
            f"  fetches sacrebleu's test set {name}, unless it is there already (size not published; checked "
            "by sacrebleu)"
        )
    if recipe.licence:
        lines.append(f"  licence: {recipe.licence}")
    sys.stderr.write("\n".join(lines) + "\n")


def begin(recipe: Recipe, chosen: dict, user: Namespace, out: Path, archives: Path, part: Path) -> None:
    """Run the first stage. From its end on the folder belongs to these settings; until then text that was
    refused may be corrected.
    """
    with open_archives(recipe.sources, user.archives, archives) as paths:
        text(recipe, chosen, user, paths, part)
    settings.write(out, chosen)


def stage(out: Path, name: str, make: Callable[[Path], None]) -> None:
    if (out / name).is_dir():
        return
    for old in out.glob(f"{name}.part*"):
        shutil.rmtree(old, ignore_errors=True)
    # A program that outlived a killed run goes on writing to the old name.
    part = out / f"{name}.part{os.getpid()}"
    part.mkdir()
    try:
        make(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    os.replace(part, out / name)
