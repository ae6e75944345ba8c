"""The stage bpe/ learns sub-words from the training tokens, and splits the tokens of all splits into them.

subword-nmt learns joint merges for all languages (bpe/codes); sentencepiece learns a BPE model for each
language (bpe/spm.LANG.model). With --like, they are copied from the other folder. If the recipe limits
lengths in sub-words, training pairs are left out in this stage.
"""

import contextlib
import io
import itertools
import shutil
import sys
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modular_fairseq_cli.corpora.lines import join_block, read_chunks, split_block
from modular_fairseq_cli.corpora.parallel import map_blocks
from modular_fairseq_cli.corpora.progress import Progress
from modular_fairseq_cli.corpora.recipe import LengthRule
from modular_fairseq_cli.corpora.settings import splits, suffixes
from modular_fairseq_cli.corpora.tokens import CHUNK, keep, say_left_out, unfit
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

LONGEST_LINE = 1 << 30  # bytes; sentencepiece silently learns nothing from longer lines, by default of 4,192
MAX_WORDS = 500_000  # words that a process remembers: 150 MB, with those that subword-nmt itself remembers


def subwords(settings: dict[str, Any], user: Namespace, out: Path, part: Path) -> None:
    """Learn sub-words, or copy the models of --like, and write the sub-words of each split.

    Args:
        settings: see `settings.choose`.
        user: `workers` is the number of processes.
        out: the folder of the data set, which has tok/.
        part: the folder in which this stage writes.

    Raises:
        UsageError: sub-words cannot be learnt from this text, or no pair of a split is left.
    """
    languages = suffixes(settings)
    if settings.get("like"):
        copy_models(Path(settings["like"]) / "bpe", part)
    elif settings["subwords"] == "subword-nmt":
        learn_merges(
            [out / "tok" / f"train.{lang}" for lang in languages], settings["bpe_merges"], part / "codes"
        )
    else:
        for lang in languages:
            learn_pieces(
                out / "tok" / f"train.{lang}",
                settings.get("language", lang),
                settings["vocab_size"],
                user.workers,
                part / f"spm.{lang}.model",
            )
    models = ("txt",) * len(languages) if settings.get("inputs") else languages
    for split in splits(settings):
        progress = Progress(f"sub-words of {split}")
        left_out: Counter[str] = Counter()
        clean = settings["clean"]
        rule = clean if clean and split == "train" and clean["unit"] == "subwords" else None
        chunks = read_chunks([out / "tok" / f"{split}.{lang}" for lang in languages], CHUNK)
        with contextlib.ExitStack() as stack:
            files = [stack.enter_context((part / f"{split}.{lang}").open("wb")) for lang in languages]
            for lines, blocks, reasons in map_blocks(
                make_worker, (settings["subwords"], part, models, rule), chunks, user.workers
            ):
                for file, block in zip(files, blocks, strict=True):
                    file.write(block)
                left_out.update(reasons)
                progress.add(lines)
        progress.done()
        say_left_out(left_out)
        if (part / f"{split}.{languages[0]}").stat().st_size == 0:
            raise UsageError(
                f"{out / 'tok'}: no {split} pair is left; each is too long, or of too unequal lengths"
            )


def copy_models(source: Path, part: Path) -> None:
    """Copy the merges or the models of sentencepiece from one folder bpe/ to another."""
    for path in sorted(source.iterdir()):
        if path.name == "codes" or path.name.startswith("spm."):
            shutil.copyfile(path, part / path.name)


def learn_merges(paths: list[Path], merges: int, codes: Path) -> None:
    """Let subword-nmt learn merges from all files together, and write them to `codes`.

    Raises UsageError if the files have no word of two letters.
    """
    from subword_nmt.learn_bpe import learn_bpe

    say(f"learning {merges:,} joint merges")
    bar = contextlib.nullcontext() if sys.stderr.isatty() else contextlib.redirect_stderr(io.StringIO())
    with contextlib.ExitStack() as stack:
        files = [stack.enter_context(path.open(encoding="utf-8", newline="\n")) for path in paths]
        out = stack.enter_context(codes.open("w", encoding="utf-8", newline="\n"))
        stack.enter_context(bar)
        try:
            learn_bpe(itertools.chain(*files), out, merges)
        except ValueError:  # of max(), as there is no pair of symbols to count
            raise UsageError(f"{paths[0]}: train has no word of two letters to learn merges from") from None
    with codes.open("rb") as file:
        learnt = sum(1 for _ in file) - 1
    if learnt < merges:
        say(f"only {learnt:,} merges: no other pair of symbols occurs twice in train")


