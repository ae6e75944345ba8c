"""Analyse the clusters of disentangled mask attention (DMA).

The paper is "Bayesian Transformer Using Disentangled Mask Attention", section 3.1. For every head of every
module with a semantic mask, the analysis computes over the tokens that are its queries:

    usage               the mean posterior p(c | z) of each cluster
    usage entropy       the entropy of the usage in nats; ln C if all clusters are used equally
    shares              for each cluster, the share of tokens that have their largest posterior there
    posterior entropy   the mean entropy of p(c | z) over tokens, in nats; 0 if every token is in one cluster
    tokens              the tokens that are typical of each cluster, by pointwise mutual information

The self-attention of the decoder has clusters too, even though its mask may be used in training only.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import AttentionMap, attention_modules, kind_of
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.analysis.places import dictionary_of, in_order, place, side_of, tokens_of
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.analysis.tokens import TokenCounts, rows
from modular_fairseq.models.dma_losses import semantic_masks
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import UsageError


@dataclass
class HeadClusters:
    """The clusters of one head.

    Attributes:
        usage: for each cluster, its mean posterior.
        shares: for each cluster, the share of tokens that have their largest posterior there.
        usage_entropy: entropy of `usage` in nats.
        posterior_entropy: mean entropy of the posterior over tokens, in nats.
        tokens: for each cluster, its typical tokens (`TokenCounts.indicative`).
    """

    usage: list[float]
    shares: list[float]
    usage_entropy: float
    posterior_entropy: float
    tokens: list[list[dict]]


@dataclass
class ModuleClusters:
    """The clusters of one attention module. `layer` and `stream` count from 1 (`places.place`)."""

    module: str
    kind: str
    layer: int
    stream: int | None
    heads: list[HeadClusters]


@dataclass
class ClusterReport(Report):
    """The clusters of all attention modules."""

    modules: list[ModuleClusters]

    def text(self) -> str:
        """Return a table with a row for each head: its entropies, and the shares of its clusters in %."""
        most = max(len(head.shares) for each in self.modules for head in each.heads)
        lines = [
            [
                each.module,
                number,
                head.usage_entropy,
                head.posterior_entropy,
                *(100 * share for share in head.shares),
            ]
            for each in self.modules
            for number, head in enumerate(each.heads, start=1)
        ]
        headers = [
            "module",
            "head",
            "usage entropy",
            "posterior entropy",
            *(f"C{c + 1} %" for c in range(most)),
        ]
        return tabulate(lines, headers, floatfmt=("", "", ".3f", ".3f", *[".1f"] * most), tablefmt="plain")

    def tables(self) -> dict[str, list[dict]]:
        heads = [
            ({"module": each.module, "head": number}, head)
            for each in self.modules
            for number, head in enumerate(each.heads, start=1)
        ]
        usage = [
            {
                **names,
                "cluster": cluster,
                "usage": head.usage[cluster - 1],
                "share": head.shares[cluster - 1],
                "usage entropy": head.usage_entropy,
                "posterior entropy": head.posterior_entropy,
            }
            for names, head in heads
            for cluster in range(1, len(head.usage) + 1)
        ]
        return {
            "clusters": usage,
            "clusters-tokens": [
                {**names, **row} for names, head in heads for row in rows(head.tokens, "cluster")
            ],
        }


def posteriors(mask: SemanticMask, args: tuple, output: Tensor | None) -> Tensor:
    """Return the posteriors of the queries, float [B, H, C, T], in a call of a semantic mask.

    This is a function for `recorded`: `args` are the arguments of the call, and `output` is its output.
    """
    return mask.cluster(args[0]).posterior


class Clusters(Analysis):
    """The analysis `clusters` (see the top of this file). It needs a model with semantic masks."""

    summary = "usage and typical tokens of the clusters of disentangled mask attention"

    def __init__(self, model: nn.Module):
        self.model = model
        self.masks = in_order(semantic_masks(model))
        if not self.masks:
            raise UsageError("the model has no clusters; analyse a model trained with --attention-type dma")
        self.kinds = {name: kind_of(name, module) for name, module in attention_modules(model).items()}
        self.sums: dict[str, ClusterSums] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with recorded(self.masks, posteriors) as self.outputs:
            yield

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        for name, posterior in pop(self.outputs).items():
            dictionary, tokens = dictionary_of(side_of(name), self.model), tokens_of(side_of(name), batch)
            valid = tokens.ne(dictionary.pad())
            if name not in self.sums:
                self.sums[name] = ClusterSums(len(dictionary), *posterior.shape[1:3])
            self.sums[name].add(tokens[valid], posterior.permute(1, 0, 3, 2)[:, valid])

    def report(self) -> ClusterReport:
        modules = []
        for name, sums in self.sums.items():
            heads = sums.heads(dictionary_of(side_of(name), self.model).symbols)
            modules.append(ModuleClusters(name, self.kinds[name], *place(name, self.masks), heads))
        return ClusterReport(modules)


class ClusterSums:
    """The sums over tokens that the analysis keeps for one attention module.

    Args:
        types: size of the dictionary.
        heads: H.
        clusters: C.
    """

    def __init__(self, types: int, heads: int, clusters: int):
        self.count = 0
        self.usage: Tensor | float = 0.0  # [H, C]
        self.entropy: Tensor | float = 0.0  # [H]
        self.tokens = [TokenCounts(types, clusters) for _ in range(heads)]

    def add(self, tokens: Tensor, posterior: Tensor) -> None:
        """Add the tokens of a batch, int64 [N], with their posteriors, [H, N, C]."""
        posterior = posterior.double()
        self.count += len(tokens)
        self.usage = self.usage + posterior.sum(dim=1)
        self.entropy = self.entropy + torch.special.entr(posterior).sum(dim=(1, 2))
        for counts, clusters in zip(self.tokens, posterior.argmax(dim=2), strict=True):
            counts.add(tokens, clusters)

    def heads(self, symbols: list[str]) -> list[HeadClusters]:
        """Return the results for each head. `symbols` are the words of the dictionary."""
        assert isinstance(self.usage, Tensor) and isinstance(self.entropy, Tensor)  # `add` has been called
        usage, entropy = self.usage / self.count, self.entropy / self.count
        return [
            HeadClusters(
                usage=usage[head].tolist(),
                shares=(counts.of_groups() / self.count).tolist(),
                usage_entropy=float(torch.special.entr(usage[head]).sum()),
                posterior_entropy=float(entropy[head]),
                tokens=counts.indicative(symbols),
            )
            for head, counts in enumerate(self.tokens)
        ]
