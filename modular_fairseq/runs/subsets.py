"""Write nested subsets of the training data of a folder that fairseq-preprocess wrote, to see what a method
learns from little data.

    modular-fairseq subset data/iwslt14.de-en/bin --percent 5 10 25 50 75
    fairseq-train data/iwslt14.de-en/bin.5-percent ...

BIN.5-percent, beside BIN, is a folder for fairseq-train: of its N training pairs round(0.05 N), at least one,
in the order of BIN; dictionaries, valid and test are copies. Each subset contains the smaller ones of the
same seed (section 5.2 of Peng et al. 2020 samples 5, 10, 25, 50 and 75 % and does not say whether they are
nested). The same seed draws the same pairs everywhere. What is there is not drawn again; subset.json in it
has the seed, the number of pairs, and the sums of all files of BIN.
"""

import argparse
import itertools
import json
import math
import os
import shutil
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
from torch.utils.data import Dataset

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, lock
from modular_fairseq_cli.processes import say

SEED = 1
EXAMPLE = "give what fairseq-preprocess wrote, such as data/iwslt14.de-en/bin"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("bin", metavar="BIN", help="the folder, such as data/iwslt14.de-en/bin")
    parser.add_argument(
        "--percent",
        type=int,
        nargs="+",
        required=True,
        metavar="P",
        help="of the training pairs, 1 to 99; several at once",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=SEED,
        metavar="S",
        help="another seed draws other pairs (default: %(default)s)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for the folders (default: where BIN is)")


def run(args: argparse.Namespace) -> None:
    for percent in args.percent:
        if not 1 <= percent <= 99:
            raise UsageError(
                f"--percent {percent}: must be whole numbers from 1 to 99, as in --percent 5 10 25"
            )
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed}: give 0 or more, below 2^32")
    for percent in args.percent:
        print(draw(args.bin, percent, args.seed, args.out))


def name(folder: str, percent: int) -> str:
    """Return the folder of a subset, beside that of the whole."""
    return f"{os.path.normpath(folder)}{ending(percent)}"


def ending(percent: int) -> str:
    """Return what the name of a subset's folder adds to that of the whole."""
    return f".{percent}-percent"


def chosen(pairs: int, percent: int, seed: int = SEED) -> np.ndarray:
    """Return the numbers of the pairs that are in the subset, ascending, int64 [N].

    They are the first round(pairs * percent / 100) of a fixed permutation, and at least one.
    """
    # The generator whose numbers numpy promises never to change.
    permutation = np.random.RandomState(seed).permutation(pairs)
    return np.sort(permutation[: max(round(pairs * percent / 100), 1)])


def draw(folder: str, percent: int, seed: int = SEED, out: str | None = None) -> str:
    """Write the subset, all of it or nothing, unless it is there.

    Args:
        folder: what fairseq-preprocess wrote for a pair of languages.
        percent: of its training pairs, 1 to 99.
        seed: subsets of the same seed are nested.
        out: where to; None: beside `folder`.

    Returns:
        The path of the subset's folder.

    Raises:
        UsageError: `folder` is nothing of which this could be done, or what is there is another subset.
    """
    target = Path(name(folder, percent))
    target = Path(out or target.parent) / target.name
    try:
        os.listdir(folder)  # raises what is wrong with it
        target.parent.mkdir(parents=True, exist_ok=True)
        with lock(folder, seconds=math.inf):  # others that draw from it take seconds
            sides = _training_data(Path(folder))
            record = {"percent": percent, "seed": seed, "files": _sums(Path(folder))}
            if target.exists():
                _refuse_another(target, record, folder)
                return str(target)
            part = target.with_name(f"{target.name}.part")
            shutil.rmtree(part, ignore_errors=True)  # of a killed one
            part.mkdir()
            try:
                _write(Path(folder), part, sides, record)
                part.rename(target)
            except BaseException:
                shutil.rmtree(part, ignore_errors=True)
                raise
    except OSError as error:
        raise UsageError(
            f"{error.filename or target}: {error.strerror or error}; mend that, or have it drawn elsewhere "
            "(modular-fairseq subset --out)"
        ) from None
    say(f"{target}: {record['pairs']:,} of {record['of']:,} training pairs")
    return str(target)


