"""fairseq's label-smoothed cross-entropy, and what the modules of a model want added to it in training.

L = L_nll + c_kl (KL_z + KL_q) + c_qq L_Dqq - c_xq L_Dxq ("Bayesian Transformer Using Disentangled Mask Attention", section 3.3)
"""
# ruff: noqa: UP007, UP045  (fairseq's parser does not know `float | None`)

import functools
import math
from dataclasses import dataclass, field, fields
from typing import Optional

import torch
from fairseq import options
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from torch import Tensor

from modular_fairseq.errors import UsageError
from modular_fairseq.models.masks import TrainsWithLosses
from modular_fairseq.modules.mutual_information import CRITICS, DENSITIES
from modular_fairseq.modules.semantic_mask import Losses

# The paper does not say which it used. Of a fresh model KL is 4, L_Dqq up to 0.05 and L_Dxq 0.05 to 0.08.
DEFAULT_WEIGHTS = {"kl": 0.01, "qq": 0.1, "xq": 0.1}
SIGNS = {"kl": 1, "qq": 1, "xq": -1}


@dataclass
class ModularCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of `modular_cross_entropy`."""

    kl_weight: Optional[float] = field(
        default=None,
        metadata={"help": "of the divergence of tokens and queries from their clusters, in nats per dimension (default: 0.01 with DMA)"},
    )
    qq_weight: Optional[float] = field(
        default=None, metadata={"help": "of the mutual information between the queries of different heads (default: 0.1 with DMA)"}
    )
    xq_weight: Optional[float] = field(
        default=None, metadata={"help": "of the mutual information between tokens and queries, subtracted (default: 0.1 with DMA)"}
    )
    aux_warmup_updates: int = field(default=4000, metadata={"help": "updates in which these weights grow from 0, linearly"})
    qq_densities: ChoiceEnum(list(DENSITIES)) = field(
        default="pooled",
        metadata={"help": "densities of queries in L_Dqq: uniform over the tokens of all heads, of each head, or those of the mixture"},
    )
    qq_pairs: int = field(default=0, metadata={"help": "pairs of heads for L_Dqq, drawn at random in every update; 0: all"})
    qq_interval: int = field(default=1, metadata={"help": "L_Dqq in every so many updates only, with so many times the weight"})
    qq_floor: Optional[float] = field(
        default=None,
        metadata={
            "help": "L_Dqq of a module and sentence is not lowered below this, such as 0, where heads are independent (default: none)"
        },
    )
    xq_critic: ChoiceEnum(list(CRITICS)) = field(
        default="head", metadata={"help": "tokens in L_Dxq are seen through the query's own head, or through the mean of all"}
    )


@register_criterion("modular_cross_entropy", dataclass=ModularCrossEntropyConfig)
class ModularCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy plus weighted auxiliary losses, in training; without them in validation.

    Every sentence's auxiliary losses count as much as its share of the sample size (its target tokens, or 1 with --sentence-avg), as its
    cross-entropy does. So their weights do not depend on how sentences are put into batches, --update-freq or workers. `loss` is logged
    with them, and each of them by itself, unweighted: `kl`, `qq`, `xq`.

    `asked_for` are the options that need a model with such losses (`training/losses.py` sees to it).

    Raises:
        UsageError: a weight that is negative or not finite, or options that would be ignored.
    """

    def __init__(
        self,
        task,
        sentence_avg,
        label_smoothing,
        ignore_prefix_size=0,
        report_accuracy=False,
        kl_weight=None,
        qq_weight=None,
        xq_weight=None,
        aux_warmup_updates=4000,
        qq_densities="pooled",
        qq_pairs=0,
        qq_interval=1,
        qq_floor=None,
        xq_critic="head",
    ):
        super().__init__(task, sentence_avg, label_smoothing, ignore_prefix_size, report_accuracy)
        given = {"kl": kl_weight, "qq": qq_weight, "xq": xq_weight}
        for name, weight in given.items():
            if weight is not None and not 0 <= weight < math.inf:
                raise UsageError(f"--{name}-weight must be 0 or a positive number, not {weight}")
        for name, value, smallest in (
            ("aux-warmup-updates", aux_warmup_updates, 0),
            ("qq-pairs", qq_pairs, 0),
            ("qq-interval", qq_interval, 1),
        ):
            if value < smallest:
                raise UsageError(f"--{name} must be at least {smallest}, not {value}")
        if qq_floor is not None and not math.isfinite(qq_floor):
            raise UsageError(f"--qq-floor must be a number, such as 0, not {qq_floor}")
        self.asked_for = [f"--{name}-weight" for name, weight in given.items() if weight]
        self.weights = {name: DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in given.items()}
        for name, value, default in (
            ("qq-densities", str(qq_densities), "pooled"),
            ("qq-pairs", qq_pairs, 0),
            ("qq-interval", qq_interval, 1),
            ("qq-floor", qq_floor, None),
            ("xq-critic", str(xq_critic), "head"),
        ):
            if value != default:
                self.asked_for.append(f"--{name}")
                if self.weights[name[:2]] == 0:
                    raise UsageError(f"--{name} has no effect with --{name[:2]}-weight 0; leave it out")
        if aux_warmup_updates != ModularCrossEntropyConfig.aux_warmup_updates:
            self.asked_for.append("--aux-warmup-updates")
            if not any(self.weights.values()):
                raise UsageError("--aux-warmup-updates has no effect with all weights 0; leave it out")
        self.aux_warmup_updates = aux_warmup_updates
        self.qq_interval = qq_interval
        floor = -math.inf if qq_floor is None else qq_floor
        self.how = {"densities": str(qq_densities), "pairs": qq_pairs, "floor": floor, "critic": str(xq_critic)}

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """As fairseq's; `model` may be wrapped for several workers."""
        ours = next((module for module in model.modules() if isinstance(module, TrainsWithLosses)), None)
        if ours is None or not ours.semantic_masks or not model.training:
            return super().forward(model, sample, reduce)
        weights = self._weights_now(ours.num_updates)
        ours.ask_for_losses(Losses(**{name: weight > 0 for name, weight in weights.items()}, **self.how))
        loss, sample_size, logging_output = super().forward(model, sample, reduce)
        tokens = sample["target"].ne(self.padding_idx).sum(dim=1)
        counts = torch.ones_like(tokens) if self.sentence_avg else tokens
        for name, values in ours.take_losses().items():
            total = (values * counts).sum() / counts.sum() * sample_size
            logging_output[name] = total.detach()
            loss = loss + SIGNS[name] * weights[name] * total
        logging_output["loss"] = loss.detach()
        return loss, sample_size, logging_output

    def _weights_now(self, num_updates: int | None) -> dict[str, float]:
        """0 for what is not to be computed. Outside fairseq's training, where nothing counts updates, the whole weights."""
        if num_updates is None:
            return self.weights
        warm = min(1.0, (num_updates + 1) / max(self.aux_warmup_updates, 1))
        weights = {name: warm * weight for name, weight in self.weights.items()}
        weights["qq"] *= 0 if num_updates % self.qq_interval else self.qq_interval
        return weights

    @classmethod
    def reduce_metrics(cls, logging_outputs: list[dict]) -> None:
        super().reduce_metrics(logging_outputs)
        sample_size = sum(log.get("sample_size", 0) for log in logging_outputs)
        for name in SIGNS:
            if any(name in log for log in logging_outputs):
                total = sum(log.get(name, 0) for log in logging_outputs)
                metrics.log_scalar(name, total / sample_size, sample_size, round=4)


def explain_options_without_their_criterion() -> None:
    """Let fairseq's commands say in one sentence which --criterion an option of ours belongs to; its parser shows pages of usage.

    Calling it again changes nothing.
    """
    parse = options.parse_args_and_arch
    if hasattr(parse, "explains"):
        return
    fairseqs = {f.name for f in fields(LabelSmoothedCrossEntropyCriterionConfig)}
    ours = {"--" + f.name.replace("_", "-") for f in fields(ModularCrossEntropyConfig) if f.name not in fairseqs}

    @functools.wraps(parse)
    def explain(parser, *args, **kwargs):
        usual = parser.error

        def error(message: str) -> None:
            for word in message.split() if message.startswith("unrecognized arguments") else ():
                name = word.partition("=")[0]
                if name in ours:
                    raise UsageError(f"{name} has no effect without --criterion modular_cross_entropy; add that, or leave it out")
            usual(message)

        parser.error = error
        return parse(parser, *args, **kwargs)

    explain.explains = True
    options.parse_args_and_arch = explain
