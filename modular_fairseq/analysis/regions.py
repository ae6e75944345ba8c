"""Compute how much of the variance of values is between regions (eta squared)."""

import torch
from torch import Tensor


class BetweenRegions:
    """The sums of values over pictures, from which their variance between regions follows.

    Args:
        region: the number of the region of each pixel, int64 [pixels]; -1 outside of all regions. Every
            region has pixels.
    """

    def __init__(self, region: Tensor):
        self.pixels = [region == number for number in range(int(region.max()) + 1)]
        self.pictures = 0
        self.origin: Tensor | float = 0.0  # the first values, so that small differences are not lost [n]
        self.first: list[Tensor | float] = [0.0] * len(self.pixels)  # sums of differences in a region [n]
        self.second: Tensor | float = 0.0  # sums of products of two differences, in all regions [n, n]

    def add(self, values: Tensor) -> None:
        """Add the values of a batch of pictures, float64 [B, pixels, n]."""
        if not self.pictures:
            self.origin = values[0, 0]
        self.pictures += len(values)
        for number, pixels in enumerate(self.pixels):
            inside = (values[:, pixels] - self.origin).flatten(0, 1)
            self.first[number] = self.first[number] + inside.sum(0)
            self.second = self.second + inside.T @ inside

    def means(self) -> list[list[float]]:
        """Return the mean of the values in each region, each [n]."""
        return [(mean + self.origin).tolist() for mean in self._means()] if self.pixels else []

    def eta_squared(self) -> float | None:
        """Return the variance between regions / the variance over pixels, both summed over n.

        It is None without regions, or if the values never change.
        """
        if not self.pixels or not self.pictures:
            return None
        between, whole = self._between_and_whole()
        return float(between.trace() / whole.trace()) if whole.trace() > 0 else None

    def best_division(self) -> float | None:
        """Return the highest eta squared of the sum of some of the values, where all values sum to 1.

        The sum of the other values has the same eta squared, so the last value is never one of them. The
        result is None without regions, or if no sum changes, as with a single value.
        """
        if not self.pixels or not self.pictures:
            return None
        between, whole = self._between_and_whole()
        n = len(whole)
        best = None
        for number in range(1, 2 ** (n - 1)):
            group = torch.tensor([number >> i & 1 for i in range(n)], dtype=torch.float64)
            if (variance := float(group @ whole @ group)) > 0:
                best = max(best or 0.0, float(group @ between @ group) / variance)
        return best

    def _means(self) -> Tensor:
        """Return the mean difference to the origin in each region [regions, n]."""
        return torch.stack([torch.as_tensor(each) for each in self.first]) / self._counts()

    def _counts(self) -> Tensor:
        """Return the number of pixels of all pictures in each region, float64 [regions, 1]."""
        pixels = [self.pictures * int(each.sum()) for each in self.pixels]
        return torch.tensor(pixels, dtype=torch.float64).unsqueeze(1)

    def _between_and_whole(self) -> tuple[Tensor, Tensor]:
        """Return the sums of products of deviations from the mean: of regions, and of pixels; each [n, n]."""
        counts, means = self._counts(), self._means()
        mean = (counts * means).sum(0) / counts.sum()
        deviations = (means - mean) * counts.sqrt()
        whole = torch.as_tensor(self.second) - counts.sum() * mean.outer(mean)
        return deviations.T @ deviations, whole
