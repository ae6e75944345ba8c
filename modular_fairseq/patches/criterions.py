"""Mend fairseq's criterions."""

from collections.abc import Callable
from typing import Any

from torch import distributed

from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.criterions.adaptive_loss.AdaptiveLoss.build_criterion")
def adaptive_loss_of_one_worker(build_criterion: Callable, cfg: Any, task: Any) -> Any:
    """Let --criterion adaptive_loss train with one worker and any --ddp-backend.

    fairseq refuses the default, c10d, with a traceback (fairseq/criterions/adaptive_loss.py:34-40), although
    a single worker does not use it. With several workers a sentence names the right option: c10d expects a
    gradient for every parameter in every update, but the softmax of rare words has none without such words.
    """
    from fairseq.criterions.adaptive_loss import AdaptiveLoss

    if cfg.ddp_backend not in ("c10d", "pytorch_ddp"):
        return build_criterion(cfg, task)
    if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
        raise UsageError(
            "--criterion adaptive_loss does not work with several workers and --ddp-backend "
            f"{cfg.ddp_backend}; add --ddp-backend legacy_ddp, or use --criterion modular_cross_entropy"
        )
    return AdaptiveLoss(task, cfg.sentence_avg)
