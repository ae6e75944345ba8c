"""Raw parallel text to lower-cased Moses tokens in joint BPE.

    python data-prep/prepare_corpus.py FOLDER --source-lang de --target-lang en --out WORK [--merges 8000]

reads FOLDER/{train,valid,test}.{de,en} (one sentence a line, UTF-8, not tokenised; also .gz) and writes
    WORK/tok/{split}.{lang}   lower-cased Moses tokens (sacremoses)
    WORK/bpe/{split}.{lang}   the same in sub-words, WORK/bpe/codes the joint merges (subword-nmt), learnt on train
    WORK/raw/test.{target}    the lower-cased, untokenised reference that sacrebleu scores against
Train pairs in which one side is empty, longer than --max-tokens tokens, or --max-ratio times longer than the other are
left out; valid and test are never filtered. Nothing is written before every file has been read and found sound.
"""

import argparse
import contextlib
import gzip
import io
import sys
from pathlib import Path

from sacremoses import MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

SPLITS = ("train", "valid", "test")


class CorpusError(Exception):
    """What is wrong with a corpus folder, in one sentence that names the file."""


def find(folder: Path, split: str, lang: str) -> Path:
    for name in (f"{split}.{lang}", f"{split}.{lang}.gz"):
        if (folder / name).is_file():
            return folder / name
    raise CorpusError(f"{folder / f'{split}.{lang}'} is missing: the folder needs train, valid and test text in both languages")


def read(path: Path) -> list[str]:
    try:
        data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except (OSError, EOFError) as error:
        raise CorpusError(f"{path} cannot be read ({error}): give plain text, or text compressed by gzip") from None
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise CorpusError(f"{path} is not UTF-8 (line {line}): convert it, for example with iconv -t utf-8") from None
    if not text.strip():
        raise CorpusError(f"{path} is empty: it must hold one sentence a line")
    return text.removesuffix("\n").split("\n")


def read_pairs(folder: Path, split: str, langs: tuple[str, str]) -> list[list[str]]:
    paths = [find(folder, split, lang) for lang in langs]
    sides = [read(path) for path in paths]
    if len(sides[0]) != len(sides[1]):
        raise CorpusError(
            f"{paths[0]} has {len(sides[0])} lines and {paths[1]} has {len(sides[1])}: line n of one must translate line n of the other"
        )
    return sides


def tokenize(lines: list[str], lang: str) -> list[str]:
    tokenizer = MosesTokenizer(lang)
    return [tokenizer.tokenize(line.lower(), return_str=True) for line in lines]


def keep(source: str, target: str, max_tokens: int, max_ratio: float) -> bool:
    m, n = len(source.split()), len(target.split())
    return 0 < m <= max_tokens and 0 < n <= max_tokens and max(m, n) <= max_ratio * min(m, n)


def write(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")


def prepare(folder: Path, langs: tuple[str, str], out: Path, merges: int, max_tokens: int, max_ratio: float) -> None:
    raw = {split: read_pairs(folder, split, langs) for split in SPLITS}
    tok = {}
    for split, sides in raw.items():
        print(f"{split}: {len(sides[0])} pairs, tokenizing", file=sys.stderr, flush=True)
        tok[split] = [tokenize(side, lang) for side, lang in zip(sides, langs, strict=True)]
    pairs = list(zip(*tok["train"], strict=True))
    kept = [pair for pair in pairs if keep(*pair, max_tokens, max_ratio)]
    if not kept:
        raise CorpusError(f"{folder}: no train pair has 1 to {max_tokens} tokens a side and a length ratio up to {max_ratio}")
    if len(kept) < len(pairs):
        print(f"train: {len(pairs) - len(kept)} pairs left out (empty, too long, or of too unequal lengths)", file=sys.stderr)
    tok["train"] = [list(side) for side in zip(*kept, strict=True)]

    print(f"learning {merges} joint BPE merges", file=sys.stderr, flush=True)
    codes = io.StringIO()
    with contextlib.redirect_stderr(io.StringIO()):  # its bar; it takes seconds
        learn_bpe(io.StringIO("\n".join(tok["train"][0] + tok["train"][1])), codes, merges)
    learnt = codes.getvalue().count("\n") - 1
    if learnt < merges:
        print(f"only {learnt} merges: no other pair of symbols occurs twice in train", file=sys.stderr)
    bpe = BPE(io.StringIO(codes.getvalue()))
    for split, sides in tok.items():
        for lang, lines in zip(langs, sides, strict=True):
            write(out / "tok" / f"{split}.{lang}", lines)
            write(out / "bpe" / f"{split}.{lang}", [bpe.process_line(line) for line in lines])
    write(out / "raw" / f"test.{langs[1]}", [line.strip().lower() for line in raw["test"][1]])
    write(out / "bpe" / "codes", codes.getvalue().splitlines())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--source-lang", required=True)
    parser.add_argument("--target-lang", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--merges", type=int, default=8000)
    parser.add_argument("--max-tokens", type=int, default=175)
    parser.add_argument("--max-ratio", type=float, default=9.0)
    args = parser.parse_args()
    if args.merges < 1 or args.source_lang == args.target_lang:
        parser.error("--merges must be at least 1, and --source-lang another than --target-lang")
    try:
        prepare(args.folder, (args.source_lang, args.target_lang), args.out, args.merges, args.max_tokens, args.max_ratio)
    except (CorpusError, OSError) as error:
        sys.exit(f"prepare_corpus: {error}")


if __name__ == "__main__":
    main()
