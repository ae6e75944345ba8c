"""The stage text/ turns archives, test sets and folders into {train,valid,test}.LANG, one sentence a line.

Each kind of corpus has a function here, which a recipe names by its key `text`. Text in one language has the
ending txt instead of a language, and a file of its documents beside each split. This stage refuses sides with
different numbers of lines, text that is not UTF-8, and empty sentences in parallel validation and test sets.
Messages name the files as the user knows them.
"""

import itertools
import re
import subprocess
from argparse import Namespace
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.corpora.archives import Opener, open_archive
from modular_fairseq_cli.corpora.documents import Documents
from modular_fairseq_cli.corpora.labels import classes, glue, same_document
from modular_fairseq_cli.corpora.lines import Side, check_pair, is_visible, read_lines, write_lines
from modular_fairseq_cli.corpora.recipe import Recipe
from modular_fairseq_cli.corpora.settings import SPLITS, endings_of_files, files_of, splits
from modular_fairseq_cli.corpora.user_files import find, read_file
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest
from modular_fairseq_cli.processes import say

# The sets that together are the test set of IWSLT14, in the order of fairseq's recipe.
TALKS_TEST = ["TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012"]
TALKS_METADATA = re.compile(r"<(url|talkid|keywords|speaker|reviewer|translator|doc)\b|</doc>")
TALKS_KEPT_TAG = re.compile(r"</?(title|description)>")
SEGMENT = re.compile(r"<seg id[^>]*>\s*(.*?)\s*(</seg>.*)?$")