def learn_pieces(path: Path, lang: str, size: int, workers: int, model: Path) -> None:
    """Let sentencepiece learn a BPE model with `size` sub-words from a file, and write it to `model`.

    Raises UsageError if the text has too few or too many different characters or words for this size.
    """
    import sentencepiece

    say(f"learning {size:,} sub-words of {path.name}")
    with path.open(encoding="utf-8", newline="\n") as file, model.open("wb") as out:
        try:
            sentencepiece.SentencePieceTrainer.train(
                sentence_iterator=(line.rstrip("\n") for line in file),
                model_writer=out,
                model_type="bpe",
                vocab_size=size,
                character_coverage=0.9995 if lang in ("zh", "ja", "ko") else 1.0,
                num_threads=workers,
                max_sentence_length=LONGEST_LINE,
                minloglevel=2,
            )
        except RuntimeError as error:
            why = str(error).strip().splitlines()[-1].rpartition("] ")[2].strip()
            raise UsageError(
                f"--vocab-size {size}: sentencepiece cannot learn a vocabulary of this size from {path} "
                f"({why})"
            ) from None


def make_worker(
    kind: str, folder: Path, languages: tuple[str, ...], rule: LengthRule | None
) -> Callable[[tuple[bytes, ...]], tuple[int, list[bytes], Counter[str]]]:
    """Return the function that a worker process applies to each block, for `map_blocks`.

    The function takes the blocks of both languages. It returns the number of pairs in them, the blocks of
    sub-words of the pairs that are kept, and the number of pairs that were left out for each reason.

    Args:
        kind: "subword-nmt" or "sentencepiece".
        folder: the folder with the merges or models.
        languages: for each text the ending of its model of sentencepiece.
        rule: the lengths of the pairs that are kept; None keeps all.
    """
    if kind == "subword-nmt":
        split_words = Merges(folder / "codes")
        splitters: list[Callable[[str], str]] = [split_words] * len(languages)
    else:
        splitters = [make_pieces(folder / f"spm.{lang}.model") for lang in languages]

    def work(blocks: tuple[bytes, ...]) -> tuple[int, list[bytes], Counter[str]]:
        sides = [
            [split(line) for line in split_block(block)]
            for split, block in zip(splitters, blocks, strict=True)
        ]
        lines = len(sides[0])
        reasons: Counter[str] = Counter()
        if rule:
            sides = keep(sides, [unfit(s, t, rule) for s, t in zip(*sides, strict=True)], reasons)
        return lines, [join_block(side) for side in sides], reasons

    return work


class Merges:
    """A function that applies the merges of subword-nmt to a line of tokens.

    It remembers the sub-words of each word as one string, which is faster than the memory of subword-nmt.
    """

    def __init__(self, codes: Path):
        from subword_nmt.apply_bpe import BPE

        with codes.open(encoding="utf-8", newline="\n") as file:
            self.bpe = BPE(file)
        self.known: dict[str, str] = {}

    def __call__(self, line: str) -> str:
        known = self.known
        try:
            return " ".join([known[word] for word in line.split(" ")])
        except KeyError:
            if len(known) > MAX_WORDS:
                known.clear()
                self.bpe.cache.clear()
            return " ".join([known.get(word) or self.split(word) for word in line.split(" ")])

    def split(self, word: str) -> str:
        """Return the sub-words of a word, and remember them."""
        self.known[word] = parts = " ".join(self.bpe.segment_tokens([word]))
        return parts


def make_pieces(model: Path) -> Callable[[str], str]:
    """Return a function that splits a line into the sub-words of a model of sentencepiece."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(model))
    return lambda line: " ".join(processor.encode(line, out_type=str))
