"""Stage tok/, and raw/ with it, tokenizes each split and leaves out train pairs that are empty or, by the
recipe's rule, unfit.

Where the recipe says so, each n-th of the train pairs that are left is for validation instead. raw/ holds
valid and test as text, in the case of the tokens: what sacrebleu compares detokenized translations with.
"""

import os
import shutil
from argparse import Namespace
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from modular_fairseq_cli.corpora.lines import is_visible, join_block, read_chunks, split_block
from modular_fairseq_cli.corpora.parallel import map_blocks
from modular_fairseq_cli.corpora.progress import Progress
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import say

CHUNK = 1000  # pairs that a worker gets at a time
LONGEST_WORD = 1000  # characters; Moses' clean-corpus-n leaves pairs with longer ones out


def tokenize(settings: dict, user: Namespace, out: Path, part: Path) -> None:
    languages = (settings["source_lang"], settings["target_lang"])
    raw = part / "raw"
    raw.mkdir()
    for split in ("train", "valid", "test"):
        sources = [out / "text" / f"{split}.{lang}" for lang in languages]
        if not sources[0].exists():
            continue  # valid, which comes out of train
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
                f"{out / 'text'}: {writer.pairs['train']} train pairs are too few to take every {every}th of "
                "them for validation"
            )
    shutil.rmtree(out / "raw", ignore_errors=True)
    os.replace(raw, out / "raw")


class Writer:
    """Writes the blocks of one split, and each n-th pair of train to valid."""

    def __init__(self, tok: Path, raw: Path, languages: tuple[str, str], split: str, valid_every: int):
        self.tok, self.raw, self.languages, self.split, self.valid_every = (
            tok,
            raw,
            languages,
            split,
            valid_every,
        )
        self.pairs = {"train": 0, "valid": 0, "test": 0}
        self.files: dict[Path, BinaryIO] = {}

    def __enter__(self):
        return self

    def __exit__(self, *exception) -> None:
        for file in self.files.values():
            file.close()

    def write(self, tokens: list[list[str]], texts: list[list[str]]) -> None:
        """Write a block: the lines of `tokens` and `texts` for each language. `texts` is empty where nothing
        comes into raw/.
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
        self.pairs[split] += len(tokens[0])
        for folder, sides in ((self.tok, tokens), (self.raw, texts)):
            for lang, lines in zip(self.languages, sides, strict=bool(sides)):
                path = folder / f"{split}.{lang}"
                if path not in self.files:
                    self.files[path] = path.open("wb")
                self.files[path].write(join_block(lines))


def make_worker(settings: dict, is_train: bool) -> Callable:
    tokenizers = [make_tokenizer(settings, settings[lang]) for lang in ("source_lang", "target_lang")]
    rule = settings["clean"] if settings["clean"]["unit"] == "tokens" else None
    needs_text = not is_train or settings["valid_every"]

    def work(blocks: tuple[bytes, bytes]) -> tuple[int, list[list[str]], list[list[str]], Counter]:
        texts = [split_block(block) for block in blocks]
        lines = len(texts[0])
        reasons: Counter[str] = Counter()
        if is_train:
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
                [line.strip().lower() if settings["lowercase"] else line.strip() for line in side]
                for side in texts
            ]
        return lines, tokens, texts if needs_text else [], reasons

    return work


def make_tokenizer(settings: dict, lang: str) -> Callable[[str], str]:
    if settings["tokens"] == "none":
        return one_space_lowered if settings["lowercase"] else one_space
    from modular_fairseq_cli.corpora.moses import Tokenizer  # its tables take half a second to load

    return Tokenizer(lang, settings["normalize"], settings["aggressive_hyphens"], settings["lowercase"])


def one_space(line: str) -> str:
    return " ".join(line.split())


def one_space_lowered(line: str) -> str:
    return " ".join(line.split()).lower()


def keep(
    sides: list[list[str]], verdicts: list[str | None], reasons: Counter | None = None
) -> list[list[str]]:
    """Return the lines whose verdict is None, and count the others by verdict."""
    if reasons is not None:
        reasons.update(verdict for verdict in verdicts if verdict)
    return [[line for line, verdict in zip(side, verdicts, strict=True) if not verdict] for side in sides]


def unfit(source: str, target: str, rule: dict) -> str | None:
    """Return why a train pair is left out, as by Moses' clean-corpus-n, or None for a fit one. Lines are
    tokens with single spaces between them.
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


def say_left_out(left_out: Counter) -> None:
    if left_out:
        reasons = ", ".join(f"{left_out[reason]:,} {reason}" for reason in sorted(left_out))
        say(f"train: {left_out.total():,} pairs left out ({reasons})")
