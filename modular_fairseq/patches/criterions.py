"""Mend fairseq's criterions."""

import functools
from collections.abc import Callable
from typing import Any

from fairseq.criterions.adaptive_loss import AdaptiveLoss
from fairseq.utils import item
from torch import Tensor

from modular_fairseq.modules.adaptive_softmax import adaptive_cross_entropy
from modular_fairseq.patches.registry import replace
from modular_fairseq_cli.errors import UsageError


@replace("fairseq.criterions.adaptive_loss.AdaptiveLoss.build_criterion")
def adaptive_loss_with_every_backend(build_criterion: functools.partial, cfg: Any, task: Any) -> AdaptiveLoss:
    """Let --criterion adaptive_loss train with every --ddp-backend.

    fairseq refuses the default, c10d, with a traceback (fairseq/criterions/adaptive_loss.py:34-40), because
    its softmax of rare words has no gradient in an update without such words. The next patch gives it one.
    """
    of_class = build_criterion.args[0]  # AdaptiveLoss, or a criterion that is derived from it
    return of_class(task, cfg.sentence_avg)


@replace("fairseq.criterions.adaptive_loss.AdaptiveLoss.forward")
def adaptive_loss_of_every_word(
    forward: Callable, criterion: AdaptiveLoss, model: Any, sample: dict, reduce: bool = True
) -> tuple[Tensor, int, dict]:
    """Let --criterion adaptive_loss count every word, and give a gradient to every parameter.

    fairseq takes the number of the padding, 1, for padding in a tail of the softmax as well, whose numbers
    begin with 0 at the cut-off (fairseq/criterions/adaptive_loss.py:76-81). So the word of the number
    cut-off + 1 has no loss in its tail, and is never learnt. Its probability in fairseq-eval-lm is right.
    """
    softmax = getattr(model.decoder, "adaptive_softmax", None)
    if softmax is None:
        raise UsageError(
            "--criterion adaptive_loss needs an adaptive softmax; add --adaptive-softmax-cutoff, or use "
            "another criterion"
        )
    net_output = model(**sample["net_input"])
    target = model.get_targets(sample, net_output)
    loss = adaptive_cross_entropy(softmax, net_output[0], target, criterion.padding_idx, reduce)
    tokens = item(target.ne(criterion.padding_idx).sum())
    sample_size = sample["target"].size(0) if criterion.sentence_avg else tokens
    logged = {
        "loss": loss.data,
        "ntokens": tokens,
        "nsentences": target.size(0),
        "sample_size": sample_size,
    }
    return loss, sample_size, logged
