"""Write the pictures of one source, or composites of two, as text, and binarize it."""

import hashlib
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from modular_fairseq_cli.corpora import settings
from modular_fairseq_cli.corpora.binarize import SYMBOLS, preprocess
from modular_fairseq_cli.corpora.runner import stage
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, lock, make_folder
from modular_fairseq_cli.pixels import palette as palettes
from modular_fairseq_cli.pixels.shape import Shape
from modular_fairseq_cli.pixels.shape import read as read_shape
from modular_fairseq_cli.pixels.sources import Pictures, Source, image_files, read
from modular_fairseq_cli.processes import processors, say

SPLITS = ("train", "valid", "test")
MOST_COLOURS = 4096


def prepare(
    left: Path,
    right: Path | None,
    out: Path,
    *,
    size: tuple[int, int],
    channels: int,
    colours: int,
    counts: Mapping[str, int | None],
    seed: int,
) -> None:
    """Prepare pictures for a language model; see the top of `command`.

    Args:
        left: the source, with `right` that of the left side.
        right: the source of the right side, if there is one.
        out: the folder to write.
        size: height and width of a picture, or of each side.
        channels: 1 for grey, 3 for colour.
        colours: number of colours of the palette.
        counts: number of pictures of "train", "valid" and "test"; None: see `divide` and `composites`.
        seed: seed of all that is random.

    Raises:
        UsageError: a source cannot be read or has too few pictures; a number makes no sense; or `out` was
            prepared in another way.
    """
    for name, number, least, most in (
        ("colours", colours, 2, MOST_COLOURS),
        ("seed", seed, 0, 2**32 - 1),
        *((split, number, 1, None) for split, number in counts.items() if number is not None),
    ):
        if number < least or (most is not None and number > most):
            limits = f"from {least} to {most}" if most is not None else f"of at least {least}"
            raise UsageError(f"--{name} {number}: give a number {limits}")
    chosen: dict[str, Any] = {
        "data_set": "pixels",
        "sources": [_digest(path) for path in (left, right) if path],
        "size": list(size),
        "channels": channels,
        "colours": colours,
        "counts": dict(counts),
        "seed": seed,
    }
    make_folder(out)
    with lock(out / ".lock", f"{out} is being prepared by another run; wait until it has ended"):
        settings.compare(out, chosen)
        if (out / "bin").is_dir():
            say(f"{out} is already prepared; nothing to do")
            return
        stage(out, "text", lambda part: _write_text(left, right, chosen, out, part))
        stage(out, "bin", lambda part: _binarize(out, part))
    say(f"{out / 'bin'} is ready for fairseq-train")


def _digest(path: Path) -> str:
    """Return a digest of a file, or of the image files in a folder and of their paths in it.

    Raises:
        UsageError: there is no such file or folder.
    """
    if path.is_file():
        return digest(path)[:16]
    if not path.is_dir():
        raise UsageError(
            f"{path} does not exist; give an IDX file, an .npz file, or a folder or tar archive of images"
        )
    listing = "".join(f"{file.relative_to(path)} {digest(file)}\n" for file in image_files(path))
    return hashlib.sha256(listing.encode("utf-8", "surrogateescape")).hexdigest()[:16]


def _write_text(left: Path, right: Path | None, chosen: dict[str, Any], out: Path, part: Path) -> None:
    """Write the pictures of each split as lines of numbers, and their shape, and then record the settings."""
    height, width = chosen["size"]
    sources = [read(path, height, width, chosen["channels"]) for path in (left, right) if path]
    counts, seed = chosen["counts"], chosen["seed"]
    divided = [
        divide(source, counts if len(sources) == 1 else counts | {"train": None}, path, seed)
        for source, path in zip(sources, (left, right), strict=False)
    ]
    pictures = divided[0] if len(sources) == 1 else composites(divided[0], divided[1], counts, seed)
    palette = palettes.learn(pictures["train"], chosen["colours"], seed)
    for split, found in pictures.items():
        numbers = palettes.indices(found, palette).reshape(len(found), -1)
        lines = (" ".join(map(str, row)) + "\n" for row in numbers.tolist())
        (part / f"{split}.txt").write_text("".join(lines), encoding="ascii")
        # For intervals and tests over pictures, each is a document of one line.
        (part / f"{split}.documents").write_text("1\n" * len(found), encoding="ascii")
        say(f"{split}: {len(found):,} pictures of {numbers.shape[1]:,} pixels")
    regions = {"left": (0, width), "right": (width, 2 * width)} if right else {}
    Shape(height, width * len(sources), regions, palette.tolist()).write(part)
    settings.write(out, chosen)
    say(f"{len(palette)} colours; fairseq-train needs --tokens-per-sample {numbers.shape[1] + 1}")


