"""Draw pictures with a language model of pixels, and write them as a PNG file.

    modular-fairseq draw DATA --path CHECKPOINT --out drawn.png
    modular-fairseq draw DATA --path CHECKPOINT --given .5 --gen-subset test --out completed.png

DATA is the folder bin of `modular-fairseq prepare-pixels`. Without --given, the pictures are sampled from
nothing. With it, the upper part of pictures of DATA is given, and the model completes them: each row of the
file then shows what is given, what the model makes of it, and the real picture.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from fairseq.tasks.language_modeling import LanguageModelingTask

from modular_fairseq.drawing.sampling import draw
from modular_fairseq.loading import Loaded, add_model_and_data, load
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.errors import NoEffectError, UsageError
from modular_fairseq_cli.pixels.image_grid import GREY, grid, write_png
from modular_fairseq_cli.pixels.shape import Shape, read
from modular_fairseq_cli.processes import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_and_data(parser)
    parser.set_defaults(gen_subset=None)
    parser.add_argument("--out", type=Path, required=True, metavar="FILE", help="the PNG file to write")
    parser.add_argument("--count", type=int, default=16, metavar="N", help="number of pictures (default: 16)")
    parser.add_argument(
        "--given",
        type=float,
        metavar="SHARE",
        help="complete pictures of DATA of which this share of the rows is given, as in .5",
    )
    parser.add_argument(
        "--temperature", type=float, default=1.0, metavar="T", help="temperature of sampling (default: 1)"
    )
    parser.add_argument("--top", type=int, metavar="N", help="sample from the N likeliest colours only")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed (default: 1)")
    parser.add_argument(
        "--zoom", type=int, default=4, metavar="N", help="pixels of the file for a pixel (default: 4)"
    )
    add_user_dir(parser)


def run(args: argparse.Namespace) -> None:
    import_user_dir(args)
    check(args)
    subset = args.gen_subset or "valid"
    loaded = load(args.path, args.data, subset)
    shape = shape_of(loaded, args.data)
    pixels, colours = shape.height * shape.width, len(shape.palette)
    rows = round((args.given or 0) * shape.height)
    if args.given and not 0 < rows < shape.height:
        raise UsageError(
            f"--given {args.given}: {rows} of the {shape.height} rows of a picture would be given; give a "
            "share that gives some rows and leaves some to the model"
        )
    real = torch.empty(args.count, 0, dtype=torch.int64)
    if args.given:
        real = pictures_of(loaded, subset, args.count, pixels)
    given = real[:, : rows * shape.width]
    drawn = draw(loaded.model, given, pixels, colours, args.seed, args.temperature, args.top)
    found = shape.pictures(drawn.numpy())
    if args.given:
        whole = shape.pictures(real.numpy())
        known = np.full_like(whole, GREY)
        known[:, :rows] = whole[:, :rows]
        shown = [list(each) for each in zip(known, found, whole, strict=True)]
    else:
        width = int(np.ceil(np.sqrt(len(found))))
        shown = [list(found[begin : begin + width]) for begin in range(0, len(found), width)]
    write_png(args.out, grid(shown, args.zoom))
    say(f"{len(found)} pictures are in {args.out}")


def check(args: argparse.Namespace) -> None:
    """Raise UsageError if a number makes no sense, or if the file cannot be a PNG file."""
    for option, value, least in (
        ("--count", args.count, 1),
        ("--zoom", args.zoom, 1),
        ("--top", args.top, 1),
    ):
        if value is not None and value < least:
            raise UsageError(f"{option} {value}: give a number of at least {least}")
    if not 0 <= args.seed < 2**32:
        raise UsageError(f"--seed {args.seed}: give a number from 0 to {2**32 - 1}")
    if not 0 < args.temperature < float("inf"):
        raise UsageError(f"--temperature {args.temperature}: give a number above 0")
    if args.given is not None and not 0 < args.given < 1:
        raise UsageError(f"--given {args.given}: give a share between 0 and 1, or leave it out")
    if args.gen_subset and args.given is None:
        raise NoEffectError(
            "--gen-subset has no effect without --given, which completes its pictures; leave it out"
        )
    if args.out.suffix.lower() != ".png":
        raise UsageError(f"--out {args.out}: give a name that ends with .png")
    if not args.out.parent.is_dir():
        raise UsageError(f"--out {args.out}: {args.out.parent} is no folder; give a file in one that exists")


def shape_of(loaded: Loaded, data: str) -> Shape:
    """Return the shape of the pictures that a model draws.

    Raises:
        UsageError: the model is no language model, the data have no pictures, or a picture has more pixels
            than the model has positions.
    """
    if not isinstance(loaded.task, LanguageModelingTask):
        raise UsageError(
            f"the model has the task {loaded.about['task']}; give one that was trained by --task "
            "language_modeling on pictures"
        )
    shape = read(data)
    if shape is None:
        raise UsageError(f"{data} has no pictures; give the folder bin of modular-fairseq prepare-pixels")
    if (pixels := shape.height * shape.width) > loaded.model.max_positions():
        raise UsageError(
            f"a picture has {pixels:,} pixels and the model {loaded.model.max_positions():,} positions; give "
            "the pictures that it was trained with"
        )
    return shape


def pictures_of(loaded: Loaded, subset: str, count: int, pixels: int) -> torch.Tensor:
    """Return the first `count` pictures of the data as numbers of colours, int64 [count, pixels].

    Raises:
        UsageError: the data have fewer pictures, or the model reads them in blocks that are no pictures.
    """
    dataset, first = loaded.task.dataset(subset), loaded.task.source_dictionary.nspecial
    if len(dataset) < count:
        raise UsageError(f"--count {count}: {subset} has {len(dataset)} pictures; give a smaller number")
    found = [dataset[index]["target"] for index in range(count)]
    if any(len(tokens) != pixels + 1 for tokens in found):
        raise UsageError(
            f"a block has not the {pixels:,} pixels of a picture; train the model with --sample-break-mode "
            f"eos and --tokens-per-sample {pixels + 1}"
        )
    return torch.stack(found)[:, :pixels] - first
