"""Compare --best-checkpoint-metric with what validation measures, before the training."""

from collections.abc import Callable

from fairseq.logging import metrics
from fairseq.trainer import Trainer

from modular_fairseq.models.options import flag
from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError

SPEED = {"wps", "ups", "wpb", "bsz"}  # of every validation; no measure of quality


@replace("fairseq.trainer.Trainer.begin_epoch")
def check_best_checkpoint_metric(begin_epoch: Callable, trainer: Trainer, epoch: int) -> None:
    """Refuse a --best-checkpoint-metric that validation does not measure, before the first epoch.

    fairseq looks for it after the first validation (fairseq_cli/train.py:535). If it is missing, the training
    ends with a KeyError before a checkpoint is saved, and the epoch is lost. This patch validates the first
    batch, unless the metric is the loss. A metric that the task measures by an option, such as `bleu` with
    --eval-bleu, is not looked for, because it can be missing for a model that has not learnt to translate.

    Raises:
        UsageError: validation has no such metric.
    """
    if not hasattr(trainer, "_metric_is_checked"):
        trainer._metric_is_checked = True
        metric = trainer.cfg.checkpoint.best_checkpoint_metric
        option = f"eval_{metric}"
        measured_by_option = getattr(trainer.task.cfg, option, None)
        if metric != "loss" and not trainer.cfg.dataset.disable_validation and not measured_by_option:
            found = _measured(trainer)
            if metric not in found:
                needs = "" if measured_by_option is None else f", or add {flag(option)}"
                raise UsageError(
                    f"--best-checkpoint-metric {metric}: validation measures "
                    f"{', '.join(sorted(found - SPEED))}; give one of these{needs}"
                )
    return begin_epoch(trainer, epoch)


def _measured(trainer: Trainer) -> set[str]:
    """Return the names of what is measured by validating the first batch, which leaves no trace."""
    subset = trainer.cfg.dataset.valid_subset.split(",")[0]
    dummy_batch = trainer._dummy_batch
    try:
        with metrics.aggregate(new_root=True) as found:
            trainer.valid_step(trainer.get_valid_iterator(subset).first_batch)
    finally:
        trainer._dummy_batch = dummy_batch
    return set(found.get_smoothed_values())
