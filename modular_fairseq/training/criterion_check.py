"""A model with auxiliary losses must be trained with the criterion that adds them, and the criterion with a
model that has them.

fairseq builds model and criterion without telling one of the other, so `patches/trainer.py` lets its Trainer
compare them before each epoch.
"""

from fairseq.trainer import Trainer

from modular_fairseq.criterions.modular_cross_entropy import ModularCrossEntropyCriterion
from modular_fairseq.models.masks import semantic_masks
from modular_fairseq_cli.errors import UsageError


def check_criterion(trainer: Trainer) -> None:
    """Raises UsageError: losses would be left out, are asked of a model that has none, or are always 0 in
    this one.
    """
    model, criterion = trainer.get_model(), trainer.get_criterion()
    masks = semantic_masks(model).values()
    has_losses = bool(masks)
    adds_losses = isinstance(criterion, ModularCrossEntropyCriterion)
    if has_losses and not adds_losses:
        raise UsageError(
            f"--attention-type {model.cfg.attention_type} has losses that --criterion "
            f"{trainer.cfg.criterion._name} does not add; use "
            "--criterion modular_cross_entropy (with --kl-weight 0 --qq-weight 0 --xq-weight 0 to train "
            "masks without them)"
        )
    if adds_losses and criterion.asked_for and not has_losses:
        raise UsageError(
            f"{' and '.join(criterion.asked_for)}: this model has no losses of that kind; use "
            "--attention-type dma (or an arch such as "
            "dma_transformer), or leave them out"
        )
    if not (has_losses and adds_losses):
        return
    heads = max(mask.num_heads for mask in masks)
    pairs = heads * (heads - 1) // (2 if criterion.how["densities"] == "pooled" else 1)
    for option in criterion.asked_for:
        if option.startswith(("--qq", "--xq")) and all(mask.tokens.clusters == 1 for mask in masks):
            raise UsageError(
                f"{option} has no effect with --dma-clusters 1, where nothing tells queries apart; leave it "
                "out"
            )
        if option.startswith("--qq") and heads == 1:
            raise UsageError(
                f"{option} has no effect with 1 attention head, as L_Dqq is between heads; leave it out"
            )
    if criterion.how["pairs"] >= pairs > 0:
        raise UsageError(
            f"--qq-pairs {criterion.how['pairs']} has no effect, as {heads} heads have {pairs} pairs; leave "
            "it out for all of them"
        )