def text(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write the text of a recipe.

    Args:
        recipe: the recipe; its key `text` names the function that is called with the same arguments.
        settings: see `settings.choose`.
        user: `folder` has the user's own text.
        archives: the path of each archive, by its official name.
        part: the folder in which this stage writes.

    Raises:
        UsageError: the text is refused, or a test set cannot be fetched.
    """
    kinds = {
        "talks": talks,
        "news": news,
        "folder": folder,
        "articles": articles,
        "plain": plain,
        "books": books,
        "classes": classes,
        "glue": glue,
        "same_document": same_document,
    }
    kinds[recipe.text](recipe, settings, user, archives, part)


def talks(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write the talks of IWSLT14: train from tagged text, test from XML.

    The stage tok/ takes validation pairs from train.
    """
    name = recipe.sources[0].name
    languages = (settings["source_lang"], settings["target_lang"])
    with open_archive(archives[name], name) as member:
        train = [f"de-en/train.tags.de-en.{lang}" for lang in languages]
        write_pair(
            part,
            "train",
            languages,
            [(f"{name}, {path}", tagged(member, path, name)) for path in train],
            blank_lines=True,
        )
        for test in TALKS_TEST:
            paths = [f"de-en/IWSLT14.{test}.de-en.{lang}.xml" for lang in languages]
            write_pair(
                part,
                "test",
                languages,
                [(f"{name}, {path} (sentences)", segments(member, path, name)) for path in paths],
            )


def tagged(member: Opener, path: str, archive: str) -> Iterator[str]:
    """Yield the sentences of the talks, with their titles and descriptions, from tagged text."""
    for line in read_lines(member(path), f"{archive}, {path}"):
        if not TALKS_METADATA.search(line):
            yield TALKS_KEPT_TAG.sub("", line)


def segments(member: Opener, path: str, archive: str) -> Iterator[str]:
    """Yield the content of the <seg> elements of a test set.

    Entities such as &amp; are not resolved, as in fairseq's recipe.
    """
    for line in read_lines(member(path), f"{archive}, {path}"):
        if match := SEGMENT.search(line):
            yield match[1].replace("’", "'")


def news(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write the news of WMT: train from several archives, valid and test from test sets of sacrebleu.

    With `valid_every`, valid is not written, as the stage tok/ takes validation pairs from train.
    """
    languages = (settings["source_lang"], settings["target_lang"])
    for name, prefix in recipe.train:
        with open_archive(archives[name], name) as member:
            sides = [
                (
                    f"{name}, {prefix}.{lang}",
                    read_lines(member(f"{prefix}.{lang}"), f"{name}, {prefix}.{lang}"),
                )
                for lang in languages
            ]
            write_pair(part, "train", languages, sides, blank_lines=True)
    for split in ("valid", "test"):
        if not (split == "valid" and settings["valid_every"]):
            test_set = getattr(recipe, split)
            sides = [
                (f"sacrebleu's {test_set}, {field}", sacrebleu_lines(test_set, "-".join(languages), field))
                for field in ("src", "ref")
            ]
            write_pair(part, split, languages, sides)


def sacrebleu_lines(test_set: str, pair: str, field: str) -> Iterator[str]:
    """Yield one side of a test set of sacrebleu.

    sacrebleu downloads and checks the test set, and keeps it in $SACREBLEU or ~/.sacrebleu.

    Args:
        test_set: sacrebleu's name of the test set, such as "wmt14/full".
        pair: the languages, such as "en-de".
        field: "src" or "ref".

    Raises:
        UsageError: sacrebleu cannot deliver the test set.
    """
    result = subprocess.run(
        lifetime.command("sacrebleu", "-t", test_set, "-l", pair, "--echo", field), capture_output=True
    )
    if result.returncode or not result.stdout:
        why = result.stderr.decode(errors="replace").strip().splitlines()[-1:] or ["it printed nothing"]
        shown = f"sacrebleu -t {test_set} -l {pair} --echo {field}"
        raise UsageError(
            f"`{shown}` could not deliver the test set ({why[0]}); mend that, and the same command continues"
        )
    yield from read_lines(result.stdout.removesuffix(b"\n").split(b"\n"), f"sacrebleu's {test_set}, {field}")


def folder(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write the text of the user's folder: {train,valid,test}.LANG, or the same names with .gz.

    With `train_files`, training files have these names. With `valid_last` = N, only the last N pairs of valid
    are for validation, and the others are for training.
    """
    languages = (settings["source_lang"], settings["target_lang"])
    last = settings.get("valid_last", 0)

    def sides(name: str) -> list[tuple[str, Iterator[str]]]:
        paths = [find(user.folder, name, lang) for lang in languages]
        return [(str(path), read_lines(read_file(path), str(path))) for path in paths]

    for name in files_of(settings, "train"):
        write_pair(part, "train", languages, sides(name), blank_lines=True)
    if last:
        names, lines = zip(*((name, list(side)) for name, side in sides("valid")), strict=True)
        source, target = (Side(name, len(side)) for name, side in zip(names, lines, strict=True))
        check_pair(source, target, blank_lines=True)
        if last >= len(lines[0]):
            raise UsageError(
                f"--valid-last {last}: {names[0]} has {len(lines[0])} lines; give a smaller number, or leave "
                "the option out"
            )
        for split, these in ("train", slice(-last)), ("valid", slice(-last, None)):
            write_pair(
                part,
                split,
                languages,
                [
                    (f"{name} (the {split} part)", iter(side[these]))
                    for name, side in zip(names, lines, strict=True)
                ],
                blank_lines=split == "train",
            )
    else:
        write_pair(part, "valid", languages, sides("valid"))
    write_pair(part, "test", languages, sides("test"))


def input_files(
    folder: Path, settings: dict[str, Any], kept: dict[str, dict[str, Any]]
) -> dict[str, dict[str, Any]]:
    """Return what identifies each input file, by its name, such as train.de.

    The values have the keys "bytes" (size), "modified" (time of the last change in ns) and "sha256". A file
    whose content is the same keeps the values of `kept`.

    Args:
        folder: the user's folder.
        settings: see `settings.choose`.
        kept: what an earlier call returned; a file that has the same size and time is not read again.

    Raises:
        UsageError: a file is missing.
    """
    files = {}
    # The splits of one text are no files.
    named = ("train",) if "held_out" in settings else splits(settings)
    for stem in (name for split in named for name in files_of(settings, split)):
        for lang in endings_of_files(settings):
            path = find(folder, stem, lang)
            state = path.stat()
            seen = {"bytes": state.st_size, "modified": state.st_mtime_ns}
            known = kept.get(f"{stem}.{lang}", {})
            if not seen.items() <= known.items() and (found := digest(path)) != known.get("sha256"):
                known = seen | {"sha256": found}
            files[f"{stem}.{lang}"] = known
    return files


def articles(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write the articles of WikiText: the token files as they were published."""
    name = recipe.sources[0].name
    with open_archive(archives[name], name) as member:
        for split in SPLITS:
            path = f"{recipe.data_set}/wiki.{split}.tokens"
            write_documents(
                part, split, [read_lines(member(path), f"{name}, {path}")], documents(recipe, settings)
            )


def plain(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write text in one language of the user's folder: {train,valid,test}.txt, or the same names with .gz.

    With `train_files` and the like, the files of a split have these names.
    """
    for split in SPLITS:
        paths = [find(user.folder, name, "txt") for name in files_of(settings, split)]
        texts = [read_lines(read_file(path), str(path)) for path in paths]
        write_documents(part, split, texts, documents(recipe, settings))


def books(
    recipe: Recipe, settings: dict[str, Any], user: Namespace, archives: dict[str, Path], part: Path
) -> None:
    """Write the splits of one long text: its beginning for training, and its end for validation and test.

    The first `percent` % of the lines are train. The last `held_out` lines are test, and as many before them
    are valid. Blank lines do not count. They tell where documents begin, so those inside of a split are kept.

    Raises:
        UsageError: the splits would overlap.
    """
    paths = [find(user.folder, name, "txt") for name in settings["train_files"]]
    lines = sum(is_visible(line) for path in paths for line in read_lines(read_file(path), str(path)))
    held_out, end = settings["held_out"], lines * settings["percent"] // 100
    if not 0 < end <= lines - 2 * held_out:
        raise UsageError(
            f"{user.folder}: of {lines:,} lines with text, {settings['percent']} % cannot be for training "
            f"and twice {held_out:,} for validation and test; give another --percent or --held-out, or more "
            "text"
        )
    for split, begin, stop in (
        ("train", 0, end),
        ("valid", lines - 2 * held_out, lines - held_out),
        ("test", lines - held_out, lines),
    ):
        text = itertools.chain.from_iterable(read_lines(read_file(path), str(path)) for path in paths)
        write_documents(part, split, [between(text, begin, stop)], documents(recipe, settings))


def between(lines: Iterable[str], begin: int, stop: int) -> Iterator[str]:
    """Yield what `itertools.islice` yields, but count only visible lines.

    Blank lines between two visible ones are yielded, too.
    """
    seen = 0
    for line in lines:
        seen += is_visible(line)
        if seen > begin:
            yield line
        if seen == stop:
            return


def documents(recipe: Recipe, settings: dict[str, Any]) -> str:
    """Return the rule that tells where documents begin."""
    rule = settings.get("documents", recipe.documents)
    assert rule is not None  # each recipe of text in one language has a rule
    return rule


def write_documents(part: Path, split: str, texts: list[Iterator[str]], rule: str) -> None:
    """Write one text after the other to a split, and the lengths of their documents."""
    lengths = ""
    for text in texts:
        found = Documents(rule)
        with (part / f"{split}.txt").open("ab") as out:
            side = write_lines(found.count(text), out, split)
        lengths += found.text()
        one = "; check --documents, the rule by which documents begin" if len(found.lengths) == 1 else ""
        say(f"{split}: {side.lines:,} lines, documents: {len(found.lengths):,}{one}")
    (part / f"{split}.documents").write_text(lengths, encoding="utf-8")


def write_pair(
    part: Path,
    split: str,
    languages: tuple[str, str],
    sides: list[tuple[str, Iterator[str]]],
    blank_lines: bool = False,
) -> None:
    """Append a parallel text to the files of a split.

    Args:
        part: the folder of the files.
        split: "train", "valid" or "test".
        languages: source and target.
        sides: for each language the name of the text in messages, and its lines.
        blank_lines: allow blank lines.

    Raises:
        UsageError: the sides differ in length, or have blank lines that are not allowed.
    """
    written: list[Side] = []
    for lang, (name, lines) in zip(languages, sides, strict=True):
        with (part / f"{split}.{lang}").open("ab") as out:
            written.append(write_lines(lines, out, name))
    source, target = written
    check_pair(source, target, blank_lines)
    say(f"{split}: {source.lines:,} pairs from {source.name}")
