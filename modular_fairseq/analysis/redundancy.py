"""Measure how similarly the heads of a model attend: layer redundancy (LR) and head redundancy (HR).

The measures are from "Bayesian Transformer Using Disentangled Mask Attention", section 4.1. A lower value
means more different heads. Let a and b be the weights of two heads at one query, which sum to 1 over the
keys, and let H be the entropy in bits:

    distance(a, b)   = sqrt(H((a + b) / 2) - (H(a) + H(b)) / 2)      the Jensen-Shannon distance, in [0, 1]
    redundancy(a, b) = 1 - distance(a, b)                            in [0, 1], and 1 for equal heads

The redundancy of two heads is the mean over all queries, and each word counts once. Padding is left out, and
so are queries that may see fewer than two keys, because all heads agree there.

The paper gives no formula for the rest. This module computes LR and HR for each type of attention, because
heads of different types attend to different things. The types are encoder self-attention, decoder
self-attention and cross-attention.

    LR   the mean over the modules of the type of the mean over all pairs of heads in a module
    HR   the mean over all pairs of heads of the type, in the same module or in different ones

LR and HR of the model are the means over the types that have a value. All types have the same weight in both
means, so that LR and HR can be compared. If all types have the same number of modules, LR is the mean over
all modules.

The weights are those that attention uses in evaluation. The mask of DMA is multiplied in and the result is
normalised. The head scales of MAE are not included. In a TIM layer, heads of different mechanisms form pairs
too. For HR, heads of different streams also form pairs.
"""

import itertools
import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import KINDS, AttentionMap, attention_modules, kind_of
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.analysis.places import place
from modular_fairseq_cli.errors import UsageError

CHUNK = 2**17  # weights in a chunk of rows, half a MiB in float32


@dataclass
class ModuleRedundancy:
    """The redundancy of one attention module.

    Attributes:
        module: name of the module.
        layer, stream: its place, from 1 (`places.place`).
        heads: number of heads.
        LR: mean redundancy over all pairs of its heads; None if it has one head.
    """

    module: str
    layer: int
    stream: int | None
    heads: int
    LR: float | None


@dataclass
class TypeRedundancy:
    """The redundancy of one type of attention.

    Attributes:
        type: one of `attention_maps.KINDS`.
        LR, HR: see the top of this file; None if there is no pair of heads or no row.
        rows: number of queries that are counted.
        modules: one entry for each attention module.
        pairs: redundancy of any two of the N heads of the type, [N, N], in the order of `modules`.
    """

    type: str
    LR: float | None
    HR: float | None
    rows: int
    modules: list[ModuleRedundancy]
    pairs: list[list[float]]


@dataclass
class RedundancyReport(Report):
    """The redundancy of the heads of a model.

    Attributes:
        LR, HR: means over the types of attention, in [0, 1]; None if there is no pair of heads, or no query
            that sees two keys.
        sentences: number of sentences of the data.
        types: one entry for each type of attention.
    """

    LR: float | None
    HR: float | None
    sentences: int
    types: list[TypeRedundancy]

    def text(self) -> str:
        width = max(len(module.module) for kind in self.types for module in kind.modules) + 2
        width = max(width, *(len(kind.type) for kind in self.types))
        lines = [f"{'':<{width}}     LR     HR"]
        for kind in self.types:
            heads = sum(module.heads for module in kind.modules)
            pairs = heads * (heads - 1) // 2
            lines.append(
                f"{kind.type:<{width}}{_number(kind.LR)}{_number(kind.HR)}  {heads} heads, {pairs} pairs, "
                f"{kind.rows} rows"
            )
            lines += [f"{'  ' + module.module:<{width}}{_number(module.LR)}" for module in kind.modules]
        lines.append(
            f"LR {_number(self.LR).strip()}, HR {_number(self.HR).strip()}: means over the types; "
            f"{self.sentences} sentences"
        )
        return "\n".join(lines)

    def tables(self) -> dict[str, list[dict]]:
        types = [
            {"type": kind.type, "module": module.module, "heads": module.heads, "LR": module.LR}
            for kind in self.types
            for module in kind.modules
        ]
        totals = [
            {
                "type": kind.type,
                "module": "all",
                "heads": sum(m.heads for m in kind.modules),
                "LR": kind.LR,
                "HR": kind.HR,
            }
            for kind in self.types
        ]
        return {"redundancy": [*types, *totals, {"type": "all", "LR": self.LR, "HR": self.HR}]}


