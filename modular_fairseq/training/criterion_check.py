"""A model with auxiliary losses must be trained with the criterion that adds them, and the criterion with a
model that has them.

fairseq builds model and criterion without telling one of the other, so `patches/trainer.py` lets its Trainer
compare them before each epoch.
"""

from fairseq.trainer import Trainer

from modular_fairseq.criterions.modular_cross_entropy import ModularCrossEntropyCriterion
from modular_fairseq.models.checks import what_turns_on
from modular_fairseq.models.registry import CRITERIA, MECHANISMS
from modular_fairseq_cli.errors import UsageError


def check_criterion(trainer: Trainer) -> None:
    """Compare the losses that the model has with those that the criterion adds.

    Raises:
        UsageError: losses would be left out, are asked of a model that has none, or are always 0 in this one.
    """
    model, criterion = trainer.get_model(), trainer.get_criterion()
    adds_losses = isinstance(criterion, ModularCrossEntropyCriterion)
    for mechanism in MECHANISMS.values():
        if mechanism.losses is None:
            continue
        has_losses = mechanism.losses.concerns(model)
        if not adds_losses:
            if has_losses:
                needs = mechanism.needs or f"--attention-type {model.cfg.attention_type}"
                raise UsageError(
                    f"{needs} has losses that --criterion {trainer.cfg.criterion._name} does not add; use "
                    f"--criterion {' or '.join(CRITERIA)} (with {mechanism.losses.left_out_by} to train the "
                    "model without them)"
                )
            continue
        losses = next(each for each in criterion.auxiliary if isinstance(each, mechanism.losses))
        if has_losses:
            losses.check_model(model)
        elif losses.asked_for:
            raise UsageError(
                f"{' and '.join(losses.asked_for)}: this model has no losses of that kind; use "
                f"{what_turns_on(mechanism)}, or leave them out"
            )
