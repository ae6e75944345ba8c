"""Draw nested subsets of binarized training data, to see what a method learns from little data.

    modular-fairseq subset data/iwslt14.de-en/bin --percent 5 10 25 50 75
    fairseq-train data/iwslt14.de-en/bin.5-percent ...

BIN is a folder that fairseq-preprocess wrote for a pair of languages. The command writes the folder
BIN.5-percent beside it, another folder for fairseq-train. It contains round(0.05 N) of the N training pairs
(at least one) in the order of BIN, and copies of the dictionaries, valid and test. Each subset contains the
smaller ones of the same seed. (Section 5.2 of Peng et al. 2020 samples 5, 10, 25, 50 and 75 % and does not
say whether the samples are nested.) The same seed draws the same pairs on every machine. An existing subset
is not drawn again. Its file subset.json states the seed, the number of pairs, and the checksums of all files
of BIN.
"""

import argparse
import itertools
import json
import math
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.data import Dictionary
from fairseq.data.indexed_dataset import (
    data_file_path,
    index_file_path,
    infer_dataset_impl,
    make_builder,
    make_dataset,
)
from torch import Tensor

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, lock, write_json
from modular_fairseq_cli.processes import say

SEED = 1
EXAMPLE = "give a folder that fairseq-preprocess wrote, such as data/iwslt14.de-en/bin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bin", metavar="BIN", help="folder of the data, such as data/iwslt14.de-en/bin")
    parser.add_argument(
        "--percent",
        type=int,
        nargs="+",
        required=True,
        metavar="P",
        help="share of the training pairs in percent, 1 to 99; several numbers draw several subsets",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SEED,
        metavar="S",
        help="seed; another seed draws other pairs (default: %(default)s)",
    )
    parser.add_argument(
        "--out", metavar="DIR", help="folder for the subsets (default: the folder that contains BIN)"
    )


def run(args: argparse.Namespace) -> None:
    for percent in args.percent:
        if not 1 <= percent <= 99:
            raise UsageError(
                f"--percent {percent}: the numbers must be from 1 to 99, as in --percent 5 10 25"
            )
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed}: the seed must be 0 or more, and below 2^32")
    for percent in args.percent:
        print(draw(args.bin, percent, args.seed, args.out))


def name(folder: str, percent: int) -> str:
    """Return the path of the folder of a subset of `folder`, beside it."""
    folder = os.path.normpath(folder)
    if os.path.basename(folder) in (".", ".."):
        folder = os.path.abspath(folder)
    return f"{folder}{ending(percent)}"


def ending(percent: int) -> str:
    """Return the suffix that the folder of a subset adds to the name of the whole."""
    return f".{percent}-percent"


def chosen(pairs: int, percent: int, seed: int = SEED) -> np.ndarray:
    """Return the indices of the pairs in a subset, in ascending order, int64 [N].

    They are the first round(pairs * percent / 100) elements of a random permutation, and at least one.
    """
    # numpy guarantees that the numbers of this generator never change.
    permutation = np.random.RandomState(seed).permutation(pairs)
    return np.sort(permutation[: max(round(pairs * percent / 100), 1)])


