#!/usr/bin/env python
"""Show the perplexity of a model that only knows how frequent the tokens of a training text are.

    python scripts/unigram.py DATA --longest 128

DATA is what fairseq-preprocess wrote for a language model or a masked language model. The model gives every
place the same distribution: the frequencies of the training lines of at most --longest tokens, with one added
to each type of the dictionary. The first row is a model of the words alone. The model of the second row also
predicts <s> and </s>, which a masked language model sees around each line, and is scored on words alone or on
all symbols.
"""

import argparse
import math
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from fairseq.data import Dictionary, data_utils
from numpy.typing import NDArray
from tabulate import tabulate

from modular_fairseq_cli.errors import UsageError


def counts(data: Path, part: str, dictionary: Dictionary, longest: int | None = None) -> NDArray[np.int64]:
    """Return how often each type occurs [types] in the lines of a part, whose <s> are counted, too.

    Args:
        longest: the number of tokens of the longest line that counts, with its </s>; None: all lines count.

    Raises:
        UsageError: the part does not exist.
    """
    lines = data_utils.load_indexed_dataset(str(data / part), dictionary)
    if lines is None:
        raise UsageError(f"{data} has no part {part}; give a folder that fairseq-preprocess wrote")
    found = np.zeros(len(dictionary), dtype=np.int64)
    for index in range(len(lines)):
        if longest is None or lines.sizes[index] <= longest:
            found += np.bincount(lines[index].numpy(), minlength=len(dictionary))
            found[dictionary.bos()] += 1
    return found


def perplexity(model: NDArray[np.int64], text: NDArray[np.int64]) -> float:
    """Return the perplexity of a text, where both are counts [types], with one added to each of the model."""
    logs = np.log(model + 1) - math.log((model + 1).sum())
    return float(np.exp(-(text * logs).sum() / text.sum()))


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, metavar="DATA", help="folder that fairseq-preprocess wrote")
    parser.add_argument("--longest", type=int, metavar="N", help="tokens of the longest training line")
    args = parser.parse_args(argv)
    if not (args.data / "dict.txt").is_file():
        raise UsageError(f"{args.data} has no dict.txt; give a folder that fairseq-preprocess wrote")
    dictionary = Dictionary.load(str(args.data / "dict.txt"))
    ends = [dictionary.bos(), dictionary.eos()]
    if args.longest is not None and args.longest < 1:
        raise UsageError(f"--longest {args.longest}: give at least 1")
    train = counts(args.data, "train", dictionary, args.longest)
    words = train.copy()
    words[ends] = 0
    rows: list[list[str | float]] = [["words", "words"], ["words, <s> and </s>", "words"]]
    rows.append([rows[1][0], rows[1][0]])
    for part in ("valid", "test"):
        text = counts(args.data, part, dictionary)
        scored = text.copy()
        scored[ends] = 0
        for row, pair in zip(rows, ((words, scored), (train, scored), (train, text)), strict=True):
            row.append(perplexity(*pair))
    print(tabulate(rows, ["the model predicts", "scored are", "valid", "test"], floatfmt=".1f"))
    share = train[ends].sum() / train.sum()
    print(f"<s> and </s> are {share:.1%} of the symbols of the training lines")


if __name__ == "__main__":
    try:
        main()
    except UsageError as error:
        sys.exit(f"unigram.py: error: {error}")
