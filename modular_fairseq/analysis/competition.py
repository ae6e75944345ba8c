"""Analyse how the mechanisms of TIM layers compete on a data set.

The paper is "Transformers with Competitive Ensembles of Independent Mechanisms", section 4. In every layer
with a competition, the values c [positions, mechanisms] sum to 1 at each position. The analysis computes:

    entropy       the entropy of c in nats: its mean and its percentiles over positions (figure 3, right); it
                  is ln n if none of the n mechanisms is preferred
    correlation   Pearson's correlation of c over positions between two layers, averaged over mechanisms
                  (figures 3 and 4); mechanism m of one layer is compared with mechanism m of the other; two
                  mechanisms always have the same correlation
    tokens        minimum, mean and maximum of c for every token that occurs five times or more (figure 4,
                  left)

The positions are the words of the source in an encoder, and the words that the decoder reads in a decoder.
Padding is not counted.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from fairseq.tasks import FairseqTask
from tabulate import tabulate
from torch import Tensor, nn

from modular_fairseq.analysis.attention_maps import AttentionMap
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.analysis.places import SIDES, dictionary_of, in_order, place, side_of, tokens_of
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.analysis.tokens import MINIMUM_COUNT
from modular_fairseq.modules.independent_mechanisms import Competition
from modular_fairseq_cli.errors import UsageError

PERCENTILES = (5, 25, 50, 75, 95)
BINS = 2000  # bins of the histogram of entropies; percentiles are exact to ln n / 2000
SHOWN = 30  # number of tokens of each layer in the report; the table has all of them


@dataclass
class LayerReport:
    """The competition in one layer.

    Attributes:
        module: name of the layer.
        layer, stream: place of the layer, from 1 (`places.place`).
        side: the tokens of its positions, one of `places.SIDES`.
        entropy: mean entropy of c over positions, in nats.
        uniform: entropy if all mechanisms have the same value, ln n, in nats.
        percentiles: percentiles of the entropy over positions, in nats, keyed by "5", "25", ...
        mean: for each mechanism, the mean of c over positions.
    """

    module: str
    layer: int
    stream: int | None
    side: str
    entropy: float
    uniform: float
    percentiles: dict[str, float]
    mean: list[float]


@dataclass
class CompetitionReport(Report):
    """The competition in all layers of a model.

    Attributes:
        mechanisms: n.
        layers: one entry for each layer.
        correlation: for each side, "layers" with the names of its layers and "matrix" with the correlation of
            any two of them. A value is None if c never changes in one of the layers.
        all_tokens: for each layer, "module" with its name and "tokens" with the values of each token, the
            most frequent first. `data` has only the first `SHOWN` of them, as "tokens".
    """

    mechanisms: int
    layers: list[LayerReport]
    correlation: list[dict]
    all_tokens: list[dict]

    def text(self) -> str:
        headers = [
            "module",
            "entropy",
            "of uniform",
            *(f"{p} %" for p in PERCENTILES),
            *(f"c{m + 1}" for m in range(self.mechanisms)),
        ]
        rows = [
            [each.module, each.entropy, each.entropy / each.uniform, *each.percentiles.values(), *each.mean]
            for each in self.layers
        ]
        return tabulate(rows, headers, floatfmt=".3f", tablefmt="plain")

    def data(self) -> dict:
        data = super().data()
        data["tokens"] = [{**each, "tokens": each["tokens"][:SHOWN]} for each in data.pop("all_tokens")]
        return data

    def tables(self) -> dict[str, list[dict]]:
        numbers = range(self.mechanisms)
        layers = [
            {
                "module": each.module,
                "entropy": each.entropy,
                "uniform": each.uniform,
                **{f"percentile {p}": value for p, value in each.percentiles.items()},
                **{f"mean c{m + 1}": each.mean[m] for m in numbers},
            }
            for each in self.layers
        ]
        correlation = [
            {"module": layer, **dict(zip(side["layers"], row, strict=True))}
            for side in self.correlation
            for layer, row in zip(side["layers"], side["matrix"], strict=True)
        ]
        tokens = [
            {
                "module": each["module"],
                "token": entry["token"],
                "count": entry["count"],
                **{f"{what} c{m + 1}": entry[what][m] for m in numbers for what in ("min", "mean", "max")},
            }
            for each in self.all_tokens
            for entry in each["tokens"]
        ]
        return {"competition": layers, "competition-correlation": correlation, "competition-tokens": tokens}


def competitions(model: nn.Module) -> dict[str, Competition]:
    """Return the competitions, keyed by the name of their layer.

    They are in the order in which a word passes through the layers.
    """
    parts = {
        name.removesuffix(".competition"): part
        for name, part in model.named_modules()
        if isinstance(part, Competition)
    }
    return in_order(parts)


class OfCompetitions(Analysis):
    """The base of analyses that record what competitions compute. They need mechanisms that compete.

    Attributes:
        parts: the competitions, keyed by the name of their layer.
        outputs: what they have computed since the last batch.
    """

    def __init__(self, model: nn.Module):
        self.parts = competitions(model)
        if not self.parts:
            raise UsageError(
                "the model has no mechanisms that compete; analyse a model trained with --tim-layers middle "
                "or all, with --tim-mechanisms 2 or more and without --tim-no-competition"
            )

    @contextmanager
    def watching(self) -> Iterator[None]:
        with recorded(self.parts) as self.outputs:
            yield


class CompetitionOfMechanisms(OfCompetitions):
    """The analysis `competition` (see the top of this file). It needs a model with competing mechanisms."""

    summary = (
        "competition of the mechanisms in TIM layers: entropy, correlation between layers, values for each "
        "token"
    )

    def __init__(self, model: nn.Module):
        super().__init__(model)
        self.model = model
        self.layers = {side: [name for name in self.parts if side_of(name) == side] for side in SIDES}
        self.sums: dict[str, LayerSums] = {}
        self.correlations: dict[str, Correlation] = {}

    def of_task(self, task: FairseqTask) -> None:
        if task.source_dictionary is None:
            raise UsageError(
                "the data has no words; use an analysis of the plugin whose task reads such data"
            )

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        outputs = pop(self.outputs)
        for side, layers in self.layers.items():
            if not layers:
                continue
            dictionary, tokens = dictionary_of(side, self.model), tokens_of(side, batch)
            valid = tokens.ne(dictionary.pad())
            values = [outputs[name].transpose(0, 1)[valid].double() for name in layers]  # T x B x n -> N x n
            for name, c in zip(layers, values, strict=True):
                if name not in self.sums:
                    self.sums[name] = LayerSums(len(dictionary), c.size(1), c.device)
                self.sums[name].add(tokens[valid], c)
            self.correlations.setdefault(side, Correlation()).add(torch.stack(values))

    def report(self) -> CompetitionReport:
        layers, tokens = [], []
        for name in self.parts:
            sums, side = self.sums[name], side_of(name)
            uniform = math.log(len(sums.mean()))
            layers.append(
                LayerReport(
                    name,
                    *place(name, self.parts),
                    side,
                    sums.entropy(),
                    uniform,
                    sums.percentiles(),
                    sums.mean(),
                )
            )
            tokens.append({"module": name, "tokens": sums.tokens(dictionary_of(side, self.model).symbols)})
        correlation = [
            {"side": side, "layers": self.layers[side], "matrix": each.matrix()}
            for side, each in self.correlations.items()
        ]
        return CompetitionReport(len(layers[0].mean), layers, correlation, tokens)


class LayerSums:
    """The sums over positions that the analysis keeps for one layer.

    They are a histogram of entropies, and the minimum, sum and maximum of c for every word of the dictionary.

    Args:
        types: size of the dictionary.
        mechanisms: n.
        device: where c is computed.
    """

    def __init__(self, types: int, mechanisms: int, device: torch.device):
        self.top = math.log(mechanisms)
        self.histogram = torch.zeros(BINS, dtype=torch.float64, device=device)
        self.entropies = torch.zeros((), dtype=torch.float64, device=device)
        self.count = torch.zeros(types, dtype=torch.int64, device=device)
        self.total = torch.zeros(types, mechanisms, dtype=torch.float64, device=device)
        self.minimum = torch.full_like(self.total, math.inf)
        self.maximum = torch.full_like(self.total, -math.inf)

    def add(self, tokens: Tensor, c: Tensor) -> None:
        """Add the positions of a batch: their tokens, int64 [N], and their values of c, float64 [N, n]."""
        entropy = torch.special.entr(c).sum(dim=1)
        bins = (
            (entropy / self.top * BINS).long().clamp_(0, BINS - 1) if self.top else torch.zeros_like(tokens)
        )
        self.histogram += torch.bincount(bins, minlength=BINS)
        self.entropies += entropy.sum()
        self.count += torch.bincount(tokens, minlength=len(self.count))
        self.total.index_add_(0, tokens, c)
        rows = tokens.unsqueeze(1).expand_as(c)
        self.minimum.scatter_reduce_(0, rows, c, "amin")
        self.maximum.scatter_reduce_(0, rows, c, "amax")

    def entropy(self) -> float:
        """Return the mean entropy over positions in nats."""
        return float(self.entropies / self.count.sum())

    def percentiles(self) -> dict[str, float]:
        """Return the percentiles of the entropy over positions in nats, each as the middle of its bin."""
        shares = self.histogram.cumsum(0) / self.histogram.sum()
        bins = [int(torch.searchsorted(shares, p / 100)) for p in PERCENTILES]
        return {str(p): (number + 0.5) / BINS * self.top for p, number in zip(PERCENTILES, bins, strict=True)}

    def mean(self) -> list[float]:
        """Return the mean of c over positions for each mechanism."""
        return (self.total.sum(dim=0) / self.count.sum()).tolist()

    def tokens(self, symbols: list[str]) -> list[dict]:
        """Return the values of all tokens that occur `MINIMUM_COUNT` times or more, the most frequent first.

        An entry has "token", "count", and for each mechanism the "min", "mean" and "max" of c. `symbols` are
        the words of the dictionary.
        """
        [types] = torch.where(self.count >= MINIMUM_COUNT)
        order = types[self.count[types].argsort(descending=True, stable=True)].tolist()
        return [
            {
                "token": symbols[i],
                "count": int(self.count[i]),
                "min": self.minimum[i].tolist(),
                "mean": (self.total[i] / self.count[i]).tolist(),
                "max": self.maximum[i].tolist(),
            }
            for i in order
        ]


class Correlation:
    """Pearson's correlation of c between layers, computed from sums of differences to the first position.

    With these differences, the variance of a layer in which c never changes is exactly 0.
    """

    def __init__(self) -> None:
        self.count = 0
        self.origin: Tensor | None = None  # c at the first position, [L, 1, n]
        self.first: Tensor | float = 0.0  # sum of the differences, [L, n]
        self.second: Tensor | float = 0.0  # sum of the products between layers, [n, L, L]

    def add(self, c: Tensor) -> None:
        """Add the positions of a batch with the values of c in all layers, float64 [L, N, n]."""
        if self.origin is None:
            self.origin = c[:, :1]
        c = c - self.origin
        self.count += c.size(1)
        self.first = self.first + c.sum(dim=1)
        of_mechanism = c.permute(2, 0, 1)  # n x L x N
        self.second = self.second + of_mechanism @ of_mechanism.transpose(1, 2)

    def matrix(self) -> list[list[float | None]]:
        """Return the correlation of any two layers, [L, L]. It is None if c never changes in one of them."""
        assert isinstance(self.first, Tensor) and isinstance(self.second, Tensor)  # `add` has been called
        mean = (self.first / self.count).T.unsqueeze(2)  # n x L x 1
        covariance = self.second / self.count - mean @ mean.transpose(1, 2)
        deviation = covariance.diagonal(dim1=1, dim2=2).clamp(min=0).sqrt()
        varies = (deviation > 0).all(dim=0)
        matrix = (
            (covariance / (deviation.unsqueeze(2) * deviation.unsqueeze(1))).mean(dim=0).clamp(-1, 1).tolist()
        )
        return [
            [value if varies[i] and varies[j] else None for j, value in enumerate(row)]
            for i, row in enumerate(matrix)
        ]
