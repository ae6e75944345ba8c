"""Draw toy pictures: bright strokes in the dark, as of digits, and coloured textures, as of photographs."""

import io
import struct

import numpy as np
from numpy.typing import NDArray

SIDE = 16  # height and width of a picture


def strokes(count: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return pictures of lines through three random points on black [count, SIDE, SIDE]."""
    points = random.uniform(2, SIDE - 3, (count, 3, 2))
    places = np.indices((SIDE, SIDE)).reshape(2, -1).T[None]
    distance = np.full((count, SIDE * SIDE), np.inf)
    for first, last in ((0, 1), (1, 2)):
        begin, along = points[:, first, None], points[:, last, None] - points[:, first, None]
        length = np.maximum((along**2).sum(-1), 1e-9)
        share = (((places - begin) * along).sum(-1) / length).clip(0, 1)
        distance = np.minimum(distance, np.linalg.norm(begin + share[..., None] * along - places, axis=-1))
    return (255 * (1.7 - distance).clip(0, 1)).astype(np.uint8).reshape(count, SIDE, SIDE)


def textures(count: int, random: np.random.Generator) -> NDArray[np.uint8]:
    """Return pictures of three waves over a colour, with some noise [count, SIDE, SIDE, 3]."""
    rows, columns = np.mgrid[:SIDE, :SIDE] / SIDE
    found = np.repeat(random.uniform(90, 170, (count, 1, 1, 3)), SIDE, axis=1).repeat(SIDE, axis=2)
    for _ in range(3):
        across, down, phase = random.uniform(-5, 5, (3, count, 1, 1))
        wave = np.sin(across * columns + down * rows + phase)
        found = found + random.uniform(-40, 40, (count, 1, 1, 3)) * wave[..., None]
    return (found + random.normal(0, 6, found.shape)).clip(0, 255).astype(np.uint8)


def write(sizes: dict[str, int], seed: int) -> dict[str, bytes]:
    """Return the content of the files strokes.idx and textures.npz, each with as many pictures as `sizes`."""
    random, count = np.random.default_rng(seed), sum(sizes.values())
    lines = strokes(count, random)
    waves = io.BytesIO()
    np.savez_compressed(waves, textures(count, random))
    return {
        "strokes.idx": struct.pack(">IIII", 0x0803, *lines.shape) + lines.tobytes(),
        "textures.npz": waves.getvalue(),
    }