def draw(folder: str, percent: int, seed: int = SEED, out: str | None = None) -> str:
    """Write a subset of training data, unless it exists already. After an error nothing of it remains.

    Args:
        folder: folder that fairseq-preprocess wrote for a pair of languages.
        percent: share of the training pairs, 1 to 99.
        seed: seed of the permutation; subsets of the same seed are nested.
        out: folder for the subset's folder. None: the folder that contains `folder`.

    Returns:
        The path of the subset's folder.

    Raises:
        UsageError: `folder` does not hold such data, the subset's folder holds another subset, or it cannot
            be written.
    """
    target = Path(name(folder, percent))
    target = Path(out or target.parent) / target.name
    try:
        os.listdir(folder)  # raises an OSError if this is no folder
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock(folder, seconds=math.inf):  # other processes that draw from it take seconds
            sides = _training_data(Path(folder))
            record = {"percent": percent, "seed": seed, "files": _sums(Path(folder))}
            if target.exists():
                _refuse_another(target, record, folder)
                return str(target)
            part = target.with_name(f"{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)  # left by a killed process
            part.mkdir()
            try:
                _write(Path(folder), part, sides, record)
                part.rename(target)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    except OSError as error:
        raise UsageError(
            f"{error.filename or target}: {error.strerror or error}; correct that, or draw the subset into "
            "another folder (modular-fairseq subset --out)"
        ) from None
    say(f"{target}: {record['pairs']:,} of {record['of']:,} training pairs")
    return str(target)


def _training_data(folder: Path) -> dict[str, str]:
    """Return the language of each side, keyed by the stem of its files: {"train.de-en.de": "de", ...}.

    Raises:
        UsageError: the folder does not hold the training data of one pair of languages.
    """
    prefixes = sorted(
        {path.with_suffix("").name for path in folder.glob("train*") if path.suffix in (".idx", ".bin")}
    )
    sides = {prefix: prefix.rpartition(".")[2] for prefix in prefixes}
    pairs = {f"train.{first}-{second}" for first, second in itertools.permutations(sides.values(), 2)}
    if len(sides) != 2 or not {prefix.rpartition(".")[0] for prefix in prefixes} <= pairs:
        raise UsageError(
            f"{folder}: the folder must have train.SOURCE-TARGET.SOURCE.idx, .TARGET.idx, and no other "
            f"training data; {EXAMPLE}"
        )
    for prefix, language in sides.items():
        if not (folder / f"dict.{language}.txt").is_file():
            raise UsageError(f"{folder} has no dict.{language}.txt; {EXAMPLE}")
        if infer_dataset_impl(str(folder / prefix)) not in ("mmap", "cached"):
            raise UsageError(
                f"{folder / prefix}.idx is no index of fairseq, or has no .bin beside it; {EXAMPLE}"
            )
    return sides


def _write(folder: Path, part: Path, sides: dict[str, str], record: dict[str, Any]) -> None:
    """Write all files of the subset.

    Args:
        folder: folder of the whole data.
        part: folder that becomes the subset's.
        sides: see `_training_data`.
        record: content of subset.json; it gets the numbers of pairs.
    """
    whole = {prefix: _read(str(folder / prefix)) for prefix in sides}
    sizes = {len(side) for side in whole.values()}
    if len(sizes) > 1:
        raise UsageError(
            f"{folder}: the two sides of its training data have {' and '.join(map(str, sorted(sizes)))} "
            "sentences; binarize it again"
        )
    (pairs,) = sizes
    rows = chosen(pairs, record["percent"], record["seed"])
    record |= {"pairs": len(rows), "of": pairs}
    for prefix, language in sides.items():
        builder = make_builder(
            data_file_path(str(part / prefix)),
            "mmap",
            len(Dictionary.load(str(folder / f"dict.{language}.txt"))),
        )
        try:
            for row in rows:
                builder.add_item(whole[prefix][int(row)])
        except ValueError:  # from numpy, if the file has fewer bytes than the index states
            raise UsageError(f"{folder / prefix}.bin is cut short; binarize the data again") from None
        builder.finalize(index_file_path(str(part / prefix)))
    for file in record["files"]:
        if not file.startswith("train"):
            shutil.copyfile(folder / file, part / file)
    write_json(part / "subset.json", record)


def _read(prefix: str) -> Sequence[Tensor]:
    """Return the sentences of one side."""
    found = infer_dataset_impl(prefix)
    # fairseq infers "cached" for its older format, which would need a list of the rows. "lazy" reads any row.
    # fix_lua_indexing keeps the token indices as they were written.
    return make_dataset(prefix, "lazy" if found == "cached" else found, fix_lua_indexing=True)


def _refuse_another(target: Path, record: dict[str, Any], folder: str) -> None:
    """Raise UsageError unless `target` holds the subset of `folder` that `record` describes."""
    try:
        kept = json.loads((target / "subset.json").read_text())
        differ = [key for key in ("percent", "seed", "files") if kept[key] != record[key]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{target} exists and is no subset, as it has no valid subset.json; remove or rename it"
        ) from None
    if "files" in differ:
        raise UsageError(
            f"{target} was drawn from other files than those that are in {folder} now; remove it, so that it "
            "is drawn again"
        )
    if differ:
        was, is_wanted = (" and ".join(f"{key} {found[key]}" for key in differ) for found in (kept, record))
        raise UsageError(f"{target} was drawn with {was}, not {is_wanted}; remove it, or give another --out")


def _sums(folder: Path) -> dict[str, str]:
    """Return the digests of all data files and dictionaries, keyed by file name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".bin", ".idx", ".txt"))
    return {path.name: digest(path)[:16] for path in files if path.is_file()}
