"""The divergences between attention heads from which their redundancy is computed (`redundancy.py`).

Let a and b be the weights of two heads at one query, which sum to 1 over the keys, and H the entropy in bits:

    divergence(a, b) = H((a + b) / 2) - (H(a) + H(b)) / 2              Jensen-Shannon divergence, in [0, 1]
    distance(a, b)   = sqrt(divergence(a, b))                          Jensen-Shannon distance, in [0, 1]

The generalised Jensen-Shannon divergence of h heads p_1, ..., p_h with the mean m is

    H(m) - 1/h sum_i H(p_i)                                            in [0, log2 h]
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

CHUNK = 2**17  # weights in a chunk of rows, half a MiB in float32


class Differences(NamedTuple):
    """How much heads differ, summed over rows. A row is one query.

    Attributes:
        distances: the distances of every two heads, float64 [N, N]. Only values above the diagonal are not 0.
        divergences: their divergences, in the same form.
        generalised: the generalised divergence of the heads of each module, float64 [M].
    """

    distances: Tensor
    divergences: Tensor
    generalised: Tensor

    def plus(self, other: "Differences | None") -> "Differences":
        """Return the sums over the rows of both."""
        if other is None:
            return self
        return Differences(*(mine + theirs for mine, theirs in zip(self, other, strict=True)))


def summed_differences(heads: Tensor, sizes: list[int]) -> Differences:
    """Return how much heads differ, summed over rows.

    With m = (a + b) / 2 and x = (a - b) / (a + b), the divergence of two heads is

        H(m) - (H(a) + H(b)) / 2 = 1/2 sum_j (a_j log(a_j / m_j) + b_j log(b_j / m_j))
                                 = 1/2 sum_j (a_j log1p(x_j) + b_j log1p(-x_j))

    If heads hardly differ, a difference of entropies would lose all digits, and the square root would make
    this visible: in float32, equal heads would have a distance of 3e-4. In this form, the error of a distance
    is one rounding error, so the precision of the weights, float32 or float64, is enough.

    Args:
        heads: the weights of N heads at R queries, [N, R, S].
        sizes: the number of heads of each of M modules, which sum to N.
    """
    count, _, keys = heads.shape
    distances = heads.new_zeros(count, count, dtype=torch.float64)
    divergences = torch.zeros_like(distances)
    generalised = heads.new_zeros(len(sizes), dtype=torch.float64)
    limits = torch.finfo(heads.dtype)
    largest = 1 - limits.eps / 2  # avoids log 0, which would be multiplied by a weight of 0
    for rows in heads.split(max(1, CHUNK // (count * keys)), dim=1):
        rows = rows[:, :, rows.amax(dim=(0, 1)) != 0]  # drops keys that are hidden from all queries
        for i in range(count - 1):
            a, b = rows[i], rows[i + 1 :]
            x = (a - b).div_((a + b).clamp_min_(limits.tiny)).clamp_(-largest, largest)
            terms = torch.log1p(x).mul_(a).addcmul_(x.neg_().log1p_(), b)
            by_row = terms.sum(dim=-1).div_(2 * math.log(2)).clamp_(0, 1)
            divergences[i, i + 1 :] += by_row.sum(dim=-1, dtype=torch.float64)
            distances[i, i + 1 :] += by_row.sqrt_().sum(dim=-1, dtype=torch.float64)
        generalised += torch.stack([_generalised(module) for module in rows.split(sizes)])
    return Differences(distances, divergences, generalised)


def _generalised(heads: Tensor) -> Tensor:
    """Return the generalised divergence of heads [h, R, S], summed over rows.

    It is computed as 1/h sum_i sum_j p_ij log(p_ij / m_j), which equals the difference of entropies.
    """
    tiny = torch.finfo(heads.dtype).tiny  # avoids log 0, which would be multiplied by a weight of 0
    mean = heads.mean(dim=0).clamp_min_(tiny)
    terms = (heads / mean).clamp_min_(tiny).log_().mul_(heads)
    by_row = terms.sum(dim=(0, 2)).div_(len(heads) * math.log(2))
    return by_row.clamp_(0, math.log2(len(heads))).sum(dtype=torch.float64)
