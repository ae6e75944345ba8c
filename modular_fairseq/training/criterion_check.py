"""A model with auxiliary losses must be trained with the criterion that adds them, and the criterion with a model that has them.

fairseq builds model and criterion without telling one of the other; `install` lets its Trainer compare them before the first epoch, when no
thread reads data yet.
"""

import functools

from fairseq.trainer import Trainer

from modular_fairseq.criterions.modular_cross_entropy import ModularCrossEntropyCriterion
from modular_fairseq.errors import UsageError
from modular_fairseq.models.masks import semantic_masks


def check_criterion(trainer: Trainer) -> None:
    """Raises UsageError: losses would be left out, or are asked of a model that has none."""
    model, criterion = trainer.get_model(), trainer.get_criterion()
    has_losses = bool(semantic_masks(model))
    adds_losses = isinstance(criterion, ModularCrossEntropyCriterion)
    if has_losses and not adds_losses:
        raise UsageError(
            f"--attention-type {model.cfg.attention_type} has losses that --criterion {trainer.cfg.criterion._name} does not add; use "
            "--criterion modular_cross_entropy (with --kl-weight 0 --qq-weight 0 --xq-weight 0 to train masks without them)"
        )
    if adds_losses and criterion.asked_for and not has_losses:
        raise UsageError(
            f"{' and '.join(criterion.asked_for)}: this model has no losses of that kind; use --attention-type dma (or an arch such as "
            "dma_transformer), or leave them out"
        )


def install() -> None:
    """Let fairseq's Trainer check before every epoch. Calling it again changes nothing."""
    plain_begin_epoch = Trainer.begin_epoch
    if hasattr(plain_begin_epoch, "checks_criterion"):
        return

    @functools.wraps(plain_begin_epoch)
    def begin_epoch(self, epoch):
        check_criterion(self)
        return plain_begin_epoch(self, epoch)

    begin_epoch.checks_criterion = True
    Trainer.begin_epoch = begin_epoch
