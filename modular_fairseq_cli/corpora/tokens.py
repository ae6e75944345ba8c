"""The stage tok/ tokenizes each split, and leaves out training pairs that are empty or of unfit lengths.

Text in one language keeps all of its lines, so that its documents remain what they are. For such text, read
"line" where this module says "pair".

If the recipe has `valid_every` = n, every n-th training pair that is kept serves for validation instead. The
stage also writes raw/: valid and test as untokenized text, lower-cased if the tokens are. sacrebleu compares
detokenized translations with that text.
"""

import os
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, BinaryIO

from modular_fairseq_cli.corpora.lines import is_visible, join_block, read_chunks, split_block
from modular_fairseq_cli.corpora.parallel import map_blocks
from modular_fairseq_cli.corpora.progress import Progress
from modular_fairseq_cli.corpora.recipe import LengthRule
from modular_fairseq_cli.corpora.settings import splits, suffixes
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

CHUNK = 1000  # pairs that a worker process gets at a time
LONGEST_WORD = 1000  # characters; Moses' clean-corpus-n leaves out pairs with a longer word


def tokenize(settings: dict[str, Any], user: Namespace, out: Path, part: Path) -> None:
    """Tokenize each split of text/.

    Args:
        settings: see `settings.choose`.
        user: `workers` is the number of processes.
        out: the folder of the data set, which has text/ and gets raw/.
        part: the folder in which this stage writes the tokens.

    Raises:
        UsageError: no training pair is left, or there are too few to take validation pairs from them.
    """
    languages = suffixes(settings)
    raw = part / "raw"
    raw.mkdir()
    for split in splits(settings):
        sources = [out / "text" / f"{split}.{lang}" for lang in languages]
        if not sources[0].exists():
            continue  # only valid may be missing: its pairs are taken from train
        progress = Progress(f"tokens of {split}")
        left_out: Counter[str] = Counter()
        with Writer(
            part, raw, languages, split, settings["valid_every"] if split == "train" else 0
        ) as writer:
            results = map_blocks(
                make_worker, (settings, split == "train"), read_chunks(sources, CHUNK), user.workers
            )
            for lines, tokens, texts, reasons in results:
                writer.write(tokens, texts)
                left_out.update(reasons)
                progress.add(lines)
        progress.done()
        say_left_out(left_out)
        if split == "train" and not writer.pairs["train"]:
            raise UsageError(
                f"{out / 'text'}: no train pair is left; each is empty, too long, or of too unequal lengths"
            )
        if split == "train" and settings["valid_every"] and not writer.pairs["valid"]:
            every = settings["valid_every"]
            raise UsageError(
                f"{out / 'text'}: {writer.pairs['train']} train pairs are too few, as one of every {every} "
                "serves for validation; give more text"
            )
    shutil.rmtree(out / "raw", ignore_errors=True)
    if any(raw.iterdir()):
        os.replace(raw, out / "raw")
    else:
        raw.rmdir()


class Writer:
    """A context that writes the blocks of one split, and some of its pairs to valid.

    Attributes:
        pairs: the number of pairs that were written to each split.
    """

    def __init__(self, tok: Path, raw: Path, languages: tuple[str, ...], split: str, valid_every: int):
        """Write tokens to the folder `tok`, and text to the folder `raw`.

        Args:
            tok: the folder for tokens.
            raw: the folder for text.
            languages: source and target.
            split: the split to which pairs are written.
            valid_every: write every pair whose number is a multiple of it to valid instead; 0: none.
        """
        self.tok, self.raw, self.languages, self.split, self.valid_every = (
            tok,
            raw,
            languages,
            split,
            valid_every,
        )
        self.pairs = {"train": 0, "valid": 0, "test": 0}
        self.files: dict[Path, BinaryIO] = {}

    def __enter__(self) -> "Writer":
        return self

    def __exit__(self, *exception: object) -> None:
        for file in self.files.values():
            file.close()

    def write(self, tokens: list[list[str]], texts: list[list[str]]) -> None:
        """Write a block of pairs.

        Args:
            tokens: the lines of tokens of each language.
            texts: the lines of text of each language; empty if nothing of the block belongs into raw/.
        """
        if not self.valid_every:
            self.append(self.split, tokens, texts)
            return
        before = self.pairs["train"] + self.pairs["valid"]
        lines = len(tokens[0])
        valid = range((-before - 1) % self.valid_every, lines, self.valid_every)
        train = [i for i in range(lines) if i not in valid]
        self.append("train", [[side[i] for i in train] for side in tokens], [])
        self.append("valid", *([[side[i] for i in valid] for side in sides] for sides in (tokens, texts)))

    def append(self, split: str, tokens: list[list[str]], texts: list[list[str]]) -> None:
        """Append pairs to the files of a split. `write` explains `tokens` and `texts`."""
        self.pairs[split] = self.pairs.get(split, 0) + len(tokens[0])
        for folder, sides in ((self.tok, tokens), (self.raw, texts)):
            for lang, lines in zip(self.languages, sides, strict=bool(sides)):
                path = folder / f"{split}.{lang}"
                if path not in self.files:
                    self.files[path] = path.open("wb")
                self.files[path].write(join_block(lines))


