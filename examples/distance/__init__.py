"""An example of a mechanism in one file. Copy this folder under another name, and change what it computes.

The mechanism adds a term to the scores of all self-attention:

    scores = Q K^T / sqrt(head_dim) - s_h log(1 + |i - j|)

Every head h learns its slope s_h. Attention weights fall with the distance |i - j|, and s_h = 0 is plain
attention. The idea follows ALiBi (Press et al. 2022) and KERPLE (Chi et al. 2022).
"""

from dataclasses import dataclass, field

import torch
from fairseq.dataclass import FairseqDataclass
from tabulate import tabulate
from torch import Tensor, nn

from modular_fairseq.analysis import ANALYSES
from modular_fairseq.analysis.attention_maps import AttentionMap
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.models import architectures
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.registry import Place, register_attention
from modular_fairseq.modules.incremental import IncrementalModule
from modular_fairseq_cli.errors import UsageError


@dataclass
class DistanceOptions(FairseqDataclass):
    """The options that fairseq-train gets. The name of each starts with the name of the mechanism."""

    distance_slope: float = field(
        default=0.5,
        metadata={
            "help": "slope s_h of every head before training; 0: the model starts as plain attention "
            "(default: 0.5)"
        },
    )


class DistancePenalty(IncrementalModule):
    """The `mask` of one attention module (`modules/attention.py`): a bias on the scores.

    Args:
        num_heads: H. Each head has a slope of its own.
        slope: initial value of all slopes.
    """

    def __init__(self, num_heads: int, slope: float):
        super().__init__()
        self.slope = nn.Parameter(torch.full((1, num_heads, 1, 1), float(slope)))

    def forward(
        self,
        query: Tensor,
        key: Tensor | None,
        projected: Tensor,
        query_padding_mask: Tensor | None,
        key_padding_mask: Tensor | None,
        incremental_state: dict | None = None,
    ) -> Tensor:
        """Compute the bias [1, H, T, S].

        The T queries, `query` [T, B, C], are the last of S words. In a search, earlier steps have seen the S
        - T words before them. In training there is no incremental state, so nothing is stored and S equals T.
        """
        seen = self.get_incremental_state(incremental_state, "seen") or 0
        self.set_incremental_state(incremental_state, "seen", seen + len(query))
        words = torch.arange(seen + len(query), device=query.device)
        return -self.slope * (words[seen:, None] - words).abs().log1p()


@register_attention(
    "distance", seam="mask", options=DistanceOptions, summary="weights fall with the distance between words"
)
def build_penalty(options: Options, place: Place) -> DistancePenalty | None:
    """Build the penalty of one self-attention module; cross-attention gets none."""
    return DistancePenalty(place.num_heads, options.distance_slope) if place.self_attention else None


architectures.register(
    "distance_transformer_tiny_cpu", architectures.TINY_CPU, {"attention_type": "distance"}
)


# The analysis follows. In the package it would be a file of its own in analysis/.
@dataclass
class Distances(Report):
    """The result of the analysis.

    Attributes:
        table: a row for each head, with its slope and its mean distance in words. The report shows it.
    """

    table: list[dict]

    def text(self) -> str:
        """Return the table that the command prints."""
        return tabulate(self.table, headers="keys", floatfmt=".3f")

    def tables(self) -> dict[str, list[dict]]:
        """Return the tables that --out receives, by name."""
        return {"distance": self.table}


class Distance(Analysis):
    """The analysis `modular-fairseq analyze distance`, which sums over all positions of the data."""

    summary = "how fast the attention of each head falls with distance, and its mean distance in words"
    needs_attention = True

    def __init__(self, model: torch.nn.Module):
        self.slopes = {
            name.removesuffix(".mask"): module.slope.flatten()
            for name, module in model.named_modules()
            if isinstance(module, DistancePenalty)
        }
        if not self.slopes:
            raise UsageError(
                "the model has no distance penalty; analyse a model trained with --attention-type distance"
            )
        # For every module a tensor [H + 1]: the summed distances of its heads, and the number of positions.
        self.sums: dict = dict.fromkeys(self.slopes, 0.0)

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        """Add the attention weights of one batch."""
        for seen in (each for each in maps if each.module in self.slopes):
            words, valid = (
                torch.arange(seen.weights.size(-1), device=seen.weights.device),
                seen.valid_queries(),
            )
            sums = (seen.weights * (words[:, None] - words).abs()).sum(dim=-1)[:, valid].sum(dim=-1)
            self.sums[seen.module] += torch.cat([sums, valid.sum().view(1)])

    def report(self) -> Distances:
        """Return the means over all positions."""
        rows = []
        for name, slopes in self.slopes.items():
            means = self.sums[name][:-1] / self.sums[name][-1]
            for head, (slope, mean) in enumerate(zip(slopes, means, strict=True), start=1):
                rows.append(
                    {"module": name, "head": head, "slope": float(slope), "mean distance": float(mean)}
                )
        return Distances(rows)


ANALYSES["distance"] = Distance
