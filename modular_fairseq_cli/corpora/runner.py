"""Run the stages of `modular-fairseq prepare`, one after the other.

A stage writes one folder. The folder is called NAME.part... until it is complete, and a stage whose folder
exists is skipped. So a run can be killed at any moment. The next run continues at the unfinished stage, and
writes the same bytes as an uninterrupted run.
"""

import os
import shutil
import sys
from argparse import Namespace
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modular_fairseq_cli.corpora import settings
from modular_fairseq_cli.corpora.binarize import binarize
from modular_fairseq_cli.corpora.fetch import open_archives
from modular_fairseq_cli.corpora.recipe import Recipe
from modular_fairseq_cli.corpora.subwords import subwords
from modular_fairseq_cli.corpora.texts import input_files, text
from modular_fairseq_cli.corpora.tokens import tokenize
from modular_fairseq_cli.files import lock, make_folder
from modular_fairseq_cli.processes import say

WAIT = 10  # seconds in which the workers of a killed run end


def run(recipe: Recipe, user: Namespace) -> None:
    """Prepare a data set.

    Args:
        recipe: the recipe.
        user: the result of `options.parse`.

    Raises:
        UsageError: something is wrong with the data, the archives, or the folder to write.
    """
    chosen = settings.choose(recipe, user)
    out = user.out
    kept = (settings.read(out) or {}) if out.is_dir() else {}
    if "folder" in recipe.options:
        chosen["files"] = input_files(user.folder, chosen, kept.get("files", {}))
    finished = (out / "bin").is_dir()
    archives = Path(os.path.normpath(out / ".." / "archives"))
    if (out / "text").is_dir() and not finished:
        say(f"{user.name}: continues in {out}, which has its text already")
    elif not finished:
        announce(recipe, user, out, archives)
    make_folder(out)
    # The workers of a killed run hold its lock until they end.
    with lock(
        out / ".lock", f"{out} is being prepared by another run; wait until it has ended", seconds=WAIT
    ):
        settings.compare(out, chosen)
        if finished:
            sys.stderr.write(f"{user.name}: {out} is already prepared; nothing to do\n")
            return
        stage(out, "text", lambda part: begin(recipe, chosen, user, out, archives, part))
        if chosen.get("tokens"):
            stage(out, "tok", lambda part: tokenize(chosen, user, out, part))
            stage(out, "bpe", lambda part: subwords(chosen, user, out, part))
        stage(out, "bin", lambda part: binarize(chosen, user, out, part))
    say(f"{out / 'bin'} is ready for fairseq-train")


def announce(recipe: Recipe, user: Namespace, out: Path, archives: Path) -> None:
    """Say what will be fetched, from where, how large it is, and under which licence the data is."""
    lines = [f"{user.name}: prepares {recipe.data_set} in {out}"]
    for source in recipe.sources:
        if given := user.archives.get(source.name):
            lines.append(f"  {source.name} is given: {given}")
        elif (archives / source.name).exists():
            lines.append(f"  {source.name} exists: {archives / source.name}")
        else:
            lines.append(f"  fetches {source}")
    for name in filter(None, (recipe.valid, recipe.test)):
        lines.append(
            f"  fetches sacrebleu's test set {name}, unless sacrebleu has it (size not published; checked by "
            "sacrebleu)"
        )
    if recipe.licence:
        lines.append(f"  licence: {recipe.licence}")
    sys.stderr.write("\n".join(lines) + "\n")


def begin(
    recipe: Recipe, chosen: dict[str, Any], user: Namespace, out: Path, archives: Path, part: Path
) -> None:
    """Run the first stage, which writes the text into `part`, and then record the settings.

    Settings that are recorded cannot change any more. If the stage fails because of the text, none are
    recorded, so the text may be corrected.
    """
    with open_archives(recipe.sources, user.archives, archives) as paths:
        text(recipe, chosen, user, paths, part)
    settings.write(out, chosen)


def stage(out: Path, name: str, make: Callable[[Path], None]) -> None:
    """Let `make` write the folder `out`/`name`, unless it exists; a failure leaves nothing of it."""
    if (out / name).is_dir():
        return
    for old in out.glob(f"{name}.part*"):
        shutil.rmtree(old, ignore_errors=True)
    # A program that outlives a killed run still writes to the old name, so the new one differs.
    part = out / f"{name}.part{os.getpid()}"
    part.mkdir()
    try:
        make(part)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    os.replace(part, out / name)
