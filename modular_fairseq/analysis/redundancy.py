"""Measure how similarly the heads of a model attend: layer redundancy (LR) and head redundancy (HR).

"Bayesian Transformer Using Disentangled Mask Attention" introduces both in section 4.1. A lower value means
more different heads. There are two definitions, and their values differ much. This module computes both.
`divergences.py` explains the distance and the divergences of heads.

**By distance.** The paper's text names the Jensen-Shannon distance, but gives no formula. Here the redundancy
of two heads is 1 - distance. It is in [0, 1], and 1 for equal heads.

    LR_distance    the mean over the modules of a type of the mean over all pairs of heads in a module
    HR_distance    the mean over all pairs of heads of a type, in the same module or in different ones

**By divergence.** The figures that the paper prints come from its authors' released code, whose formulas are,
for the encoder self-attention only:

    LR_divergence  the mean over the modules of (log2 h - the generalised divergence of its h heads) / log2 h
    HR_divergence  the mean over all N^2 pairs of the N heads of 1 - divergence, a head with itself included

The values by divergence are larger: divergence = distance^2 is at most the distance, and in HR the pairs of a
head with itself count as 1. The released code takes the mean over words in each sentence, and then the mean
over sentences. It leaves out the row and the column of the end of a sentence, so that rows no longer sum to
1, counts the rows of padding, and cuts some maps by the lengths of target sentences. This module does none of
this. It takes the mean over all queries, and each word counts once. Padding is left out, and so are queries
that may see fewer than two keys, because all heads agree there. The released code's values are larger by .04
to .07 (docs/looking-inside.md).

A model has up to three types of attention: encoder self-attention, decoder self-attention and
cross-attention. All values are computed for each type, because heads of different types attend to different
things. The values of the model that end in `_all` are the means over the types that have a value. All types
have the same weight. The values that end in `_encoder` are of the encoder self-attention only. The paper's
figures compare with `LR_divergence_encoder` and `HR_divergence_encoder`, and with nothing else.

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

from modular_fairseq.analysis.attention_maps import (
    ENCODER,
    KINDS,
    AttentionMap,
    attention_modules,
    kind_of,
)
from modular_fairseq.analysis.divergences import Differences, summed_differences
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.analysis.places import place
from modular_fairseq_cli.errors import UsageError

# What LR and HR are, by the end of the names of their fields.
MEANINGS = {
    "distance": "1 - Jensen-Shannon distance, as in the text of the DMA paper",
    "divergence": "by Jensen-Shannon divergences, as in its authors' code; the paper's figures are of the "
    f"{ENCODER}",
}


@dataclass
class ModuleRedundancy:
    """The redundancy of one attention module.

    Attributes:
        module: name of the module.
        layer, stream: its place, from 1 (`places.place`).
        heads: number of heads.
        LR_distance, LR_divergence: see the top of this file; None if it has one head, or no row.
    """

    module: str
    layer: int
    stream: int | None
    heads: int
    LR_distance: float | None
    LR_divergence: float | None


@dataclass
class TypeRedundancy:
    """The redundancy of one type of attention.

    Attributes:
        type: one of `attention_maps.KINDS`.
        LR_distance, HR_distance, LR_divergence, HR_divergence: see the top of this file; None if there is no
            pair of heads or no row.
        rows: number of queries that are counted.
        modules: one entry for each attention module.
        pairs_distance: redundancy by distance of any two of the N heads of the type, [N, N], in the order of
            `modules`.
    """

    type: str
    LR_distance: float | None
    HR_distance: float | None
    LR_divergence: float | None
    HR_divergence: float | None
    rows: int
    modules: list[ModuleRedundancy]
    pairs_distance: list[list[float]]


@dataclass
class RedundancyReport(Report):
    """The redundancy of the heads of a model.

    Attributes:
        *_all: means over the types of attention, in [0, 1]; None if there is no pair of heads, or no query
            that sees two keys.
        *_encoder: the values of the encoder self-attention; None if it has no value.
        sentences: number of sentences of the data.
        types: one entry for each type of attention.
    """

    LR_distance_all: float | None
    HR_distance_all: float | None
    LR_divergence_all: float | None
    HR_divergence_all: float | None
    LR_distance_encoder: float | None
    HR_distance_encoder: float | None
    LR_divergence_encoder: float | None
    HR_divergence_encoder: float | None
    sentences: int
    types: list[TypeRedundancy]

    @classmethod
    def of_types(cls, sentences: int, types: list[TypeRedundancy]) -> "RedundancyReport":
        """Return the report of a model whose types of attention have this redundancy."""
        values: dict[str, float | None] = {}
        for measure, definition in itertools.product(("LR", "HR"), MEANINGS):
            name = f"{measure}_{definition}"
            by_type = {kind.type: getattr(kind, name) for kind in types}
            values |= {f"{name}_all": _mean(by_type.values()), f"{name}_encoder": by_type.get(ENCODER)}
        return cls(sentences=sentences, types=types, **values)

    def text(self) -> str:
        width = max(len(module.module) for kind in self.types for module in kind.modules) + 2
        width = max(width, *(len(kind.type) for kind in self.types))
        lines = [
            f"{'':<{width}}  by distance   by divergence",
            f"{'':<{width}}     LR     HR     LR     HR",
        ]
        for kind in self.types:
            heads = sum(module.heads for module in kind.modules)
            pairs = heads * (heads - 1) // 2
            of_type = (kind.LR_distance, kind.HR_distance, kind.LR_divergence, kind.HR_divergence)
            lines.append(
                _line(kind.type, width, of_type) + f"  {heads} heads, {pairs} pairs, {kind.rows} rows"
            )
            for module in kind.modules:
                of_module = (module.LR_distance, "", module.LR_divergence, "")
                lines.append(_line(f"  {module.module}", width, of_module).rstrip())
        of_all = (self.LR_distance_all, self.HR_distance_all, self.LR_divergence_all, self.HR_divergence_all)
        lines.append(_line("mean of the types", width, of_all) + f"  {self.sentences} sentences")
        return "\n".join([*lines, *(f"{name}: {meaning}" for name, meaning in MEANINGS.items())])

    def tables(self) -> dict[str, list[dict]]:
        modules = [
            {
                "type": kind.type,
                "module": module.module,
                "heads": module.heads,
                "LR_distance": module.LR_distance,
                "LR_divergence": module.LR_divergence,
            }
            for kind in self.types
            for module in kind.modules
        ]
        totals = [
            {
                "type": kind.type,
                "module": "all",
                "heads": sum(m.heads for m in kind.modules),
                "LR_distance": kind.LR_distance,
                "HR_distance": kind.HR_distance,
                "LR_divergence": kind.LR_divergence,
                "HR_divergence": kind.HR_divergence,
            }
            for kind in self.types
        ]
        model = {
            "type": "all",
            "LR_distance": self.LR_distance_all,
            "HR_distance": self.HR_distance_all,
            "LR_divergence": self.LR_divergence_all,
            "HR_divergence": self.HR_divergence_all,
        }
        return {"redundancy": [*modules, *totals, model]}


class Redundancy(Analysis):
    """The analysis `redundancy` (see the top of this file). It needs two heads of the same type."""

    summary = "how similarly the heads of any model attend: layer redundancy LR and head redundancy HR"
    needs_attention = True

    def __init__(self, model: nn.Module):
        self.sentences = 0
        self.heads: dict[str, HeadDifferences] = {}
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
                self.heads.setdefault(kind, HeadDifferences()).add(of_kind)

    def report(self) -> RedundancyReport:
        types = [self.heads[kind].report(kind) for kind in KINDS if kind in self.heads]
        if not any(kind.HR_distance is not None for kind in types):
            raise UsageError(
                "no word of this data sees two words, so heads cannot differ; give data with longer sentences"
            )
        return RedundancyReport.of_types(self.sentences, types)


class HeadDifferences:
    """How much the heads of one type of attention differ, summed over rows. A row is one query."""

    def __init__(self) -> None:
        self.sums: Differences | None = None
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
            sizes = [count for _, count in self.modules]
            self.sums = summed_differences(heads, sizes).plus(self.sums)

    def report(self, kind: str) -> TypeRedundancy:
        """Return the redundancy of the type. Raises UsageError if a weight was NaN."""
        names = dict(self.modules)
        if self.sums is None or sum(heads for _, heads in self.modules) < 2:
            modules = [
                ModuleRedundancy(name, *place(name, names), heads, None, None) for name, heads in self.modules
            ]
            return TypeRedundancy(kind, None, None, None, None, self.rows, modules, [])
        distances, divergences = (
            1 - (sums + sums.T).cpu() / self.rows for sums in (self.sums.distances, self.sums.divergences)
        )
        if not distances.isfinite().all():
            raise UsageError(
                "attention weights of this model are NaN, because its training diverged; use an earlier "
                "checkpoint"
            )
        blocks = itertools.accumulate((heads for _, heads in self.modules), initial=0)
        generalised = (self.sums.generalised.cpu() / self.rows).tolist()
        modules = [
            ModuleRedundancy(
                name,
                *place(name, names),
                heads,
                _mean_of_pairs(distances[first : first + heads, first : first + heads]),
                1 - divergence / math.log2(heads) if heads > 1 else None,
            )
            for (name, heads), first, divergence in zip(self.modules, blocks, generalised, strict=False)
        ]
        return TypeRedundancy(
            kind,
            _mean(module.LR_distance for module in modules),
            _mean_of_pairs(distances),
            _mean(module.LR_divergence for module in modules),
            float(divergences.mean()),
            self.rows,
            modules,
            distances.tolist(),
        )


def _mean_of_pairs(redundancy: Tensor) -> float | None:
    """Return the mean of a symmetric matrix [N, N] without its diagonal, or None if it has no pairs."""
    count = len(redundancy)
    pairs = redundancy[tuple(torch.triu_indices(count, count, offset=1, device=redundancy.device))]
    return float(pairs.mean()) if pairs.numel() else None


def _mean(values: Iterable[float | None]) -> float | None:
    """Return the mean of the values that are not None, or None if there are none."""
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _line(name: str, width: int, values: Iterable[float | str | None]) -> str:
    """Return a line of a table: a name, and columns of 7 characters. None is shown as a dash."""
    cells = ("-" if v is None else v if isinstance(v, str) else f"{v:.3f}" for v in values)
    return f"{name:<{width}}" + "".join(f"{cell:>7}" for cell in cells)
