"""Arrange pictures in a grid, and write it as a PNG file."""

import io
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.pixels.optional import optional

Picture = NDArray[np.uint8]  # [height, width, 3]
GREY, WHITE = 160, 255
GAP = 2  # pixels between pictures, before they are magnified


def grid(rows: Sequence[Sequence[Picture]], zoom: int = 1) -> Picture:
    """Return one picture of rows of pictures of the same size, with white gaps.

    Args:
        rows: the rows; a short one is filled up with white.
        zoom: number of pixels for each pixel of a picture, in both directions.
    """
    height, width, _ = rows[0][0].shape
    columns = max(map(len, rows))
    size = (len(rows) * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3)
    whole = np.full(size, WHITE, np.uint8)
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            top, left = row * (height + GAP), column * (width + GAP)
            whole[top : top + height, left : left + width] = picture
    return whole.repeat(zoom, axis=0).repeat(zoom, axis=1)


def write_png(path: Path, picture: Picture) -> None:
    """Write a picture as a PNG file.

    Raises:
        UsageError: pillow is not installed, or the file cannot be written.
    """
    content = io.BytesIO()
    optional("PIL.Image").fromarray(picture).save(content, "PNG")
    try:
        write_file(path, content.getvalue())
    except OSError as error:
        raise UsageError(f"{path} cannot be written ({error.strerror}); give another file") from None