def _training_data(folder: Path) -> dict[str, str]:
    """Return the language of each side by its prefix: train.de-en.de: de, train.de-en.en: en."""
    prefixes = sorted(
        {path.with_suffix("").name for path in folder.glob("train*") if path.suffix in (".idx", ".bin")}
    )
    sides = {prefix: prefix.rpartition(".")[2] for prefix in prefixes}
    pairs = {f"train.{first}-{second}" for first, second in itertools.permutations(sides.values(), 2)}
    if len(sides) != 2 or not {prefix.rpartition(".")[0] for prefix in prefixes} <= pairs:
        raise UsageError(
            f"{folder}: must have train.SOURCE-TARGET.SOURCE.idx, .TARGET.idx, and no other training data; "
            f"{EXAMPLE}"
        )
    for prefix, language in sides.items():
        if not (folder / f"dict.{language}.txt").is_file():
            raise UsageError(f"{folder}: has no dict.{language}.txt; {EXAMPLE}")
        if infer_dataset_impl(str(folder / prefix)) not in ("mmap", "cached"):
            raise UsageError(
                f"{folder / prefix}.idx: is no index of fairseq, or has no .bin beside it; {EXAMPLE}"
            )
    return sides


def _write(folder: Path, part: Path, sides: dict[str, str], record: dict[str, Any]) -> None:
    """Write all files of the subset into `part`, and the numbers of pairs into `record`."""
    whole = {prefix: _read(str(folder / prefix)) for prefix in sides}
    sizes = {len(side) for side in whole.values()}
    if len(sizes) > 1:
        raise UsageError(
            f"{folder}: its training data has {' and '.join(map(str, sorted(sizes)))} sentences; binarize it "
            "again"
        )
    rows = chosen(*sizes, record["percent"], record["seed"])
    record |= {"pairs": len(rows), "of": sizes.pop()}
    for prefix, language in sides.items():
        builder = make_builder(
            data_file_path(str(part / prefix)),
            "mmap",
            len(Dictionary.load(str(folder / f"dict.{language}.txt"))),
        )
        try:
            for row in rows:
                builder.add_item(whole[prefix][int(row)])
        except ValueError:  # of numpy, which finds fewer bytes than the index says
            raise UsageError(f"{folder / prefix}.bin: is cut short; binarize it again") from None
        builder.finalize(index_file_path(str(part / prefix)))
    for file in record["files"]:
        if not file.startswith("train"):
            shutil.copyfile(folder / file, part / file)
    (part / "subset.json").write_text(json.dumps(record, indent=1) + "\n")


def _read(prefix: str) -> Dataset:
    # The indices stay as they were written.
    return make_dataset(prefix, infer_dataset_impl(prefix), fix_lua_indexing=True)


def _refuse_another(target: Path, record: dict[str, Any], folder: str) -> None:
    try:
        kept = json.loads((target / "subset.json").read_text())
        differ = [key for key in ("percent", "seed", "files") if kept[key] != record[key]]
    except (OSError, ValueError, KeyError, TypeError):
        raise UsageError(
            f"{target}: is there and is no subset (no subset.json); remove or rename it"
        ) from None
    if "files" in differ:
        raise UsageError(
            f"{target}: was drawn from another {folder} than the one that is there now; remove it to have it "
            "drawn anew"
        )
    if differ:
        raise UsageError(
            f"{target}: was drawn with seed {kept['seed']}, not {record['seed']}; remove it, or give another "
            "--out"
        )


def _sums(folder: Path) -> dict[str, str]:
    """Return the digests of all data files and dictionaries, by name."""
    files = sorted(path for path in folder.iterdir() if path.suffix in (".bin", ".idx", ".txt"))
    return {path.name: digest(path)[:16] for path in files if path.is_file()}
