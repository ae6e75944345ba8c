"""Name the parameters that only a criterion uses, for --find-unused-parameters.

With this option DistributedDataParallel looks for used parameters in what `forward` of the model returns. It
takes all others for unused, and fails when a criterion gives one of them a gradient after all ("marked as
ready twice").
"""

from typing import Any

from fairseq.trainer import Trainer
from torch import nn

from modular_fairseq.criterions.auxiliary import AddsAuxiliaryLosses
from modular_fairseq.criterions.modular_cross_entropy import adaptive_softmax


def show_parameters_of_the_criterion(trainer: Trainer) -> None:
    """Let the model's `forward` return a view of each parameter that only the criterion uses.

    Three kinds of parameters get their gradients from the criterion alone: parameters that only auxiliary
    losses train, the adaptive softmax, and the output layer with --loss-chunk-size. In every update the
    criterion gives each of them a gradient, which may be 0. Nothing is done without --find-unused-parameters
    or with one worker.
    """
    model = trainer.get_model()
    if trainer.data_parallel_world_size == 1:
        return
    if not trainer.cfg.distributed_training.find_unused_parameters:
        return
    parameters = parameters_of_the_criterion(model, trainer.get_criterion())

    def show(module: nn.Module, inputs: tuple, output: tuple[Any, dict | None]) -> tuple[Any, dict]:
        features, extra = output
        return features, {**(extra or {}), "criterion_uses": [p.view_as(p) for p in parameters]}

    if parameters:
        model.register_forward_hook(show)


def parameters_of_the_criterion(model: Any, criterion: nn.Module) -> list[nn.Parameter]:
    """Return the trained parameters of a model that its forward pass does not use, but its criterion does."""
    found: list[nn.Parameter] = []
    if isinstance(criterion, AddsAuxiliaryLosses):
        for losses in criterion.auxiliary:
            if losses.concerns(model):
                found += losses.without_gradient(model, dict.fromkeys(losses.signs, 0.0))
    softmax = adaptive_softmax(model)
    if softmax is not None:
        found += softmax.parameters()
    elif getattr(criterion, "chunk_size", 0):
        found += model.decoder.output_projection.parameters()
    return [parameter for parameter in found if parameter.requires_grad]
