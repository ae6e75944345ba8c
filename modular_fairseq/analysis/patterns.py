"""Which pattern each attention head shows, sentence by sentence (Multi-Stream Transformers, section 3.3; the
classes are those of Kovaleva et al. 2019, "Revealing the Dark Secrets of BERT", with the diagonal split by
direction).

    vertical         most words attend to the same one or two
    diagonal         most words attend to themselves; in cross-attention, to the same relative place
    shift forward    ... to the next word
    shift backward   ... to the previous word
    soft diagonal    most attention is on at most two words to either side, and none of the above
    heterogeneous    none of these

The paper shows pictures and no rule; this is ours. For the keys of a class, m is the attention they get, the
mean over the queries that see one of them, and u what they would get if these queries attended to all that
they see alike. The score of a class is (m - u) / (1 - u): 0 for uniform attention, 1 for a perfect pattern,
whatever the length of the sentence and the causal mask. A map is of the class with the largest score among
the first four if that is 1/2 or more, else a soft diagonal if that scores 1/2, else heterogeneous. Vertical
keys are the two that get most attention in all, of those that half of the queries see at least.

Maps with fewer than five queries or keys are not counted: there everything is near the diagonal. Nor are
queries that see fewer than three keys. Relative places: query t of T looks at key t (S - 1) / (T - 1) of S.
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
SHIFTS = (0, 1, -1)  # of diagonal, shift forward, shift backward
BAND = 2  # words to either side
COLUMNS = 2  # of a vertical pattern
ENOUGH = 0.5
SHORTEST = 5
FEWEST_KEYS = 3


@dataclass
class HeadPatterns:
    """In how many sentences the head shows each class, and the most frequent one."""

    counts: list[int]
    most_frequent: str


@dataclass
class ModulePatterns:
    """One attention module; `stream` is None outside streams; `shares` of the classes are over heads and
    sentences.
    """

    module: str
    kind: str
    layer: int
    stream: int | None
    heads: list[HeadPatterns]
    shares: list[float]


@dataclass
class PatternReport(Report):
    """All modules; `sentences` of the data, short ones included."""

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
    summary = "vertical, diagonal and other patterns of every attention head of any model"
    needs_attention = True

    def __init__(self, model: nn.Module):
        self.modules = attention_modules(model)
        if not self.modules:
            raise UsageError("the model has no attention that could be looked at")
        self.counts: dict[str, Tensor] = {}
        self.kinds: dict[str, str] = {}
        self.sentences = 0

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        self.sentences += batch["nsentences"]
        for kind in KINDS:
            of_kind = [attention for attention in maps if attention.kind == kind]
            if not of_kind:
                continue
            # Modules of a kind attend from the same words to the same words.
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
                f"patterns need sentences of {SHORTEST} tokens or more, and this data has none; give longer "
                "ones"
            )
        return PatternReport(
            list(CLASSES),
            self.sentences,
            [self._of_module(name, counts.cpu()) for name, counts in self.counts.items()],
        )

    def _of_module(self, name: str, counts: Tensor) -> ModulePatterns:
        """Of counts [H, classes]."""
        heads = [HeadPatterns(head.tolist(), CLASSES[int(head.argmax())]) for head in counts]
        shares = (counts.sum(dim=0) / counts.sum().clamp(min=1)).tolist()
        return ModulePatterns(name, self.kinds[name], *place(name, self.modules), heads, shares)


@dataclass
class Templates:
    """What the classes look like in the sentences of one batch, the same for all maps of a type.

    Args:
        long_enough: bool [B].
        bands: [B, 4, T, S], diagonal, shift forward, shift backward and soft diagonal, each query weighed so
            that the weights of a class sum to 1 over queries that see one of its keys.
        uniform: [B, 4], what these get from uniform attention.
        rows: bool [B, T], the queries that count.
        seen_by: [B, S], how many of them see each key.
        uniform_columns: [B, S], what each key gets in all from uniform attention.
    """

    long_enough: Tensor
    bands: Tensor
    uniform: Tensor
    rows: Tensor
    seen_by: Tensor
    uniform_columns: Tensor

    @classmethod
    def of(cls, attention: AttentionMap) -> "Templates":
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
        """weights [H, B, T, S] -> classes [H, B], int64; those of short sentences are len(CLASSES)."""
        weights = weights.masked_fill(~self.rows[None, :, :, None], 0)  # a pad may attend to NaN
        scores = _above(torch.einsum("hbts,bkts->hbk", weights, self.bands), self.uniform)
        vertical = self._vertical(weights.sum(dim=2))
        hard = torch.cat([vertical.unsqueeze(2), scores[..., :3]], dim=2)  # in the order of CLASSES
        best_score, best_class = hard.max(dim=2)
        other = torch.where(scores[..., 3] >= ENOUGH, SOFT_DIAGONAL, HETEROGENEOUS)
        classes = torch.where(best_score >= ENOUGH, best_class, other)
        return torch.where(self.long_enough, classes, len(CLASSES))

    def _vertical(self, columns: Tensor) -> Tensor:
        """The score of the two keys that get most, [H, B], from what all keys get, [H, B, S].

        The queries that see one of them are those that see the earlier one: causal masks hide later keys
        only.
        """
        eligible = self.seen_by >= self.rows.sum(dim=1, keepdim=True) / 2
        best = columns.masked_fill(~eligible, -1).topk(min(COLUMNS, columns.size(2)), dim=2)
        seen_by = self.seen_by.expand_as(columns).gather(2, best.indices).amax(dim=2).clamp(min=1)
        uniform = self.uniform_columns.expand_as(columns).gather(2, best.indices).sum(dim=2) / seen_by
        return _above(best.values.clamp(min=0).sum(dim=2) / seen_by, uniform)


def place_of(valid: Tensor) -> Tensor:
    """The number of each word in its sentence, from 0, whatever side the pads are on: bool [B, T] -> float64
    [B, T].
    """
    return (valid.cumsum(dim=1) - 1).double()


def _above(mass: Tensor, uniform: Tensor) -> Tensor:
    """How far attention is from uniform (0) to all on these keys (1)."""
    return (mass - uniform) / (1 - uniform).clamp(min=1e-9)
