"""How alike the heads of a model attend: layer and head redundancy ("Bayesian Transformer Using Disentangled
Mask Attention", section 4.1), LR and HR, where lower is more different.

For two heads whose weights at one query are a and b (sums of 1 over the keys), with the entropy H in bits:

    distance(a, b)   = sqrt(H((a + b) / 2) - (H(a) + H(b)) / 2)      the Jensen-Shannon distance, in [0, 1]
    redundancy(a, b) = 1 - distance(a, b)                            0 to 1, 1 for equal heads

The redundancy of two heads is the mean over all queries, each word counting once. Left out are pads, and
queries that may see fewer than two keys, as any two heads agree there. The paper gives no formula for the
rest; here, for each type of attention (encoder self-attention, decoder self-attention, cross-attention: heads
of different types look at different things):

    LR   the mean over the type's modules of the mean over the pairs of heads in the module
    HR   the mean over all pairs of heads of the type, in the same module or not

and LR and HR of the model are the means over the types that have any: types count equally in both, so that
the two can be compared. Where all types have as many modules, LR is the mean over all modules.

Weights are those that attention uses in evaluation: with the mask of DMA multiplied in and normalised. The
head scales of MAE are not in them. In a TIM layer heads of different mechanisms are pairs as well, as are
those of different streams for HR.
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

CHUNK = 2**17  # numbers of a chunk of rows, half a MiB in float32


@dataclass
class ModuleRedundancy:
    """LR: mean over the pairs of its heads; None where it has one head."""

    module: str
    layer: int
    stream: int | None
    heads: int
    LR: float | None


@dataclass
class TypeRedundancy:
    """Attention of one type; `pairs` [N, N] is the redundancy of any two of its heads, in the order of
    `modules`.
    """

    type: str
    LR: float | None
    HR: float | None
    rows: int
    modules: list[ModuleRedundancy]
    pairs: list[list[float]]


@dataclass
class RedundancyReport(Report):
    """Numbers are in [0, 1]; None where there is no pair of heads, or no row of two keys."""

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
            f"LR {_number(self.LR).strip()}, HR {_number(self.HR).strip()}: means of the types; "
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
    summary = "how alike the heads of any model attend: LR and HR"
    needs_attention = True

    def __init__(self, model: nn.Module):
        self.sentences = 0
        self.distances: dict[str, HeadDistances] = {}
        heads = dict.fromkeys(KINDS, 0)
        for name, module in attention_modules(model).items():
            heads[kind_of(name, module)] += module.num_heads
        if max(heads.values()) < 2:
            raise UsageError(
                "the model has no two attention heads of a type to compare; it needs layers or heads, two at "
                "least"
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
                "no word of this data sees two words, where heads could differ; give longer sentences"
            )
        return RedundancyReport(
            _mean(kind.LR for kind in types), _mean(kind.HR for kind in types), self.sentences, types
        )


class HeadDistances:
    """Sums over rows of the distance of every two heads of one type."""

    def __init__(self):
        self.sums: Tensor | float = 0.0  # [N, N], above the diagonal
        self.rows = 0
        self.modules: list[tuple[str, int]] = []

    def add(self, maps: list[AttentionMap]) -> None:
        """All attention of the type in one forward pass. Its modules attend from the same words to the same
        words.
        """
        self.modules = [(attention.module, attention.weights.size(0)) for attention in maps]
        visible = maps[0].seen().sum(dim=-1)
        rows = torch.where(maps[0].valid_queries() & (visible > 1))
        order = visible[rows].argsort()  # so that rows which see few keys are together
        self.rows += len(order)
        if len(order):
            heads = torch.cat([attention.weights[:, rows[0][order], rows[1][order]] for attention in maps])
            self.sums = self.sums + summed_distances(heads)

    def report(self, kind: str) -> TypeRedundancy:
        """Raises UsageError where a weight was not a number."""
        names = dict(self.modules)
        if not self.rows or sum(heads for _, heads in self.modules) < 2:
            modules = [
                ModuleRedundancy(name, *place(name, names), heads, None) for name, heads in self.modules
            ]
            return TypeRedundancy(kind, None, None, self.rows, modules, [])
        redundancy = 1 - (self.sums + self.sums.T).cpu() / self.rows
        if not redundancy.isfinite().all():
            raise UsageError(
                "attention weights of this model are not numbers (NaN); its training diverged, use an "
                "earlier checkpoint"
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
    """The Jensen-Shannon distance of every two heads, summed over rows: weights [N, R, S] -> float64 [N, N],
    above the diagonal.

    With m = (a + b) / 2 and x = (a - b) / (a + b), the divergence is

        H(m) - (H(a) + H(b)) / 2 = 1/2 sum_j (a_j log(a_j / m_j) + b_j log(b_j / m_j))
                                 = 1/2 sum_j (a_j log1p(x_j) + b_j log1p(-x_j))

    The difference of entropies would lose all digits where heads hardly differ, and the root of that would
    show: in float32 equal heads seem 3e-4 apart. Here the error of a distance is that of one rounding, so the
    precision of the weights, float32 or float64, is enough.
    """
    count, _, keys = heads.shape
    sums = heads.new_zeros(count, count, dtype=torch.float64)
    limits = torch.finfo(heads.dtype)
    largest = 1 - limits.eps / 2  # or a weight of 0 would be multiplied by log 0
    for rows in heads.split(max(1, CHUNK // (count * keys)), dim=1):
        rows = rows[:, :, rows.amax(dim=(0, 1)) != 0]  # many keys are hidden from all
        for i in range(count - 1):
            a, b = rows[i], rows[i + 1 :]
            x = (a - b).div_((a + b).clamp_min_(limits.tiny)).clamp_(-largest, largest)
            terms = torch.log1p(x).mul_(a).addcmul_(x.neg_().log1p_(), b)
            divergences = terms.sum(dim=-1).div_(2 * math.log(2))
            sums[i, i + 1 :] += divergences.clamp_(0, 1).sqrt_().sum(dim=-1, dtype=torch.float64)
    return sums


def _mean_of_pairs(redundancy: Tensor) -> float | None:
    """Of a symmetric [N, N], without its diagonal; None without pairs."""
    pairs = redundancy[tuple(torch.triu_indices(*redundancy.shape, offset=1))]
    return float(pairs.mean()) if pairs.numel() else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _number(value: float | None) -> str:
    return f"{'-':>7}" if value is None else f"{value:7.3f}"
