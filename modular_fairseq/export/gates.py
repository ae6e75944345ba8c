"""Head scales that replace the gates of a mixture of attentive experts (MAE), measured on data."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.expert_mixture import (
    ExpertMixture,
    GateStatistics,
    entropy_and_shares,
    expert_scale,
)

GATES = {
    "mean": "the mean of each head's scale over the data, which is another model",
    "expert": "for each attention module, the expert that has the largest gate most often, without the heads "
    "that it lacks, which is another model",
}


def can_be_fixed(gate: nn.Module) -> bool:
    """Tell whether fixed head scales may stand for a gate."""
    return isinstance(gate, ExpertMixture)


def has_learned_gates(model: nn.Module) -> bool:
    """Tell whether a model has gates that depend on the input."""
    return bool(expert_mixtures(model))


def measured_scales(model: nn.Module, gates: str, batches: Iterable[dict]) -> dict[str, Tensor]:
    """Return fixed head scales [H] for each attention module with learned gates, by its name.

    Args:
        model: the model in evaluation mode.
        gates: a key of `GATES`.
        batches: fairseq's batches. The model reads them teacher-forced.
    """
    mixtures = expert_mixtures(model)
    with _means(mixtures) as means:
        for mixture in mixtures.values():
            mixture.statistics = GateStatistics()
        with torch.no_grad():
            for batch in batches:
                model(**batch["net_input"])
    if gates == "mean":
        return {name: scales / count for name, (scales, count) in means.items()}
    found = {}
    for name, mixture in mixtures.items():
        assert mixture.statistics is not None
        sums = mixture.statistics.take()
        assert sums is not None
        _, shares = entropy_and_shares(sums)
        lacks = mixture.dropped[shares.argmax()].cpu()
        found[name] = expert_scale(lacks, mixture.dropped_heads)
    return found


@contextmanager
def _means(mixtures: Mapping[str, ExpertMixture]) -> Iterator[dict[str, tuple[Tensor, float]]]:
    """Yield a dictionary that gets, by name, the sum of head scales [H] over instances and their number."""
    sums: dict[str, tuple[Tensor, float]] = {}

    def add(name: str) -> Callable[[nn.Module, tuple, Tensor], None]:
        def hook(module: nn.Module, inputs: tuple, scales: Tensor) -> None:
            scales = scales.squeeze(-1).double().cpu()  # rows x H x T or 1
            padding = inputs[1]
            if padding is None or scales.size(2) == 1:  # a gate per sentence
                padding = torch.zeros(scales.size(0), scales.size(2), dtype=torch.bool)
            known = (~padding).double().cpu()
            before, count = sums.get(name, (torch.zeros(scales.size(1), dtype=torch.double), 0.0))
            sums[name] = before + torch.einsum("bht,bt->h", scales, known), count + float(known.sum())

        return hook

    handles = [mixture.register_forward_hook(add(name)) for name, mixture in mixtures.items()]
    try:
        yield sums
    finally:
        for handle in handles:
            handle.remove()
