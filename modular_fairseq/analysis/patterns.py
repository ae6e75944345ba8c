"""Classify the pattern that each attention head shows in each sentence.

The analysis follows "Multi-Stream Transformers", section 3.3. The classes are those of Kovaleva et al. 2019,
"Revealing the Dark Secrets of BERT", but the diagonal is split by direction:

    vertical         most words attend to the same one or two words
    diagonal         most words attend to themselves, or in cross-attention to the word at the same relative
                     place
    shift forward    most words attend to the next word
    shift backward   most words attend to the previous word
    soft diagonal    none of the above, but most attention is on words that are at most two places away
    heterogeneous    none of these

The paper shows pictures and gives no rule. The rule here is this project's own. Each class has keys for each
query. Let m be the attention that these keys get, as a mean over the queries that see at least one of them.
Let u be the attention that they would get if these queries attended equally to all keys that they see. The
score of the class is (m - u) / (1 - u). It is 0 for uniform attention and 1 for a perfect pattern, whatever
the length of the sentence and the causal mask.

A map belongs to the class with the largest score among the first four, if that score is at least 1/2.
Otherwise it is a soft diagonal if that class has a score of at least 1/2, and heterogeneous if not. The
vertical keys are the two that get the most attention in total, among the keys that at least half of the
queries see.

Maps with fewer than five queries or keys are not counted, because everything in them is near the diagonal.
Queries that see fewer than three keys are not counted either. In cross-attention, query t of T has the same
relative place as key t (S - 1) / (T - 1) of S, counted from 0.
"""

from dataclasses import dataclass

import torch
from tabulate import tabulate
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import CROSS, KINDS, AttentionMap, attention_modules
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.analysis.places import place
from modular_fairseq_cli.errors import UsageError

CLASSES = ("vertical", "diagonal", "shift forward", "shift backward", "soft diagonal", "heterogeneous")
SOFT_DIAGONAL, HETEROGENEOUS = CLASSES.index("soft diagonal"), CLASSES.index("heterogeneous")
SHIFTS = (0, 1, -1)  # key minus query in the classes diagonal, shift forward and shift backward
BAND = 2  # words to either side in a soft diagonal
COLUMNS = 2  # keys of a vertical pattern
ENOUGH = 0.5  # smallest score of a class
SHORTEST = 5  # smallest number of queries and of keys in a map that is counted
FEWEST_KEYS = 3  # smallest number of keys that a query must see to be counted


@dataclass
class HeadPatterns:
    """The patterns of one head.

    Attributes:
        counts: for each of `CLASSES`, the number of sentences in which the head shows it.
        most_frequent: the class with the largest count, or "" if no sentence was long enough.
    """

    counts: list[int]
    most_frequent: str


@dataclass
class ModulePatterns:
    """The patterns of one attention module.

    Attributes:
        module: name of the module.
        kind: its kind of attention, one of `attention_maps.KINDS`.
        layer, stream: its place, from 1 (`places.place`).
        heads: one entry for each head.
        shares: for each of `CLASSES`, its share of the maps of all heads and sentences.
    """

    module: str
    kind: str
    layer: int
    stream: int | None
    heads: list[HeadPatterns]
    shares: list[float]


@dataclass
class PatternReport(Report):
    """The patterns of all attention modules.

    Attributes:
        classes: `CLASSES`.
        sentences: number of sentences of the data, including those that are too short to be counted.
        modules: one entry for each attention module.
    """

    classes: list[str]
    sentences: int
    modules: list[ModulePatterns]

    def text(self) -> str:
        headers = ["% of maps", "layer", "stream", *CLASSES]
        rows = [
            [each.module, each.layer, each.stream or "", *(f"{100 * share:.0f}" for share in each.shares)]
            for kind in KINDS
            for each in self.modules
            if each.kind == kind
        ]
        return tabulate(rows, headers, tablefmt="plain")

    def data(self) -> dict:
        data = super().data()
        for module in data["modules"]:
            module["heads"] = [
                {"counts": head["counts"], "class": head["most_frequent"]} for head in module["heads"]
            ]
        return data

    def tables(self) -> dict[str, list[dict]]:
        return {
            "patterns": [
                {
                    "module": each.module,
                    "kind": each.kind,
                    "layer": each.layer,
                    "stream": each.stream,
                    "head": number,
                    "class": head.most_frequent,
                    **dict(zip(CLASSES, head.counts, strict=True)),
                }
                for each in self.modules
                for number, head in enumerate(each.heads, start=1)
            ]
        }


