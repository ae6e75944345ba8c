"""The shape of pictures that are written as text, which is kept beside the binarized data."""

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file
from modular_fairseq_cli.pixels.palette import brightness

NAME = "pictures.json"


class Shape(NamedTuple):
    """The shape and the colours of pictures, of which each token is a pixel, in raster order.

    Args:
        height, width: size of a picture.
        regions: names of parts of a picture, and their columns: the first, and the one after the last. A
            composite of two sources has two.
        palette: the colours, each with one value (grey) or three, from 0 to 255. Token n has colour n.
    """

    height: int
    width: int
    regions: dict[str, tuple[int, int]]
    palette: list[list[int]]

    def write(self, folder: Path) -> None:
        """Write the shape into a folder of binarized data."""
        write_file(folder / NAME, json.dumps(self._asdict()) + "\n")

    def brightness(self) -> list[float]:
        """Return the luminance of each colour, from 0 to 255."""
        return brightness(np.asarray(self.palette, np.uint8)).tolist()

    def pictures(self, tokens: NDArray[np.int64]) -> NDArray[np.uint8]:
        """Return the pictures [pictures, height, width, 3] of numbers of colours [pictures, pixels]."""
        colours = np.asarray(self.palette, np.uint8)
        pixels = colours[tokens].reshape(len(tokens), self.height, self.width, -1)
        return np.broadcast_to(pixels, (*pixels.shape[:3], 3)).copy()


def read(folder: str | Path) -> Shape | None:
    """Return the shape of the pictures in a folder of binarized data, or None if it has no pictures.

    Raises:
        UsageError: the file is damaged.
    """
    path = Path(folder, NAME)
    found = read_json(path, "prepare the pictures again") if path.is_file() else None
    if found is None:
        return None
    try:
        regions = {name: (int(first), int(end)) for name, (first, end) in found["regions"].items()}
        return Shape(int(found["height"]), int(found["width"]), regions, found["palette"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{path} does not describe pictures; prepare the pictures again") from None
