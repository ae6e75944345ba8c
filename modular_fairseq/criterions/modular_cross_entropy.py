"""Label-smoothed cross-entropy, to which the mechanisms of a model may add losses in training."""

from contextlib import ExitStack

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from modular_fairseq.models.assembly import auxiliary_losses
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.family import CountsUpdates
from modular_fairseq.models.registry import CRITERIA

NAME = "modular_cross_entropy"


@register_criterion(NAME, dataclass=CRITERIA[NAME])
class ModularCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """fairseq's label-smoothed cross-entropy, plus weighted auxiliary losses in training.

    Validation has the cross-entropy alone.

    The losses and their options are those of the registered mechanisms (`AuxiliaryLosses`). The auxiliary
    losses of a sentence count as much as its share of the sample size, as its cross-entropy does. (The sample
    size is the number of target tokens, or of sentences with --sentence-avg.) Their weights therefore do not
    depend on how sentences are divided into batches, --update-freq or workers. The logged `loss` includes the
    auxiliary losses. Each of them is also logged by itself, without its weight.

    Raises:
        UsageError: an option of the losses of a mechanism cannot work or would have no effect.
    """

    def __init__(self, cfg: Options, task: FairseqTask):
        super().__init__(
            task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy
        )
        self.auxiliary = [losses(cfg) for losses in auxiliary_losses()]

    def forward(self, model: nn.Module, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss of a batch, as fairseq's criteria do.

        Args:
            model: the model, which may be wrapped for several workers.
            sample: a batch of fairseq's datasets.
            reduce: sum the loss over tokens.

        Returns:
            the loss, the sample size, and the values to log.
        """
        concerned = [each for each in self.auxiliary if each.concerns(model)] if model.training else []
        if not concerned:
            return super().forward(model, sample, reduce)
        num_updates = next(
            module.num_updates for module in model.modules() if isinstance(module, CountsUpdates)
        )
        weights = [each.weights(num_updates) for each in concerned]
        with ExitStack() as stack:
            measured = [
                stack.enter_context(each.measuring(model, now))
                for each, now in zip(concerned, weights, strict=True)
            ]
            loss, sample_size, logging_output = super().forward(model, sample, reduce)
        tokens = sample["target"].ne(self.padding_idx).sum(dim=1)
        counts = torch.ones_like(tokens) if self.sentence_avg else tokens
        for each, now, losses in zip(concerned, weights, measured, strict=True):
            for name, values in losses.items():
                total = (values * counts).sum() / counts.sum().clamp_min(1) * sample_size
                logging_output[name] = total.detach()
                loss = loss + each.signs[name] * now[name] * total
            without = each.without_gradient(model, now)
            if without:  # DistributedDataParallel needs a gradient for every parameter
                loss = loss + 0.0 * torch.cat([parameter.flatten() for parameter in without]).sum()
        logging_output["loss"] = loss.detach()
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log the means of all losses over workers and micro-batches."""
        super().reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        for name in (name for losses in auxiliary_losses() for name in losses.signs):
            if any(name in log for log in logging_outputs):
                total = sum(log.get(name, 0) for log in logging_outputs)
                metrics.log_scalar(name, total / sample_size, sample_size, round=4)


def own_options() -> list[str]:
    """Return the names of the options that fairseq's label-smoothed cross-entropy does not have."""
    fairseqs = LabelSmoothedCrossEntropyCriterionConfig.__dataclass_fields__
    return [name for name in CRITERIA[NAME].__dataclass_fields__ if name not in fairseqs]
