"""Show values over time beside an image, such as a spectrogram, in the report.

An analysis of any plugin may give them: the report shows the entries "about", "table" and
"timelines" of its data.
"""

from dataclasses import dataclass

from torch import Tensor

LEVELS = 255  # the brightest value of an image


@dataclass
class Image:
    """An image in grey whose columns are points in time.

    Attributes:
        label: what it shows.
        width, height: its size in points.
        values: the brightness of each point in raster order, from 0 to `LEVELS`.
    """

    label: str
    width: int
    height: int
    values: list[int]

    @classmethod
    def of(cls, label: str, values: Tensor) -> "Image":
        """Return the image of values [height, width]; the lowest value is black and the highest white."""
        low, high = values.min(), values.max()
        scaled = (values - low) / (high - low).clamp(min=1e-12) * LEVELS
        return cls(label, values.size(1), values.size(0), scaled.round().int().flatten().tolist())


@dataclass
class Timeline:
    """Images, and rows of values from 0 to 1 below them, over the same time.

    Attributes:
        title: what it shows.
        seconds: its length.
        images: the images.
        rows: for each row its label and its values, one for each column of the images.
    """

    title: str
    seconds: float
    images: list[Image]
    rows: dict[str, list[float]]
