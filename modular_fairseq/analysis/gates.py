"""Analyse the gates and experts of a mixture of attentive experts (MAE, section 5.1 and appendix C).

For every attention module, `Gates` computes the entropy of its gate in nats, which is ln E if the gate is
uniform. For every expert, it computes the share of instances in which the expert has the largest gate. An
instance is a sentence if the gate sees a whole sentence, and a position if it sees a prefix or a window.

For every expert, `Experts` lists the tokens that are more frequent in its instances than in others.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import mean

from torch import nn

from modular_fairseq.analysis.attention_maps import KINDS, AttentionMap, attention_modules, kind_of
from modular_fairseq.analysis.one_pass import Analysis, Report
from modular_fairseq.analysis.places import SOURCE, TARGET, dictionary_of, in_order, place, tokens_of
from modular_fairseq.analysis.recording import pop, recorded
from modular_fairseq.analysis.tokens import MINIMUM_COUNT, TokenCounts, rows
from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.expert_mixture import ExpertMixture
from modular_fairseq.modules.gate_statistics import RARE, GateStatistics, GateSummary, entropy_and_shares
from modular_fairseq_cli.errors import UsageError


@dataclass
class GateReport:
    """The gate of one attention module.

    Attributes:
        module: name of the attention module.
        kind: its kind of attention, one of `attention_maps.KINDS`.
        layer, stream: its place, from 1 (`places.place`).
        entropy: mean entropy of the gate over instances, in nats.
        uniform: entropy of a uniform gate, ln E, in nats.
        instances: "sentences" or "positions".
        count: number of instances.
        shares: for each expert, the share of instances in which the expert has the largest gate.
    """

    module: str
    kind: str
    layer: int
    stream: int | None
    entropy: float
    uniform: float
    instances: str
    count: int
    shares: list[float]


@dataclass
class GateReports(Report):
    """The gates of all attention modules of a model.

    Attributes:
        entropy, max_share, min_share, rare_experts, experts: see `GateSummary`.
        kinds: mean entropy of each kind of attention, in nats. The paper (section 5.1) reports the encoder.
        uniform: mean entropy of uniform gates over the modules, in nats.
        modules: one entry for each attention module.
    """

    entropy: float
    kinds: dict[str, float]
    uniform: float
    max_share: float
    min_share: float
    rare_experts: int
    experts: int
    modules: list[GateReport]

    @classmethod
    def of(cls, modules: list[GateReport]) -> "GateReports":
        """Summarise the reports of all modules."""
        summary = GateSummary.of(
            [report.entropy for report in modules], [report.shares for report in modules]
        )
        return cls(
            **vars(summary),
            kinds={
                kind: mean(report.entropy for report in modules if report.kind == kind)
                for kind in KINDS
                if kind in {r.kind for r in modules}
            },
            uniform=mean(report.uniform for report in modules),
            modules=modules,
        )

    def text(self) -> str:
        """Return a table with a row for each module, followed by a summary."""
        width = max(len(report.module) for report in self.modules)
        lines = [f"{'module':<{width}}  entropy  % of instances with their largest gate at E1, E2, ..."]
        for report in self.modules:
            lines.append(
                f"{report.module:<{width}}  {report.entropy:7.3f}  "
                + " ".join(f"{100 * share:5.1f}" for share in report.shares)
            )
        lines.append(
            "mean gate entropy by kind: "
            + ", ".join(f"{kind} {entropy:.3f}" for kind, entropy in self.kinds.items())
        )
        lines.append(
            f"mean gate entropy {self.entropy:.3f} nats ({self.entropy / self.uniform:.3f} of a uniform "
            f"gate's {self.uniform:.3f}); shares from {100 * self.min_share:.1f} to "
            f"{100 * self.max_share:.1f} %, {self.rare_experts} of {self.experts} experts under "
            f"{100 * RARE:.0f} %"
        )
        return "\n".join(lines)

    def tables(self) -> dict[str, list[dict]]:
        return {
            "gates": [
                {
                    "module": report.module,
                    "entropy": report.entropy,
                    "uniform": report.uniform,
                    "instances": report.instances,
                    "count": report.count,
                    **{f"E{i}": share for i, share in enumerate(report.shares, start=1)},
                }
                for report in self.modules
            ]
        }


def learned_mixtures(model: nn.Module) -> dict[str, ExpertMixture]:
    """Return the mixtures with learned gates, in the order in which a word passes them.

    The keys are the names of their attention modules. Raises UsageError if there are none.
    """
    found = in_order(expert_mixtures(model))
    if not found:
        raise UsageError(
            "the model has no learned gates; analyse a model trained with --attention-type mae --mae-gating "
            "learned"
        )
    return found


def gate_networks(mixtures: Mapping[str, ExpertMixture]) -> dict[str, nn.Module]:
    """Return the gate networks of mixtures with learned gates, with the same keys."""
    return {
        name: mixture.gate_network for name, mixture in mixtures.items() if mixture.gate_network is not None
    }


def side_of_instances(mixture: ExpertMixture) -> str:
    """Return `SOURCE` if the instances of a gate are source tokens, or `TARGET` if a decoder reads them.

    A gate without a running mean sees a whole sentence, which is always a source sentence.
    """
    return SOURCE if mixture.running_mean is None else TARGET


class Gates(Analysis):
    """The analysis `gates` (see the top of this file). It needs a model with learned gates."""

    summary = "gate entropy and expert shares of a mixture of attentive experts"

    def __init__(self, model: nn.Module):
        self.mixtures = learned_mixtures(model)
        self.kinds = {name: kind_of(name, module) for name, module in attention_modules(model).items()}

    @contextmanager
    def watching(self) -> Iterator[None]:
        for mixture in self.mixtures.values():
            mixture.statistics = GateStatistics()
        try:
            yield
        finally:
            for mixture in self.mixtures.values():
                mixture.statistics = None

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        """Do nothing, because the mixtures keep their own sums."""

    def report(self) -> GateReports:
        reports = []
        for name, mixture in self.mixtures.items():
            assert mixture.statistics is not None  # set by `watching`
            sums = mixture.statistics.take()
            assert sums is not None  # the model has read at least one batch
            entropy, shares = entropy_and_shares(sums.double())
            instances = "sentences" if mixture.running_mean is None else "positions"
            uniform = math.log(len(shares))
            where = (name, self.kinds[name], *place(name, self.mixtures))
            count = int(sums[1:].sum())
            reports.append(GateReport(*where, entropy, uniform, instances, count, shares.tolist()))
        return GateReports.of(reports)


@dataclass
class ExpertTokens:
    """The typical tokens of the experts of one attention module.

    Attributes:
        module: name of the attention module.
        layer, stream: its place, from 1 (`places.place`).
        side: whose tokens its instances consist of, one of `places.SIDES`.
        experts: for each expert, its typical tokens (`TokenCounts.indicative`). A list may be empty.
        information: the mutual information of tokens and experts in nats (`tokens.information`).
    """

    module: str
    layer: int
    stream: int | None
    side: str
    experts: list[list[dict]]
    information: float


@dataclass
class ExpertReport(Report):
    """The typical tokens of the experts of all attention modules.

    Attributes:
        minimum_count: tokens that occur less often are in no list.
        information: the mean over the modules of their mutual information, in nats.
        modules: one entry for each attention module.
    """

    minimum_count: int
    information: float
    modules: list[ExpertTokens]

    def text(self) -> str:
        """Return the five most typical tokens of each expert of the first module (table 6 of the paper)."""
        first, *others = self.modules
        lines = [
            f"typical tokens of the experts of {first.module}, by pointwise mutual information; the files in "
            f"--out also have the tokens of {len(others)} more modules"
        ]
        for number, tokens in enumerate(first.experts, start=1):
            lines.append(
                f"  expert {number}: " + (" ".join(entry["token"] for entry in tokens[:5]) or "(none)")
            )
        lines.append(
            f"mutual information of tokens and experts: {self.information:.3f} nats (0 if independent)"
        )
        return "\n".join(lines)

    def tables(self) -> dict[str, list[dict]]:
        return {
            "experts": [
                {"module": each.module, **row}
                for each in self.modules
                for row in rows(each.experts, "expert")
            ]
        }


class Experts(Analysis):
    """The analysis `experts` (see the top of this file). It needs a model with learned gates."""

    summary = "tokens that are typical of each expert"

    def __init__(self, model: nn.Module):
        self.mixtures = learned_mixtures(model)
        self.model = model
        self.pad = dictionary_of(TARGET, model).pad()
        self.counts: dict[str, TokenCounts] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with recorded(gate_networks(self.mixtures)) as self.logits:
            yield

    def see(self, batch: dict, maps: list[AttentionMap]) -> None:
        for name, logits in pop(self.logits).items():
            side = side_of_instances(self.mixtures[name])
            tokens = tokens_of(side, batch)
            experts = logits.argmax(dim=-1).expand(tokens.shape)  # [B, T or 1] -> [B, T]
            valid = tokens.ne(self.pad)
            if name not in self.counts:
                self.counts[name] = TokenCounts(len(dictionary_of(side, self.model)), logits.size(-1))
            self.counts[name].add(tokens[valid], experts[valid])

    def report(self) -> ExpertReport:
        reports = []
        for name, counts in self.counts.items():
            side = side_of_instances(self.mixtures[name])
            experts = counts.indicative(dictionary_of(side, self.model).symbols)
            where = (name, *place(name, self.mixtures), side)
            reports.append(ExpertTokens(*where, experts, counts.information()))
        return ExpertReport(MINIMUM_COUNT, mean(each.information for each in reports), reports)