def divide(
    source: Source, counts: Mapping[str, int | None], path: Path | None, seed: int
) -> dict[str, Pictures]:
    """Return the pictures of each split of a source, in a random order.

    Test pictures come from those that the source sets aside, if there are any. "train" has the given number
    of the remaining pictures, or all of them. No picture is in two splits; pictures that occur more than once
    in the source are in one of them.

    Raises:
        UsageError: there are too few pictures.
    """
    random = np.random.default_rng(seed)
    valid, test = counts["valid"], counts["test"]
    assert valid is not None and test is not None
    own_test = len(source.test) > 0
    pool = _different(source.pictures)
    different = f"{len(pool):,} different pictures"
    if own_test:  # what occurs in both is for training
        known = {each.tobytes() for each in pool}
        rest = np.array([each.tobytes() not in known for each in source.test])
        tests = _different(source.test[rest])
        different += f" and {len(tests):,} others for tests"
        tests = tests[random.permutation(len(tests))]
    pool = pool[random.permutation(len(pool))]
    if not own_test:
        tests, pool = pool[:test], pool[test:]
    held_out, train = pool[:valid], pool[valid:]
    train = train[: counts["train"]] if counts["train"] else train
    wanted = counts["train"] or 1
    if len(tests) < test or len(held_out) < valid or len(train) < wanted:
        raise UsageError(
            f"{path} has {different}, which is too few for --valid {valid}, --test {test} and {wanted:,} for "
            "training; give smaller numbers, or more pictures"
        )
    return {"train": train, "valid": held_out, "test": tests[:test]}


def _different(pictures: Pictures) -> Pictures:
    """Return pictures without repetitions, in their order."""
    seen: set[bytes] = set()
    first = []
    for index, picture in enumerate(pictures):
        if (key := picture.tobytes()) not in seen:
            seen.add(key)
            first.append(index)
    return pictures[first]


def composites(
    left: dict[str, Pictures], right: dict[str, Pictures], counts: Mapping[str, int | None], seed: int
) -> dict[str, Pictures]:
    """Return pictures with one of `left` on their left side and one of `right` on their right side.

    Both sides of each split are drawn at random: each source as often as it has pictures, before one is used
    again.

    Args:
        left, right: the pictures of each split.
        counts: number of pictures of each split; if "train" is None, as many as the larger side has.
        seed: seed of the pairs.
    """
    random = np.random.default_rng(seed + 1)
    found = {}
    for split in SPLITS:
        number = counts[split] or max(len(left[split]), len(right[split]))
        sides = []
        for pictures in (left[split], right[split]):
            rounds = -(-number // len(pictures))
            order = np.concatenate([random.permutation(len(pictures)) for _ in range(rounds)])[:number]
            sides.append(pictures[order])
        found[split] = np.concatenate(sides, axis=2)
    return found


def _binarize(out: Path, part: Path) -> None:
    """Binarize the text. Type n + 4 of the dictionary is colour n, as fairseq has four symbols before it."""
    text = out / "text"
    shape = read_shape(text)
    assert shape is not None  # the former stage has written it
    types = [f"{number} 1" for number in range(len(shape.palette))]
    types += [f"madeupword{number:04} 0" for number in range(-(SYMBOLS + len(types)) % 8)]
    dictionary = part / "types.txt"
    dictionary.write_text("".join(f"{line}\n" for line in types), encoding="ascii")
    names = {split: text / f"{split}.txt" for split in SPLITS}
    counted = [(split, split, path.name) for split, path in names.items()]
    words = ["--only-source", "--srcdict", str(dictionary)]
    preprocess(names, counted, words, Namespace(workers=processors()), out, part)
    dictionary.unlink()
    shape.write(part)
