"""Replace the colours of pictures by those of a palette, which k-means finds."""

import numpy as np
from numpy.typing import NDArray

from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.pixels.optional import optional
from modular_fairseq_cli.pixels.sources import LUMINANCE, Pictures

SAMPLE = 200_000  # number of pixels from which k-means learns the palette
CHUNK = 50_000  # number of pixels that are compared with the palette at a time

Palette = NDArray[np.uint8]  # [colours, channels], from dark to bright


def learn(pictures: Pictures, colours: int, seed: int) -> Palette:
    """Return a palette of the pixels of pictures.

    If the pictures have at most `colours` colours, these are the palette. Otherwise k-means learns it from a
    sample of the pixels (minGPT's pictures have 512 colours by k-means). Two of its means may round to
    the same colour, so the palette may have fewer colours.

    Args:
        pictures: the pictures for training.
        colours: number of colours.
        seed: seed of the sample and of k-means.

    Raises:
        UsageError: scikit-learn is not installed; or the pictures have one colour only.
    """
    pixels = pictures.reshape(-1, pictures.shape[-1])
    found = np.unique(pixels, axis=0)
    if len(found) > colours:
        cluster = optional("sklearn.cluster")
        random = np.random.default_rng(seed)
        chosen = pixels[random.choice(len(pixels), min(SAMPLE, len(pixels)), replace=False)]
        means = cluster.MiniBatchKMeans(colours, random_state=seed, n_init=1, batch_size=4096)
        means.fit(chosen.astype(np.float64))
        found = np.unique(means.cluster_centers_.round().clip(0, 255).astype(np.uint8), axis=0)
    if len(found) < 2:
        raise UsageError("the pictures have one colour only; give other pictures, or more --colours")
    return found[np.argsort(brightness(found), kind="stable")]


def brightness(palette: Palette) -> NDArray[np.float64]:
    """Return the luminance of each colour, from 0 to 255."""
    values = palette.astype(np.float64)
    return values[:, 0] if palette.shape[1] == 1 else values @ LUMINANCE


def indices(pictures: Pictures, palette: Palette) -> NDArray[np.int64]:
    """Return the number of the nearest colour of each pixel [pictures, height, width].

    Of two colours that are equally near, it is the darker one.
    """
    # |p - c|^2 - |p|^2 is a whole number below 2^24, so these products are exact.
    pixels, colours = pictures.reshape(-1, pictures.shape[-1]), palette.astype(np.float32)
    squares = (colours**2).sum(-1)
    found = [
        (squares - 2 * (pixels[begin : begin + CHUNK].astype(np.float32) @ colours.T)).argmin(1)
        for begin in range(0, len(pixels), CHUNK)
    ]
    return np.concatenate(found).reshape(pictures.shape[:3])