class Patterns(Analysis):
    """The analysis `patterns` (see the top of this file). It works with every model that has attention."""

    summary = "vertical, diagonal and other attention patterns of every head, in any model"
    needs_attention = True

    def __init__(self, model: nn.Module):
        self.modules = attention_modules(model)
        if not self.modules:
            raise UsageError("the model has no attention; analyse a model with attention modules")
        self.counts: dict[str, Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.sentences = 0

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        self.sentences += batch["nsentences"]
        for kind in KINDS:
            of_kind = [attention for attention in maps if attention.kind == kind]
            if not of_kind:
                continue
            # All modules of a kind have the same queries and keys.
            templates = Templates.of(of_kind[0])
            for attention in of_kind:
                shown = torch.nn.functional.one_hot(templates.classify(attention.weights), len(CLASSES) + 1)[
                    ..., :-1
                ].sum(dim=1)
                self.counts[attention.module] = self.counts.get(attention.module, 0) + shown
                self.kinds[attention.module] = kind

    def report(self) -> PatternReport:
        if not any(int(counts.sum()) for counts in self.counts.values()):
            raise UsageError(
                f"patterns need sentences of {SHORTEST} tokens or more, and this data has none; give data "
                "with longer sentences"
            )
        return PatternReport(
            list(CLASSES),
            self.sentences,
            [self._of_module(name, counts.cpu()) for name, counts in self.counts.items()],
        )

    def _of_module(self, name: str, counts: Tensor) -> ModulePatterns:
        """Return the patterns of a module from the counts of its heads, [H, classes]."""
        heads = [
            HeadPatterns(head.tolist(), CLASSES[int(head.argmax())] if head.any() else "") for head in counts
        ]
        shares = (counts.sum(dim=0) / counts.sum().clamp(min=1)).tolist()
        return ModulePatterns(name, self.kinds[name], *place(name, self.modules), heads, shares)


@dataclass
class Templates:
    """The keys of each class in the sentences of one batch. They are the same for all maps of a kind.

    Attributes:
        long_enough: whether the maps of a sentence are counted, bool [B].
        bands: keys of diagonal, shift forward, shift backward and soft diagonal, [B, 4, T, S]. The values are
            weights, so that the sum of attention times weights is m: each query that sees a key of the class
            has the same weight, and these weights sum to 1.
        uniform: u of these four classes, [B, 4].
        rows: the queries that are counted, bool [B, T].
        seen_by: for each key, the number of counted queries that see it, [B, S].
        uniform_columns: for each key, the total attention that it would get from uniform attention, [B, S].
    """

    long_enough: Tensor
    bands: Tensor
    uniform: Tensor
    rows: Tensor
    seen_by: Tensor
    uniform_columns: Tensor

    @classmethod
    def of(cls, attention: AttentionMap) -> "Templates":
        """Compute the templates for the sentences of an attention map."""
        queries, seen = attention.valid_queries(), attention.seen()
        keys = seen.any(dim=1)
        from_query, to_key = place_of(queries), place_of(keys)
        looked_at = from_query
        if attention.kind == CROSS:
            looked_at = (
                from_query * (keys.sum(1, keepdim=True) - 1) / (queries.sum(1, keepdim=True) - 1).clamp(min=1)
            )
        counted = queries & (seen.sum(dim=2) >= FEWEST_KEYS)
        seen = (seen & counted[:, :, None]).to(attention.weights.dtype)
        visible = seen.sum(dim=2, keepdim=True).clamp(min=1)
        offset = to_key[:, None, :] - looked_at.round()[:, :, None]
        near = (to_key[:, None, :] - looked_at[:, :, None]).abs() <= BAND
        bands = torch.stack([*(offset == shift for shift in SHIFTS), near], dim=1) * seen[:, None]
        sees_one = bands.any(dim=3, keepdim=True)
        bands = bands / sees_one.sum(dim=2, keepdim=True).clamp(min=1)
        long_enough = (queries.sum(dim=1) >= SHORTEST) & (keys.sum(dim=1) >= SHORTEST)
        return cls(
            long_enough,
            bands,
            (bands / visible[:, None]).sum(dim=(2, 3)),
            counted,
            seen.sum(dim=1),
            (seen / visible).sum(dim=1),
        )

    def classify(self, weights: Tensor) -> Tensor:
        """Return the class of each map, int64 [H, B], from attention weights [H, B, T, S].

        It is an index into `CLASSES`, or len(CLASSES) for a sentence that is too short.
        """
        weights = weights.masked_fill(~self.rows[None, :, :, None], 0)  # the weights of padding may be NaN
        scores = _above(torch.einsum("hbts,bkts->hbk", weights, self.bands), self.uniform)
        vertical = self._vertical(weights.sum(dim=2))
        hard = torch.cat([vertical.unsqueeze(2), scores[..., :3]], dim=2)  # in the order of CLASSES
        best_score, best_class = hard.max(dim=2)
        other = torch.where(scores[..., 3] >= ENOUGH, SOFT_DIAGONAL, HETEROGENEOUS)
        classes = torch.where(best_score >= ENOUGH, best_class, other)
        return torch.where(self.long_enough, classes, len(CLASSES))

    def _vertical(self, columns: Tensor) -> Tensor:
        """Return the score of the class vertical, [H, B], from the attention that each key gets, [H, B, S].

        The queries that see at least one of the two keys are those that see the earlier key, because causal
        masks hide later keys only.
        """
        eligible = self.seen_by >= self.rows.sum(dim=1, keepdim=True) / 2
        best = columns.masked_fill(~eligible, -1).topk(min(COLUMNS, columns.size(2)), dim=2)
        seen_by = self.seen_by.expand_as(columns).gather(2, best.indices).amax(dim=2).clamp(min=1)
        uniform = self.uniform_columns.expand_as(columns).gather(2, best.indices).sum(dim=2) / seen_by
        return _above(best.values.clamp(min=0).sum(dim=2) / seen_by, uniform)


def place_of(valid: Tensor) -> Tensor:
    """Return the index of each word in its sentence, from 0, float64 [B, T].

    Args:
        valid: True for words and False for padding, bool [B, T]. Padding may be on either side.
    """
    return (valid.cumsum(dim=1) - 1).double()


def _above(mass: Tensor, uniform: Tensor) -> Tensor:
    """Return the score (m - u) / (1 - u): 0 for uniform attention, 1 if these keys get all attention."""
    return (mass - uniform) / (1 - uniform).clamp(min=1e-9)
