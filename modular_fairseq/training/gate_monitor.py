"""Gate statistics that training and validation log beside fairseq's own values."""

import torch
from fairseq.logging import metrics
from torch import Tensor

from modular_fairseq.modules.expert_mixture import RARE, ExpertMixture, entropy_and_shares


class GateMonitor:
    """Collect gate entropy and expert shares over the instances that this worker saw since `reset`."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sums: dict[ExpertMixture, Tensor] = {}

    def collect(self, all_mixtures: list[ExpertMixture]) -> None:
        """Take the sums that each mixture has recorded since the last call, and add them to the totals."""
        for mixture in all_mixtures:
            assert mixture.statistics is not None  # BlockCoordinateDescent sets it
            sums = mixture.statistics.take()
            if sums is not None:  # LayerDrop may have skipped the layer
                self.sums[mixture] = self.sums.get(mixture, 0) + sums

    def log(self) -> None:
        """Log gate_entropy (nats), gate_max_share, gate_min_share and gate_rare_experts through fairseq."""
        if not self.sums:
            return
        all_sums = list(self.sums.values())
        # All sums are copied from the device at once.
        split_sums = torch.cat(all_sums).double().cpu().split([len(sums) for sums in all_sums])
        measured = [entropy_and_shares(sums) for sums in split_sums if sums[1:].any()]
        if not measured:  # this worker has had dummy batches only
            return
        entropies = [entropy for entropy, _ in measured]
        shares = torch.cat([share for _, share in measured])
        # The values are means already. With weight 0, a meter shows the last value.
        metrics.log_scalar("gate_entropy", sum(entropies) / len(entropies), weight=0, priority=300, round=4)
        metrics.log_scalar("gate_max_share", float(shares.max()), weight=0, priority=301, round=4)
        metrics.log_scalar("gate_min_share", float(shares.min()), weight=0, priority=302, round=4)
        metrics.log_scalar("gate_rare_experts", int((shares < RARE).sum()), weight=0, priority=303, round=0)
