"""Write pictures as text for language models: one token for each pixel, in raster order.

    modular-fairseq prepare-pixels photos/ --size 32x32 --out data/photos
    modular-fairseq prepare-pixels digits.gz --size 14x14 --grey --colours 16 --out data/digits
    modular-fairseq prepare-pixels digits.gz --right photos.npz --size 14x14 --grey --out data/pairs

A SOURCE is an IDX file as of MNIST, an .npz file with x_train and perhaps x_test, or a folder or tar archive
of image files, perhaps with the folders train and test. Pictures of another size are averaged over areas.
k-means finds the palette in the training pictures. With --right, each picture has one of SOURCE on its left
side and one of the other source on its right side, at random; the parts train, valid and test share no
picture of either source.

OUT/text has a line of numbers for each picture, and OUT/bin is ready for fairseq-train --task
language_modeling --sample-break-mode eos, with --tokens-per-sample of one more than a picture has pixels.
OUT/bin/pictures.json keeps the shape and the palette. The same command does not repeat finished work.
"""

import argparse
import re
from pathlib import Path

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import check_data_folder
from modular_fairseq_cli.pixels.prepare import prepare


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "source", type=Path, metavar="SOURCE", help="IDX file, .npz file, folder or tar archive of images"
    )
    parser.add_argument("--right", type=Path, metavar="SOURCE", help="source of the right side of pictures")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="the folder to write")
    parser.add_argument(
        "--size",
        type=_size,
        required=True,
        metavar="HxW",
        help="height and width in pixels; with --right, of each side",
    )
    parser.add_argument(
        "--colours", type=int, default=512, metavar="N", help="number of colours (default: 512)"
    )
    parser.add_argument("--grey", action="store_true", help="pictures in grey, not in colour")
    parser.add_argument(
        "--valid", type=int, default=500, metavar="N", help="number of validation pictures (default: 500)"
    )
    parser.add_argument(
        "--test", type=int, default=500, metavar="N", help="number of test pictures (default: 500)"
    )
    parser.add_argument(
        "--train",
        type=int,
        metavar="N",
        help="number of training pictures (default: all others; with --right, as many as the larger source "
        "has)",
    )
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="seed (default: 1)")


def _size(text: str) -> tuple[int, int]:
    """Return the height and the width that a text such as 14x28 names."""
    found = re.fullmatch(r"([1-9]\d{0,3})x([1-9]\d{0,3})", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text} is no size; give height and width, as in 14x28")
    return int(found[1]), int(found[2])


def run(args: argparse.Namespace) -> None:
    """Prepare the pictures."""
    check_data_folder(args.out, "--out")
    try:
        prepare(
            args.source,
            args.right,
            args.out,
            size=args.size,
            channels=1 if args.grey else 3,
            colours=args.colours,
            counts={"train": args.train, "valid": args.valid, "test": args.test},
            seed=args.seed,
        )
    except OSError as error:
        raise UsageError(f"{error.filename or 'a file'}: {error.strerror or error}") from error
