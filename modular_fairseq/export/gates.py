"""Head scales that replace the gates of a mixture of attentive experts (MAE), measured on data."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from modular_fairseq.models.mae import expert_mixtures
from modular_fairseq.modules.expert_mixture import ExpertMixture, expert_scale
from modular_fairseq.modules.gate_statistics import GateStatistics, entropy_and_shares

GATES = {
    "mean": "a Transformer whose heads have their mean scales, another model than the checkpoint",
    "expert": "a Transformer with one expert in each attention module, another model than the checkpoint",
}


def can_be_fixed(gate: nn.Module) -> bool:
    """Tell whether fixed head scales may stand for a gate."""
    return isinstance(gate, ExpertMixture)


def gates_depend_on_input(model: nn.Module) -> bool:
    """Tell whether a model has gates, and they choose or weight experts by the input."""
    return any(mixture.inference != "random" for mixture in expert_mixtures(model).values())


def constant_scales(model: nn.Module) -> dict[str, Tensor]:
    """Return the head scales [H] of attention modules that always use one expert (--mae-inference random)."""
    return {
        name.removesuffix(".gate"): module.scale_of_expert[module.random_expert].cpu()
        for name, module in model.named_modules()
        if isinstance(module, ExpertMixture)
        and module.inference == "random"
        and module.random_expert is not None
    }


def measured_scales(model: nn.Module, gates: str, batches: Iterable[dict]) -> dict[str, Tensor]:
    """Return fixed head scales [H] for each attention module with learned gates, by its name.

    Args:
        model: the model in evaluation mode.
        gates: a key of `GATES`.
        batches: fairseq's batches. The model reads them teacher-forced.
    """
    mixtures = expert_mixtures(model)
    statistics = {name: GateStatistics() for name in mixtures}
    with _means(mixtures) as means, torch.no_grad():
        for name, mixture in mixtures.items():
            mixture.statistics = statistics[name]
        try:
            for batch in batches:
                model(**batch["net_input"])
        finally:
            for mixture in mixtures.values():
                mixture.statistics = None
    if gates == "mean":
        return {name: scales / count for name, (scales, count) in means.items()}
    found = {}
    for name, mixture in mixtures.items():
        sums = statistics[name].take()
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
