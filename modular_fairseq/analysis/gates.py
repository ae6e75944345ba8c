"""What the gates of a mixture of attentive experts do on a data set (MAE, section 5.1 and appendix C).

For every attention module: the entropy of its gate in nats (ln E is uniform), and for every expert the share
of instances whose largest gate is that expert's. Instances are sentences where a gate sees a whole sentence,
and positions where it sees a prefix or window. `Experts` lists
the tokens that occur more often than elsewhere in the sentences, or at the positions, of each expert.
"""

import math
from collections.abc import Iterator
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
from modular_fairseq.modules.expert_mixture import RARE, ExpertMixture, GateStatistics, entropy_and_shares
from modular_fairseq_cli.errors import UsageError


@dataclass
class GateReport:
    """The gate of one attention module: its mean entropy and the entropy of a uniform gate, both in nats, the
    number of instances, and the share of instances of each expert.
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
    """The gates of all modules. `entropy` and `uniform` are means over the modules. `kinds` has the mean
    entropy of each kind of attention; the paper (section 5.1) reports the encoder. The shares tell whether
    the rich get richer.
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
        shares = [share for report in modules for share in report.shares]
        return cls(
            entropy=mean(report.entropy for report in modules),
            kinds={
                kind: mean(report.entropy for report in modules if report.kind == kind)
                for kind in KINDS
                if kind in {r.kind for r in modules}
            },
            uniform=mean(report.uniform for report in modules),
            max_share=max(shares),
            min_share=min(shares),
            rare_experts=sum(share < RARE for share in shares),
            experts=len(shares),
            modules=modules,
        )

    def text(self) -> str:
        """A row a module, and a summary."""
        width = max(len(report.module) for report in self.modules)
        lines = [f"{'module':<{width}}  entropy  largest gate: % of instances at each expert, E1, E2, ..."]
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
            f"mean gate entropy {self.entropy:.3f} nats ({self.entropy / self.uniform:.3f} of uniform, "
            f"{self.uniform:.3f}); shares {100 * self.min_share:.1f} to {100 * self.max_share:.1f} %, "
            f"{self.rare_experts} of {self.experts} experts under {100 * RARE:.0f} %"
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
    """Raises UsageError where there is none."""
    found = in_order(expert_mixtures(model))
    if not found:
        raise UsageError(
            "the model has no learned gates to look at; it needs --attention-type mae --mae-gating learned"
        )
    return found


def side_of_instances(mixture: ExpertMixture) -> str:
    """A gate without a running mean sees a whole sentence, which is always one of the source."""
    return SOURCE if mixture.running_mean is None else TARGET


class Gates(Analysis):
    summary = "entropy and expert shares of a mixture of attentive experts"

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
        """Mixtures keep their own sums."""

    def report(self) -> GateReports:
        reports = []
        for name, mixture in self.mixtures.items():
            sums = mixture.statistics.take().double()
            entropy, shares = entropy_and_shares(sums)
            instances = "sentences" if mixture.running_mean is None else "positions"
            uniform = math.log(len(shares))
            where = (name, self.kinds[name], *place(name, self.mixtures))
            reports.append(
                GateReport(*where, entropy, uniform, instances, int(sums[1:].sum()), shares.tolist())
            )
        return GateReports.of(reports)


@dataclass
class ExpertTokens:
    """One attention module; `experts` has a list for each expert, which may be empty."""

    module: str
    layer: int
    stream: int | None
    side: str
    experts: list[list[dict]]


@dataclass
class ExpertReport(Report):
    """All modules; tokens that occur less than `minimum_count` times are in no list."""

    minimum_count: int
    modules: list[ExpertTokens]

    def text(self) -> str:
        """The five most indicative tokens of each expert (table 6), of the first layer; all others are in the
        other forms.
        """
        first, *others = self.modules
        lines = [
            f"indicative tokens of {first.module}, by pointwise mutual information; --out has the tokens of "
            f"{len(others)} more modules"
        ]
        for number, tokens in enumerate(first.experts, start=1):
            lines.append(
                f"  expert {number}: " + (" ".join(entry["token"] for entry in tokens[:5]) or "(none)")
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
    summary = "tokens that are typical of each expert"

    def __init__(self, model: nn.Module):
        self.mixtures = learned_mixtures(model)
        self.model = model
        self.pad = dictionary_of(TARGET, model).pad()
        self.counts: dict[str, TokenCounts] = {}

    @contextmanager
    def watching(self) -> Iterator[None]:
        with recorded({name: mixture.gate_network for name, mixture in self.mixtures.items()}) as self.logits:
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
            reports.append(ExpertTokens(name, *place(name, self.mixtures), side, experts))
        return ExpertReport(MINIMUM_COUNT, reports)
