"""Which tokens are typical of a group, an expert or a cluster: pointwise mutual information (MAE, section
5.1; Church and Hanks 1990)

    PMI(token, group) = log p(token, group) / (p(token) p(group))

in nats, with probabilities from counts of tokens, so that the margins agree: a sentence at an expert counts
with each of its tokens.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

MINIMUM_COUNT = 5  # occurrences of a token, in all groups together; the PMI of rarer ones says little
MOST = 10  # tokens listed for a group


class TokenCounts:
    """How often each token occurs in each group; its memory is that of dictionary x groups, whatever is
    counted.
    """

    def __init__(self, types: int, groups: int):
        self.groups = groups
        self.counts = torch.zeros(types * groups, dtype=torch.int32)

    def add(self, tokens: Tensor, groups: Tensor) -> None:
        """Pairs: tokens and the groups that they are in, both int64 [N]."""
        self.counts = self.counts.to(tokens.device)
        pairs = tokens * self.groups + groups
        self.counts.index_add_(0, pairs, torch.ones_like(pairs, dtype=torch.int32))

    def of_groups(self) -> Tensor:
        """Tokens in each group, float64 [groups]."""
        return self.counts.view(-1, self.groups).sum(dim=0).double()

    def indicative(self, symbols: list[str]) -> list[list[dict]]:
        """For every group up to `MOST` tokens that occur `MINIMUM_COUNT` times or more, of the largest PMI
        first; the more frequent of equals first. Each with its "pmi", its "count" in the group and its
        "total" in all groups."""
        return indicative(self.counts.view(-1, self.groups), symbols)


def indicative(counts: Tensor, symbols: list[str]) -> list[list[dict]]:
    """Of counts [V, groups]; see `TokenCounts.indicative`."""
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


def rows(lists: Iterable[list[dict]], group: str) -> list[dict]:
    """As rows of a table; `group` is the name of the column that counts the lists from 1."""
    return [{group: number, **entry} for number, entries in enumerate(lists, start=1) for entry in entries]
