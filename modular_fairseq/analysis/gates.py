"""What the gates of a mixture of attentive experts do on a data set (MAE, section 5.1 and appendix C).

For every attention module: the entropy of its gate in nats (ln E is uniform), and for every expert the share of instances whose
largest gate is that expert's. Instances are sentences where a gate sees a whole sentence, and positions where it sees a prefix or window.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass

from torch import nn

from modular_fairseq.analysis.attention_maps import AttentionMap
from modular_fairseq.analysis.one_pass import Analysis
from modular_fairseq.errors import UsageError
from modular_fairseq.models.mixture import mixtures
from modular_fairseq.modules.mixture import RARE, GateStatistics, entropy_and_shares


@dataclass
class GateReport:
    """One attention module: mean entropy in nats, and a share per expert."""

    module: str
    entropy: float
    shares: list[float]


@dataclass
class GateReports:
    modules: list[GateReport]

    def text(self) -> str:
        """A row a module, and a summary."""
        width = max(len(report.module) for report in self.modules)
        lines = [f"{'module':<{width}}  entropy  largest gate: % of instances at each expert"]
        for report in self.modules:
            lines.append(f"{report.module:<{width}}  {report.entropy:7.3f}  " + " ".join(f"{100 * share:5.1f}" for share in report.shares))
        shares = [share for report in self.modules for share in report.shares]
        mean = sum(report.entropy for report in self.modules) / len(self.modules)
        uniform = sum(math.log(len(report.shares)) for report in self.modules) / len(self.modules)
        rare = sum(share < RARE for share in shares)
        lines.append(
            f"mean gate entropy {mean:.3f} nats ({mean / uniform:.3f} of uniform, {uniform:.3f}); "
            f"shares {100 * min(shares):.1f} to {100 * max(shares):.1f} %, {rare} of {len(shares)} experts under {100 * RARE:.0f} %"
        )
        return "\n".join(lines)

    def data(self) -> list[dict]:
        return [asdict(report) for report in self.modules]


class Gates(Analysis):
    summary = "entropy and expert shares of a mixture of attentive experts"

    def __init__(self, model: nn.Module):
        self.mixtures = mixtures(model)
        if not self.mixtures:
            raise UsageError("the model has no learned gates to look at; it needs --attention-type mae --mae-gating learned")

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
            entropy, shares = entropy_and_shares(mixture.statistics.take().double())
            reports.append(GateReport(name, entropy, shares.tolist()))
        return GateReports(reports)
