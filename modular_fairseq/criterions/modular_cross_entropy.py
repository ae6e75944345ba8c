"""fairseq's label-smoothed cross-entropy, and what the modules of a model want added to it in training.

L = L_nll + c_kl (KL_z + KL_q) + c_qq L_Dqq - c_xq L_Dxq ("Bayesian Transformer Using Disentangled Mask
Attention", section 3.3)
"""
# ruff: noqa: UP007, UP045  (fairseq's parser does not know `float | None`)

import math
from dataclasses import Field, dataclass, field, fields
from typing import Optional

import torch
from fairseq.criterions import register_criterion
from fairseq.criterions.label_smoothed_cross_entropy import (
    LabelSmoothedCrossEntropyCriterion,
    LabelSmoothedCrossEntropyCriterionConfig,
)
from fairseq.dataclass import ChoiceEnum
from fairseq.logging import metrics
from torch import Tensor

from modular_fairseq.models.checks import flag
from modular_fairseq.models.masks import CountsUpdates, measuring, semantic_masks
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.modules.mutual_information import CRITICS, DENSITIES
from modular_fairseq_cli.errors import UsageError

# The paper does not say which it used. Of a fresh dma_transformer_iwslt_de_en KL is 3.81, L_Dqq 0.000 and
# L_Dxq 0.024 (random tokens).
DEFAULT_WEIGHTS = {"kl": 0.01, "qq": 0.1, "xq": 0.1}
SIGNS = {"kl": 1, "qq": 1, "xq": -1}


@dataclass
class ModularCrossEntropyConfig(LabelSmoothedCrossEntropyCriterionConfig):
    """Options of `modular_cross_entropy`."""

    kl_weight: Optional[float] = field(
        default=None,
        metadata={
            "help": "weight of the KL divergence of tokens and queries from their mixtures, in nats per "
            "dimension (default: 0.01 with DMA)"
        },
    )
    qq_weight: Optional[float] = field(
        default=None,
        metadata={
            "help": "weight of L_Dqq, mutual information of the queries of different heads (default: 0.1 "
            "with DMA)"
        },
    )
    xq_weight: Optional[float] = field(
        default=None,
        metadata={
            "help": "weight of L_Dxq, mutual information between tokens and queries, which is subtracted "
            "(default: 0.1 with DMA)"
        },
    )
    aux_warmup_updates: int = field(
        default=4000, metadata={"help": "updates in which these weights grow from 0, linearly"}
    )
    qq_densities: ChoiceEnum(list(DENSITIES)) = field(
        default="pooled",
        metadata={
            "help": "densities of queries in L_Dqq: uniform over the tokens of all heads, of each head, or "
            "those of the mixture"
        },
    )
    qq_pairs: int = field(
        default=0, metadata={"help": "pairs of heads for L_Dqq, drawn at random in every update; 0: all"}
    )
    qq_interval: int = field(
        default=1, metadata={"help": "L_Dqq in every so many updates only, with so many times the weight"}
    )
    qq_floor: float = field(
        default=0.0,
        metadata={
            "help": "L_Dqq of a module and sentence is not lowered below this; -inf: Eq. 6 to the letter, "
            "which has no lowest value"
        },
    )
    xq_critic: ChoiceEnum(list(CRITICS)) = field(
        default="head",
        metadata={
            "help": "tokens in L_Dxq are seen through the query's own head, or through the mean of all"
        },
    )


