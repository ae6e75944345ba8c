"""The loss of masked language models, to which the mechanisms of a model may add losses in training."""

import math

from fairseq import utils
from fairseq.criterions import register_criterion
from fairseq.criterions.masked_lm import MaskedLmLoss
from fairseq.logging import metrics
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from modular_fairseq.criterions.auxiliary import AddsAuxiliaryLosses
from modular_fairseq.models.assembly import auxiliary_losses
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.registry import CRITERIA

NAME = "modular_masked_lm"


@register_criterion(NAME, dataclass=CRITERIA[NAME])
class ModularMaskedLmCriterion(AddsAuxiliaryLosses, MaskedLmLoss):
    """fairseq's loss of masked words, plus weighted auxiliary losses in training (`AddsAuxiliaryLosses`).

    The sample size is the number of masked words. The logged perplexity is computed from the loss of the
    masked words, without the auxiliary losses.

    Raises:
        UsageError: an option of the losses of a mechanism cannot work or would have no effect.
    """

    def __init__(self, cfg: Options, task: FairseqTask):
        super().__init__(cfg, task)
        self.auxiliary = [losses(cfg) for losses in auxiliary_losses()]

    def own_loss(self, model: nn.Module, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss of the masked words, and log it as "nll_loss" too.

        The batch must have a target [B, T], which is padding where no word was masked.
        """
        loss, sample_size, logging_output = super().own_loss(model, sample, reduce)
        logging_output["nll_loss"] = loss.detach()
        return loss, sample_size, logging_output

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log the means of all losses, in bits of a masked word, and the perplexity of masked words."""
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        nll = sum(log.get("nll_loss", 0) for log in logging_outputs)
        metrics.log_scalar("nll_loss", nll / sample_size / math.log(2), sample_size, round=3)
        # fairseq derives it from the loss. What is logged first counts.
        metrics.log_derived("ppl", lambda meters: utils.get_perplexity(meters["nll_loss"].avg))
        super().reduce_metrics(logging_outputs)