class Redundancy(Analysis):
    """The analysis `redundancy` (see the top of this file). It needs two heads of the same type."""

    summary = "how similarly the heads of any model attend: layer redundancy LR and head redundancy HR"
    needs_attention = True

    def __init__(self, model: nn.Module):
        self.sentences = 0
        self.distances: dict[str, HeadDistances] = {}
        heads = dict.fromkeys(KINDS, 0)
        for name, module in attention_modules(model).items():
            heads[kind_of(name, module)] += module.num_heads
        if max(heads.values()) < 2:
            raise UsageError(
                "the model has no two attention heads of the same type to compare; analyse a model with at "
                "least two layers or heads"
            )

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        self.sentences += batch["nsentences"]
        for kind in KINDS:
            of_kind = [attention for attention in maps if attention.kind == kind]
            if of_kind:
                self.distances.setdefault(kind, HeadDistances()).add(of_kind)

    def report(self) -> RedundancyReport:
        types = [self.distances[kind].report(kind) for kind in KINDS if kind in self.distances]
        if not any(kind.HR is not None for kind in types):
            raise UsageError(
                "no word of this data sees two words, so heads cannot differ; give data with longer sentences"
            )
        return RedundancyReport(
            _mean(kind.LR for kind in types), _mean(kind.HR for kind in types), self.sentences, types
        )


class HeadDistances:
    """The distances of all pairs of heads of one type of attention, summed over rows. A row is one query."""

    def __init__(self) -> None:
        self.sums: Tensor | float = 0.0  # float64 [N, N], above the diagonal
        self.rows = 0
        self.modules: list[tuple[str, int]] = []  # (name, number of heads)

    def add(self, maps: list[AttentionMap]) -> None:
        """Add all attention maps of the type from one forward pass. They have the same queries and keys."""
        self.modules = [(attention.module, attention.weights.size(0)) for attention in maps]
        visible = maps[0].seen().sum(dim=-1)
        rows = torch.where(maps[0].valid_queries() & (visible > 1))
        order = visible[rows].argsort()  # puts rows that see few keys together
        self.rows += len(order)
        if len(order):
            heads = torch.cat([attention.weights[:, rows[0][order], rows[1][order]] for attention in maps])
            self.sums = self.sums + summed_distances(heads)

    def report(self, kind: str) -> TypeRedundancy:
        """Return the redundancy of the type. Raises UsageError if a weight was NaN."""
        names = dict(self.modules)
        if not self.rows or sum(heads for _, heads in self.modules) < 2:
            modules = [
                ModuleRedundancy(name, *place(name, names), heads, None) for name, heads in self.modules
            ]
            return TypeRedundancy(kind, None, None, self.rows, modules, [])
        assert isinstance(self.sums, Tensor)  # because there are rows
        redundancy = 1 - (self.sums + self.sums.T).cpu() / self.rows
        if not redundancy.isfinite().all():
            raise UsageError(
                "attention weights of this model are NaN, because its training diverged; use an earlier "
                "checkpoint"
            )
        blocks = itertools.accumulate((heads for _, heads in self.modules), initial=0)
        modules = [
            ModuleRedundancy(
                name,
                *place(name, names),
                heads,
                _mean_of_pairs(redundancy[first : first + heads, first : first + heads]),
            )
            for (name, heads), first in zip(self.modules, blocks, strict=False)
        ]
        lr = _mean(module.LR for module in modules)
        return TypeRedundancy(kind, lr, _mean_of_pairs(redundancy), self.rows, modules, redundancy.tolist())


def summed_distances(heads: Tensor) -> Tensor:
    """Return the Jensen-Shannon distance of every two heads, summed over rows, float64 [N, N].

    Only the values above the diagonal are set. The weights of the heads, `heads`, are [N, R, S] for R rows.
    With m = (a + b) / 2 and x = (a - b) / (a + b), the divergence is

        H(m) - (H(a) + H(b)) / 2 = 1/2 sum_j (a_j log(a_j / m_j) + b_j log(b_j / m_j))
                                 = 1/2 sum_j (a_j log1p(x_j) + b_j log1p(-x_j))

    If heads hardly differ, a difference of entropies would lose all digits, and the square root would make
    this visible: in float32, equal heads would have a distance of 3e-4. In this form, the error of a distance
    is one rounding error, so the precision of the weights, float32 or float64, is enough.
    """
    count, _, keys = heads.shape
    sums = heads.new_zeros(count, count, dtype=torch.float64)
    limits = torch.finfo(heads.dtype)
    largest = 1 - limits.eps / 2  # avoids log 0, which would be multiplied by a weight of 0
    for rows in heads.split(max(1, CHUNK // (count * keys)), dim=1):
        rows = rows[:, :, rows.amax(dim=(0, 1)) != 0]  # drops keys that are hidden from all queries
        for i in range(count - 1):
            a, b = rows[i], rows[i + 1 :]
            x = (a - b).div_((a + b).clamp_min_(limits.tiny)).clamp_(-largest, largest)
            terms = torch.log1p(x).mul_(a).addcmul_(x.neg_().log1p_(), b)
            divergences = terms.sum(dim=-1).div_(2 * math.log(2))
            sums[i, i + 1 :] += divergences.clamp_(0, 1).sqrt_().sum(dim=-1, dtype=torch.float64)
    return sums


def _mean_of_pairs(redundancy: Tensor) -> float | None:
    """Return the mean of a symmetric matrix [N, N] without its diagonal, or None if it has no pairs."""
    count = len(redundancy)
    pairs = redundancy[tuple(torch.triu_indices(count, count, offset=1))]
    return float(pairs.mean()) if pairs.numel() else None


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.3f}"
