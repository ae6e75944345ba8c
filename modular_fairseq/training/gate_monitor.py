"""Gate statistics that training and validation log beside fairseq's own values."""

import functools
from collections.abc import Callable

import torch
from fairseq.logging import metrics
from fairseq.logging.meters import MetersDict
from torch import Tensor

from modular_fairseq.modules.expert_mixture import ExpertMixture
from modular_fairseq.modules.gate_statistics import GateSummary, entropy_and_shares, take_all

# The logged values: (priority in fairseq's log, number of digits).
VALUES = {
    "gate_entropy": (300, 4),
    "gate_max_share": (301, 4),
    "gate_min_share": (302, 4),
    "gate_rare_experts": (303, 0),
}


class GateMonitor:
    """Collect gate entropy and expert shares over the instances that this worker saw since `reset`.

    The sums stay on the device. They are read when fairseq prints its log, not in every update.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.sums: dict[ExpertMixture, Tensor] = {}
        self.has_data = False
        self._values: dict[str, float] | None = None

    def collect(self, all_mixtures: list[ExpertMixture], has_data: bool) -> None:
        """Take the sums that each mixture has recorded since the last call, and add them to the totals.

        Args:
            has_data: whether they come from a batch that is no dummy batch.
        """
        self.has_data = self.has_data or has_data
        statistics = []
        for mixture in all_mixtures:
            assert mixture.statistics is not None  # GateTrainer sets it
            statistics.append(mixture.statistics)
        totals, new = [], []
        for mixture, sums in zip(all_mixtures, take_all(statistics), strict=True):
            if sums is None:  # LayerDrop may have skipped the layer
                continue
            if mixture in self.sums:
                totals.append(self.sums[mixture])
                new.append(sums)
            else:
                self.sums[mixture] = sums.clone()
        if totals:
            torch._foreach_add_(totals, new)
        self._values = None

    def log(self) -> None:
        """Log gate_entropy (nats), gate_max_share, gate_min_share and gate_rare_experts through fairseq."""
        if self.sums and self.has_data:
            for name, (priority, _) in VALUES.items():
                _log_when_printed(name, functools.partial(self._value, name), priority)

    def _value(self, name: str, meters: MetersDict) -> float | None:
        """Return a value for fairseq's log, which calls this when it prints."""
        if self._values is None:
            self._values = self.values()
        return self._values.get(name)

    def values(self) -> dict[str, float]:
        """Return the values to log, or none if this worker has had dummy batches only."""
        all_sums = list(self.sums.values())
        if not all_sums:
            return {}
        # All sums are copied from the device at once.
        split_sums = torch.cat(all_sums).cpu().split([len(sums) for sums in all_sums])
        measured = [entropy_and_shares(sums) for sums in split_sums if sums[1:].any()]
        if not measured:
            return {}
        summary = GateSummary.of(
            [entropy for entropy, _ in measured], [shares.tolist() for _, shares in measured]
        )
        values = {f"gate_{name}": value for name, value in vars(summary).items()}
        return {name: round(values[name], digits or None) for name, (_, digits) in VALUES.items()}


def _log_when_printed(name: str, value: Callable[[MetersDict], float | None], priority: int) -> None:
    """Let fairseq's log call `value` when it prints, as `metrics.log_derived` does.

    `log_derived` does not replace a meter that exists already. Such a meter may belong to another training in
    this process, or a checkpoint of an older version may have brought it.
    """
    for meters in metrics.get_active_aggregators():
        meter = meters.get(name)
        if isinstance(meter, MetersDict._DerivedMeter):
            meter.fn = value
        else:
            meters.pop(name, None)
            meters.priorities = [each for each in meters.priorities if each[2] != name]
            meters.add_meter(name, MetersDict._DerivedMeter(value), priority)