def make_worker(
    settings: dict[str, Any], is_train: bool
) -> Callable[[tuple[bytes, ...]], tuple[int, list[list[str]], list[list[str]], Counter[str]]]:
    """Return the function that a worker process applies to each block, for `map_blocks`.

    The function takes the blocks of both languages, and returns four values:

        the number of pairs in the blocks,
        the lines of tokens of each language,
        the lines of text of each language, or an empty list if none belong into raw/,
        the number of pairs that were left out for each reason.
    """
    languages: Sequence[str] = suffixes(settings)
    if "language" in settings:
        languages = [settings["language"]] * len(languages)
    tokenizers = [make_tokenizer(settings, lang) for lang in languages]
    untokenized = [make_text(settings, lang) for lang in languages]
    clean = settings["clean"]
    rule = clean if clean and clean["unit"] == "tokens" else None
    needs_text = clean and (not is_train or settings["valid_every"])

    def work(blocks: tuple[bytes, ...]) -> tuple[int, list[list[str]], list[list[str]], Counter[str]]:
        texts = [split_block(block) for block in blocks]
        lines = len(texts[0])
        reasons: Counter[str] = Counter()
        if is_train and clean:
            texts = keep(
                texts,
                [None if is_visible(s) and is_visible(t) else "empty" for s, t in zip(*texts, strict=True)],
                reasons,
            )
        tokens = [[tokenize(line) for line in side] for tokenize, side in zip(tokenizers, texts, strict=True)]
        if is_train and rule:
            verdicts = [unfit(s, t, rule) for s, t in zip(*tokens, strict=True)]
            texts, tokens = keep(texts, verdicts), keep(tokens, verdicts, reasons)
        if needs_text:
            texts = [
                [as_text(line) for line in side] for as_text, side in zip(untokenized, texts, strict=True)
            ]
        return lines, tokens, texts if needs_text else [], reasons

    return work


def make_tokenizer(settings: dict[str, Any], lang: str) -> Callable[[str], str]:
    """Return the function that turns a line of text of one language into tokens with single spaces."""
    if settings["tokens"] in ("none", "given"):
        return one_space_lowered if settings["lowercase"] else one_space
    from modular_fairseq_cli.corpora.moses import Tokenizer  # here, as sacremoses loads for half a second

    return Tokenizer(lang, settings["normalize"], settings["aggressive_hyphens"], settings["lowercase"])


def make_text(settings: dict[str, Any], lang: str) -> Callable[[str], str]:
    """Return the function that turns a line of text/ of one language into a line of raw/."""
    change: Callable[[str], str] = str.strip
    if settings["tokens"] == "given":
        from sacremoses import MosesDetokenizer  # here, as it loads for half a second

        moses = MosesDetokenizer(lang)
        change = lambda line: moses.detokenize(line.split())  # noqa: E731
    return (lambda line: change(line).lower()) if settings["lowercase"] else change


def one_space(line: str) -> str:
    """Return a line with single spaces between its words."""
    return " ".join(line.split())


def one_space_lowered(line: str) -> str:
    """Return a line in lower case with single spaces between its words."""
    return " ".join(line.split()).lower()


def keep(
    sides: list[list[str]], verdicts: list[str | None], reasons: Counter[str] | None = None
) -> list[list[str]]:
    """Return the pairs whose verdict is None.

    Args:
        sides: the lines of each language.
        verdicts: for each pair the reason to leave it out, or None.
        reasons: counts the pairs that are left out, by reason.
    """
    if reasons is not None:
        reasons.update(verdict for verdict in verdicts if verdict)
    return [[line for line, verdict in zip(side, verdicts, strict=True) if not verdict] for side in sides]


def unfit(source: str, target: str, rule: LengthRule) -> str | None:
    """Return the reason for which Moses' clean-corpus-n leaves out a training pair, or None if it keeps it.

    Both sides are tokens with single spaces between them.
    """
    if not source or not target:
        return "empty"
    m, n = source.count(" ") + 1, target.count(" ") + 1
    if not rule["min"] <= min(m, n) <= max(m, n) <= rule["max"]:
        return "too long" if max(m, n) > rule["max"] else "too short"
    if max(m, n) / min(m, n) > rule["ratio"]:
        return "of too unequal lengths"
    for line in (source, target):
        if len(line) > LONGEST_WORD and max(map(len, line.split(" "))) > LONGEST_WORD:
            return "too long"
    return None


def say_left_out(left_out: Counter[str]) -> None:
    """Say how many training pairs were left out, and why; nothing if all were kept."""
    if left_out:
        reasons = ", ".join(f"{left_out[reason]:,} {reason}" for reason in sorted(left_out))
        say(f"train: {left_out.total():,} pairs left out ({reasons})")