@register_criterion("modular_cross_entropy", dataclass=ModularCrossEntropyConfig)
class ModularCrossEntropyCriterion(LabelSmoothedCrossEntropyCriterion):
    """Label-smoothed cross-entropy plus weighted auxiliary losses, in training; without them in validation.

    Every sentence's auxiliary losses count as much as its share of the sample size (its target tokens, or 1
    with --sentence-avg), as its cross-entropy does. So their weights do not depend on how sentences are put
    into batches, --update-freq or workers. `loss` is logged with them, and each of them by itself,
    unweighted: `kl`, `qq`, `xq`.

    Mutual information is at least 0, but its estimate by Eq. 6 is not: minimised without a floor it goes to
    -18 and below, by heads whose tokens are never in the same clusters, until it is most of the objective. On
    Multi30k (4+4 layers, 738 updates) validation perplexity was 16.9 so, 14.5 with the floor of 0, 14.8
    without L_Dqq. Hence the default; `qq` is logged as Eq. 6 has it.

    `asked_for` are the options that need a model with such losses (`training/criterion_check.py` sees to it).

    Raises:
        UsageError: a weight that is negative or not finite, or options that would be ignored.
    """

    def __init__(self, cfg: ModularCrossEntropyConfig, task):
        super().__init__(
            task, cfg.sentence_avg, cfg.label_smoothing, cfg.ignore_prefix_size, cfg.report_accuracy
        )
        self.asked_for = _check(cfg)
        given = {"kl": cfg.kl_weight, "qq": cfg.qq_weight, "xq": cfg.xq_weight}
        self.weights = {
            name: DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in given.items()
        }
        self.aux_warmup_updates = cfg.aux_warmup_updates
        self.qq_interval = cfg.qq_interval
        self.how = {
            "densities": str(cfg.qq_densities),
            "pairs": cfg.qq_pairs,
            "floor": cfg.qq_floor,
            "critic": str(cfg.xq_critic),
        }

    def forward(self, model, sample: dict, reduce: bool = True) -> tuple[Tensor, int, dict]:
        """As fairseq's; `model` may be wrapped for several workers."""
        masks = semantic_masks(model).values() if model.training else ()
        if not masks:
            return super().forward(model, sample, reduce)
        weights = self._weights_now(
            next(module.num_updates for module in model.modules() if isinstance(module, CountsUpdates))
        )
        wanted = LossSettings(**{name: weight > 0 for name, weight in weights.items()}, **self.how)
        with measuring(model, wanted) as losses:
            loss, sample_size, logging_output = super().forward(model, sample, reduce)
        tokens = sample["target"].ne(self.padding_idx).sum(dim=1)
        counts = torch.ones_like(tokens) if self.sentence_avg else tokens
        for name, values in losses.items():
            total = (values * counts).sum() / counts.sum().clamp_min(1) * sample_size
            logging_output[name] = total.detach()
            loss = loss + SIGNS[name] * weights[name] * total
        if not wanted.kl:
            # DistributedDataParallel wants a gradient of every parameter, also of clusters that nothing else
            # uses then.
            loss = loss + 0.0 * sum(parameter.sum() for mask in masks for parameter in mask.parameters())
        logging_output["loss"] = loss.detach()
        return loss, sample_size, logging_output

    def _weights_now(self, num_updates: int | None) -> dict[str, float]:
        """0 for what is not to be computed. Outside fairseq's training, where nothing counts updates, the
        whole weights.
        """
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


def own_options() -> list[Field]:
    """Those that fairseq's label-smoothed cross-entropy does not have."""
    fairseqs = {f.name for f in fields(LabelSmoothedCrossEntropyCriterionConfig)}
    return [f for f in fields(ModularCrossEntropyConfig) if f.name not in fairseqs]


def _check(cfg: ModularCrossEntropyConfig) -> list[str]:
    """Refuses values that cannot be and options that would be ignored; returns the options that were set, but
    for weights of 0.
    """
    values = {f.name: getattr(cfg, f.name) for f in own_options()}
    for name, value in values.items():
        option = flag(name)
        if name.endswith("_weight") and value is not None and not 0 <= value < math.inf:
            raise UsageError(f"{option} must be 0 or a positive number, not {value}")
        if name == "qq_floor" and not value < math.inf:
            raise UsageError(f"{option} must be a number, such as 0, or -inf, not {value}")
        smallest = {"aux_warmup_updates": 0, "qq_pairs": 0, "qq_interval": 1}.get(name)
        if smallest is not None and value < smallest:
            raise UsageError(f"{option} must be at least {smallest}, not {value}")
    asked_for = [
        f.name
        for f in own_options()
        if values[f.name] != f.default and not (f.name.endswith("_weight") and values[f.name] == 0)
    ]
    for name in asked_for:
        weights = (
            ["kl_weight", "qq_weight", "xq_weight"]
            if name == "aux_warmup_updates"
            else [f"{name.partition('_')[0]}_weight"]
        )
        if name not in weights and all(values[weight] == 0 for weight in weights):
            raise UsageError(
                f"{flag(name)} has no effect with {' '.join(f'{flag(weight)} 0' for weight in weights)}; "
                "leave it out"
            )
    return [flag(name) for name in asked_for]
