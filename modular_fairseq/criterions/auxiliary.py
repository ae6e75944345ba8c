"""The part that our criteria share: it adds the losses of a model's mechanisms to a criterion of fairseq."""

from contextlib import ExitStack

import torch
from fairseq.criterions import FairseqCriterion
from fairseq.logging import metrics
from torch import Tensor, nn

from modular_fairseq.models.assembly import auxiliary_losses
from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.family import CountsUpdates


class AddsAuxiliaryLosses(FairseqCriterion):
    """A base of criteria that add the weighted auxiliary losses of a model's mechanisms in training.

    It comes before fairseq's criterion among the bases of a class. Validation has the loss of that criterion
    alone.

    Each registered mechanism may have such losses, with options of its own (`AuxiliaryLosses`). The auxiliary
    losses of a sentence are multiplied by the share that the sentence has in the sample size. A weight
    therefore has the same effect however sentences are divided into batches, --update-freq and workers. The
    logged `loss` includes the auxiliary losses. Each of them is also logged by itself, without its weight.

    Attributes:
        auxiliary: the losses of all mechanisms, set up from the options of the criterion.
    """

    auxiliary: list[AuxiliaryLosses]

    def forward(self, model: nn.Module, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss of a batch, as fairseq's criteria do.

        Args:
            model: the model, which may be wrapped for several workers.
            sample: a batch of fairseq's datasets.
            reduce: sum the loss over tokens.

        Returns:
            the loss, the sample size, and the values to log.

        Raises:
            ValueError: `reduce` is False, and the model has auxiliary losses, which belong to no token.
        """
        concerned = [each for each in self.auxiliary if each.concerns(model)] if model.training else []
        if not concerned:
            return self.own_loss(model, sample, reduce)
        if not reduce:
            raise ValueError("auxiliary losses belong to no token; give reduce=True, or call model.eval()")
        counted = (module.num_updates for module in model.modules() if isinstance(module, CountsUpdates))
        num_updates = next(counted, None)  # a model of another plugin may not count its updates
        weights = [each.weights(num_updates) for each in concerned]
        with ExitStack() as stack:
            measured = [
                stack.enter_context(each.measuring(model, now))
                for each, now in zip(concerned, weights, strict=True)
            ]
            loss, sample_size, logging_output = self.own_loss(model, sample, reduce)
        counts = self.counts(sample)
        for each, now, losses in zip(concerned, weights, measured, strict=True):
            for name, values in losses.items():
                total = (values * counts).sum() / counts.sum().clamp_min(1) * sample_size
                logging_output[name] = total.detach()
                loss = loss + each.signs[name] * now[name] * total
            unused = each.without_gradient(model, now)
            if unused:  # DistributedDataParallel needs a gradient for every parameter
                # The sum of the parameters themselves may be infinite in half precision.
                loss = loss + (0.0 * torch.cat([parameter.flatten() for parameter in unused])).sum()
        logging_output["loss"] = loss.detach()
        return loss, sample_size, logging_output

    def own_loss(self, model: nn.Module, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """Compute the loss of fairseq's criterion; see `forward`."""
        return super().forward(model, sample, reduce)

    def counts(self, sample: dict) -> Tensor:
        """Return the share of each sentence of a batch in the sample size, int64 [B]."""
        return sample["target"].ne(self.padding_idx).sum(dim=1)

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        """Log the means of all losses over workers and micro-batches."""
        super().reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        for name in (name for losses in auxiliary_losses() for name in losses.signs):
            if any(name in log for log in logging_outputs):
                total = sum(log.get(name, 0) for log in logging_outputs)
                metrics.log_scalar(name, total / sample_size, sample_size, round=4)
