"""Find the tokens that are typical of a group, such as an expert or a cluster.

Typical tokens have a large pointwise mutual information (PMI) with the group, as in MAE, section 5.1 (Church
and Hanks 1990):

    PMI(token, group) = log p(token, group) / (p(token) p(group))

PMI is in nats. All probabilities come from the same counts of tokens, so that they are consistent: if a
sentence belongs to an expert, each of its tokens is counted once.
"""

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

MINIMUM_COUNT = 5  # a token must occur this often in all groups together; the PMI of rarer ones says little
DRAWS = 20  # random tables of counts, whose mean PMI is what chance gives
MOST = 10  # maximum number of tokens that are listed for a group


class TokenCounts:
    """Counts of how often each token occurs in each group.

    The memory grows with dictionary size x groups, but not with the number of counted tokens.

    Args:
        types: size of the dictionary.
        groups: number of groups.
    """

    def __init__(self, types: int, groups: int):
        self.groups = groups
        self.counts = torch.zeros(types * groups, dtype=torch.int32)

    def add(self, tokens: Tensor, groups: Tensor) -> None:
        """Count tokens with the groups that they are in, both int64 [N]."""
        self.counts = self.counts.to(tokens.device)
        pairs = tokens * self.groups + groups
        self.counts.index_add_(0, pairs, torch.ones_like(pairs, dtype=torch.int32))

    def of_groups(self) -> Tensor:
        """Return the number of tokens in each group, float64 [groups]."""
        return self.counts.view(-1, self.groups).sum(dim=0).double()

    def indicative(self, symbols: list[str]) -> list[list[dict]]:
        """Return the typical tokens of every group, those with the largest PMI first.

        For each group, there are up to `MOST` tokens that occur `MINIMUM_COUNT` times or more in all groups
        together. Of tokens with equal PMI, the more frequent one comes first. An entry has the "token", its
        "pmi", its "count" in the group and its "total" in all groups. `symbols` are the words of the
        dictionary.
        """
        return indicative(self.counts.view(-1, self.groups), symbols)

    def information(self) -> float:
        """Return the mutual information of tokens and groups in nats; see the function of this name."""
        return information(self.counts.view(-1, self.groups))


def indicative(counts: Tensor, symbols: list[str]) -> list[list[dict]]:
    """Return the typical tokens of every group from counts [V, groups]; see `TokenCounts.indicative`."""
    counts = counts.cpu().double()
    of_token, of_group, total = counts.sum(dim=1), counts.sum(dim=0), counts.sum()
    pmi = (counts * total / (of_token[:, None] * of_group)).log()
    lists = []
    for group in range(counts.size(1)):
        [candidates] = torch.where((of_token >= MINIMUM_COUNT) & (counts[:, group] > 0))
        order = sorted(
            candidates.tolist(),
            key=lambda token: (-float(pmi[token, group]), -float(counts[token, group]), token),
        )
        lists.append(
            [
                {
                    "token": symbols[token],
                    "pmi": float(pmi[token, group]),
                    "count": int(counts[token, group]),
                    "total": int(of_token[token]),
                }
                for token in order[:MOST]
            ]
        )
    return lists


def information(counts: Tensor) -> float:
    """Return how much groups tell about tokens: the mean PMI minus its value for random groups, in nats.

    Only tokens that occur `MINIMUM_COUNT` times or more count. A finite sample of independent tokens and
    groups has a positive mean PMI as well, which is large if most tokens are rare. So the groups of each
    token are drawn anew from the shares of all groups, `DRAWS` times with fixed seeds, and the mean of what
    these counts give is subtracted. The result is about 0 if tokens and groups are independent.

    Args:
        counts: how often each token occurs in each group, [V, groups].
    """
    kept = counts.cpu().numpy().astype(np.int64)
    kept = kept[kept.sum(axis=1) >= MINIMUM_COUNT]
    if not len(kept):
        return 0.0
    of_token, shares = kept.sum(axis=1), kept.sum(axis=0) / kept.sum()
    drawn = [np.random.default_rng(seed).multinomial(of_token, shares) for seed in range(DRAWS)]
    return mean_pmi(kept) - float(np.mean([mean_pmi(each) for each in drawn]))


def mean_pmi(counts: np.ndarray) -> float:
    """Return the mean PMI in nats over all occurrences of tokens in groups, from counts [V, groups]."""
    joint = counts / counts.sum()
    independent = joint.sum(axis=1, keepdims=True) * joint.sum(axis=0)
    seen = joint > 0
    return float((joint[seen] * np.log(joint[seen] / independent[seen])).sum())


def rows(lists: Iterable[list[dict]], group: str) -> list[dict]:
    """Return lists of tokens as rows of one table. The column `group` has the number of the list, from 1."""
    return [{group: number, **entry} for number, entries in enumerate(lists, start=1) for entry in entries]
