"""Label-smoothed cross-entropy, to which the mechanisms of a model may add losses in training."""

from typing import Any

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    label_smoothed_nll_loss,
)
from fairseq.modules import AdaptiveSoftmax
from fairseq.tasks import FairseqTask
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from modular_fairseq.criterions.auxiliary import AddsAuxiliaryLosses
from modular_fairseq.models.assembly import auxiliary_losses
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq.modules.adaptive_softmax import adaptive_cross_entropy
from modular_fairseq_cli.errors import UsageError

NAME = "modular_cross_entropy"


@register_criterion(NAME, dataclass=CRITERIA[NAME])
class ModularCrossEntropyCriterion(AddsAuxiliaryLosses, LabelSmoothedCrossEntropyCriterion):
    """fairseq's label-smoothed cross-entropy, plus weighted auxiliary losses in training.

    `AddsAuxiliaryLosses` says how these are added. The sample size is the number of target tokens, or of
    sentences with --sentence-avg.

    With --loss-chunk-size N, the model returns its features, and logits and cross-entropy are computed for N
    target positions at a time, in training again in the backward pass. The loss is the same. There are never
    more than N x V logits in memory.

    A model with --adaptive-softmax-cutoff has the cross-entropy of its adaptive softmax, as with --criterion
    adaptive_loss.

    Raises:
        UsageError: an option of the losses of a mechanism cannot work or would have no effect, or an option
            needs all logits at once.
    """

    def __init__(self, cfg: Options, task: FairseqTask):
        super().__init__(
            task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy
        )
        self.chunk_size = cfg.loss_chunk_size
        if self.chunk_size < 0:
            raise UsageError(f"--loss-chunk-size must be at least 0, not {self.chunk_size}")
        if self.chunk_size and self.report_accuracy:
            raise UsageError(
                "--report-accuracy needs all logits at once, which --loss-chunk-size avoids; leave one of "
                "them out"
            )
        self.auxiliary = [losses(cfg) for losses in auxiliary_losses()]

    def own_loss(self, model: nn.Module, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the cross-entropy; with --loss-chunk-size the model returns features instead of logits."""
        if self.chunk_size:
            sample = {**sample, "net_input": {**sample["net_input"], "features_only": True}}
        return super().own_loss(model, sample, reduce)

    def counts(self, sample: dict) -> Tensor:
        """Return the share of each sentence of a batch in the sample size, int64 [B]."""
        tokens = super().counts(sample)
        return torch.ones_like(tokens) if self.sentence_avg else tokens

    def compute_loss(
        self, model: Any, net_output: tuple, sample: dict, reduce: bool = True
    ) -> tuple[Tensor, Tensor]:
        """Compute the label-smoothed cross-entropy and the negative log-likelihood of a batch.

        Args:
            model: the model.
            net_output: what it returned: logits [B, T, V], or features [B, T, C] with --loss-chunk-size.
            sample: the batch.
            reduce: sum both over tokens.
        """
        softmax = adaptive_softmax(model)
        if softmax is not None:
            features = net_output[0][:, self.ignore_prefix_size :]
            words = model.get_targets(sample, net_output)[:, self.ignore_prefix_size :]
            found = adaptive_cross_entropy(softmax, features, words.contiguous(), self.padding_idx, reduce)
            return found, found
        if not self.chunk_size:
            return super().compute_loss(model, net_output, sample, reduce)
        features = net_output[0][:, self.ignore_prefix_size :].flatten(0, 1)
        target = model.get_targets(sample, net_output)[:, self.ignore_prefix_size :].flatten()

        def chunk(features: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
            logits = model.decoder.output_layer(features), None
            lprobs = model.get_normalized_probs(logits, log_probs=True)
            return label_smoothed_nll_loss(lprobs, target, self.eps, self.padding_idx, reduce)

        chunks = [
            checkpoint(chunk, *part, use_reentrant=False, preserve_rng_state=False)
            for part in zip(features.split(self.chunk_size), target.split(self.chunk_size), strict=True)
        ]
        loss, nll = zip(*chunks, strict=True)
        return (sum(loss), sum(nll)) if reduce else (torch.cat(loss), torch.cat(nll))


def adaptive_softmax(model: Any) -> AdaptiveSoftmax | None:
    """Return the adaptive softmax of a model, or None if it has none."""
    return getattr(getattr(model, "decoder", None), "adaptive_softmax", None)
