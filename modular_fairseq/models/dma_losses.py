"""The auxiliary losses of disentangled mask attention, which the criteria of this package add.

    L = L_nll + c_kl (KL_z + KL_q) + c_qq L_Dqq - c_xq L_Dxq (+ c_div diversity)        (section 3.3)

The maths is in `modules/gaussian_mixture.py`, `modules/disentangled_heads.py` and
`modules/mutual_information.py`.
"""
# fairseq's parser knows `Optional[float]`, but not `float | None`.
# ruff: noqa: UP007, UP045

import copy
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Optional

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.options import flag, is_set
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.modules.mask_losses import measure
from modular_fairseq.modules.mutual_information import CRITICS, DENSITIES, ESTIMATORS
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import NoEffectError, UsageError

# The paper does not give its weights. In an untrained dma_transformer_iwslt_de_en KL is 3.81, L_Dqq 0.000 and
# L_Dxq 0.024 (random tokens).
DEFAULT_WEIGHTS = {"kl": 0.01, "qq": 0.1, "xq": 0.1, "diversity": 0.0}

# fairseq's parser reads the choices of an option from its type, which must be made at run time.
Estimator: Any = ChoiceEnum(list(ESTIMATORS))
Densities: Any = ChoiceEnum(list(DENSITIES))
Critic: Any = ChoiceEnum(list(CRITICS))

# For each estimator of L_Dqq, the options that it does not use.
IGNORED_BY = {
    "eq6": (),
    "released": ("qq_pairs", "qq_floor"),
    "clusters": ("qq_pairs", "qq_floor", "qq_densities"),
}


@dataclass
class DmaLossOptions(FairseqDataclass):
    """The options of the criterion for the losses of semantic masks."""

    kl_weight: Optional[float] = field(
        default=None,
        metadata={
            "help": "weight of the KL divergence of tokens and queries from their mixtures, in nats per "
            "dimension; only for models with DMA (default: 0.01)"
        },
    )
    qq_weight: Optional[float] = field(
        default=None,
        metadata={
            "help": "weight of L_Dqq, the mutual information between the queries of different heads; only "
            "for models with DMA (default: 0.1)"
        },
    )
    xq_weight: Optional[float] = field(
        default=None,
        metadata={
            "help": "weight of L_Dxq, the mutual information between tokens and queries, which is "
            "subtracted; only for models with DMA (default: 0.1)"
        },
    )
    diversity_weight: float = field(
        default=0.0,
        metadata={
            "help": "weight of the diversity loss, which is low if the clusters of tokens and queries are "
            "decided and differ within a sentence; only for models with DMA; 0: not computed (default: 0)"
        },
    )
    aux_warmup_updates: int = field(
        default=4000,
        metadata={
            "help": "number of updates in which --kl-weight, --qq-weight, --xq-weight and "
            "--diversity-weight grow linearly from 0 to their values; 0: none (default: 4000)"
        },
    )
    qq_estimator: Estimator = field(
        default="eq6",
        metadata={
            "help": "how L_Dqq is computed: eq6 (Eq. 6 as printed, which has no lowest value), released "
            "(-log(1 - p(q|q')), as in the code that the authors released) or clusters (the mutual "
            "information of the clusters of queries) (default: eq6)"
        },
    )
    qq_densities: Densities = field(
        default="pooled",
        metadata={
            "help": "density of queries in L_Dqq: pooled (uniform over the tokens of all heads), per_head "
            "(uniform over the tokens of each head) or gmm (the density of the mixture, as in the paper) "
            "(default: pooled)"
        },
    )
    qq_pairs: int = field(
        default=0,
        metadata={
            "help": "number of pairs of heads in L_Dqq, drawn at random in every forward pass; 0: all "
            "pairs (default: 0)"
        },
    )
    qq_interval: int = field(
        default=1,
        metadata={"help": "compute L_Dqq in every N-th update only, with N times its weight (default: 1)"},
    )
    qq_floor: float = field(
        default=-2.0,
        metadata={
            "help": "lower limit of L_Dqq in nats: where a module and sentence are below it, they get no "
            "gradient; no floor, as in Eq. 6: --qq-floor=-inf. Only with --qq-estimator eq6 (default: -2)",
            "former_default": 0.0,
        },
    )
    xq_critic: Critic = field(
        default="head",
        metadata={
            "help": "how L_Dxq sees tokens: head (through the head of the query), mean (through the "
            "mean of all heads) or others (through the mean of all other heads) (default: head)"
        },
    )


def semantic_masks(model: nn.Module) -> dict[str, SemanticMask]:
    """Return the masks by the name of their attention module, such as encoder.layers.0.self_attn."""
    return {
        name.removesuffix(".mask"): module
        for name, module in model.named_modules()
        if isinstance(module, SemanticMask)
    }


@contextmanager
def measuring(model: nn.Module, wanted: LossSettings) -> Iterator[dict[str, Tensor]]:
    """Measure losses in the forward pass inside the block, which must be in training mode.

    At the end of the block the dictionary holds the losses that are `wanted`, [B] each, by name. They are
    means over the modules that took part, as LayerDrop may leave some out. No module keeps a graph after the
    block, even after an exception.
    """
    masks = semantic_masks(model).values()
    losses: dict[str, Tensor] = {}
    for mask in masks:
        mask.wanted, mask.seen = wanted, None
    try:
        yield losses
        for name, by_module in measure([mask for mask in masks if mask.seen], wanted).items():
            losses[name] = by_module.mean(dim=0)
    finally:
        for mask in masks:
            mask.seen = None


class DmaLosses(AuxiliaryLosses):
    """KL divergences and mutual information of semantic masks (section 3.3).

    Mutual information is at least 0, but its estimate by Eq. 6 is not. If L_Dqq is minimised without a floor,
    it falls to -18 and below, as heads learn to have tokens that are never in the same clusters, and
    translation suffers. With a floor of 0 it has almost no gradient. The floor is -2 by default, which
    docs/mechanisms/dma.md measures. The logged value of `qq` has the floor.

    Raises:
        UsageError: a weight is negative or not finite, or an option would have no effect.
    """

    options = DmaLossOptions
    signs = {"kl": 1, "qq": 1, "xq": -1, "diversity": 1}
    left_out_by = "--kl-weight 0 --qq-weight 0 --xq-weight 0"

    def __init__(self, cfg: Options):
        self.asked_for = _check_loss_options(cfg)
        given = {name: getattr(cfg, f"{name}_weight") for name in self.signs}
        self.full_weights = {
            name: DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in given.items()
        }
        self.warmup_updates = cfg.aux_warmup_updates
        self.qq_interval = cfg.qq_interval
        self.how: dict[str, Any] = {
            "estimator": str(cfg.qq_estimator),
            "densities": str(cfg.qq_densities),
            "pairs": cfg.qq_pairs,
            "floor": cfg.qq_floor if cfg.qq_estimator == "eq6" else -math.inf,
            "critic": str(cfg.xq_critic),
        }

    @staticmethod
    def concerns(model: nn.Module) -> bool:
        return bool(semantic_masks(model))

    def weights(self, num_updates: int | None) -> dict[str, float]:
        """Return the weight of each loss at an update.

        Outside fairseq's training nothing counts updates, and the weights are the full ones.
        """
        if num_updates is None:
            return self.full_weights
        warm = min(1.0, (num_updates + 1) / max(self.warmup_updates, 1))
        weights = {name: warm * weight for name, weight in self.full_weights.items()}
        weights["qq"] *= 0 if num_updates % self.qq_interval else self.qq_interval
        return weights

    @contextmanager
    def measuring(self, model: nn.Module, weights: dict[str, float]) -> Iterator[dict[str, Tensor]]:
        measured: dict[str, Any] = {name: weight > 0 for name, weight in weights.items()}
        wanted = LossSettings(**measured, **self.how)
        with measuring(model, wanted) as losses:
            yield losses

    def without_gradient(self, model: nn.Module, weights: dict[str, float]) -> list[nn.Parameter]:
        """Return all parameters of the masks if the KL weight is 0, as some may get no gradient then."""
        if weights["kl"] > 0:
            return []
        return [parameter for mask in semantic_masks(model).values() for parameter in mask.parameters()]

    def has_effect(self, name: str, model: nn.Module) -> bool:
        if not self.concerns(model) or name in IGNORED_BY[self.how["estimator"]]:
            return False
        if self.full_weights.get(name.partition("_")[0]) == 0:
            return False
        asking = copy.copy(self)
        asking.asked_for = [flag(name)]
        try:
            asking.check_model(model)
        except NoEffectError:
            return False
        return True

    def check_model(self, model: nn.Module) -> None:
        """Refuse options of the losses that have no effect in a model, or cannot work with its heads.

        Raises:
            UsageError: its sentence names the option; it is a NoEffectError if the option has no effect.
        """
        masks = semantic_masks(model).values()
        heads, fewest = (of(mask.num_heads for mask in masks) for of in (max, min))
        pairs = heads * (heads - 1) // (2 if self.how["densities"] == "pooled" else 1)
        for option in self.asked_for:
            if option.startswith(("--qq", "--xq", "--diversity")) and all(
                mask.tokens.clusters == 1 for mask in masks
            ):
                raise NoEffectError(
                    f"{option} has no effect with --dma-clusters 1, as all queries are in one cluster; leave "
                    "it out"
                )
            if option.startswith("--qq") and heads == 1:
                raise NoEffectError(
                    f"{option} has no effect with 1 attention head, as L_Dqq compares heads; leave it out"
                )
        if self.how["critic"] == "others" and fewest == 1:
            raise UsageError(
                "--xq-critic others needs at least 2 heads in every attention module; use --xq-critic head"
            )
        if self.how["critic"] == "mean" and heads == 1:
            raise NoEffectError(
                "--xq-critic mean has no effect with 1 attention head, which is the mean; leave it out"
            )
        if self.how["pairs"] >= pairs > 0:
            raise NoEffectError(
                f"--qq-pairs {self.how['pairs']} has no effect, as {heads} heads have {pairs} pairs; leave "
                "it out to use all of them"
            )


def _check_loss_options(cfg: Options) -> list[str]:
    """Refuse values that cannot work or have no effect, and return the options that need a model with DMA.

    These are the options that the user has set (`options.is_set`), except weights of 0.
    """
    own = [f for f in fields(DmaLossOptions) if f.name != "_name"]
    values = {f.name: getattr(cfg, f.name) for f in own}
    for name, value in values.items():
        option = flag(name)
        if name.endswith("_weight") and value is not None and not 0 <= value < math.inf:
            raise UsageError(f"{option} must be 0 or a positive number, not {value}")
        if name == "qq_floor" and not value < math.inf:
            raise UsageError(
                f"{option}={value}: give a number, such as {option} -2, or {option}=-inf for no floor"
            )
        smallest = {"aux_warmup_updates": 0, "qq_pairs": 0, "qq_interval": 1}.get(name)
        if smallest is not None and value < smallest:
            raise UsageError(f"{option} must be at least {smallest}, not {value}")
    asked_for = [
        f.name
        for f in own
        if is_set(f, values[f.name]) and not (f.name.endswith("_weight") and values[f.name] == 0)
    ]
    for name in asked_for:
        weights = (
            [f"{loss}_weight" for loss in DmaLosses.signs]
            if name == "aux_warmup_updates"
            else [f"{name.partition('_')[0]}_weight"]
        )
        if name not in weights and all(values[weight] == 0 for weight in weights):
            # A weight whose default is 0 is not named.
            defaults = {f.name: f.default for f in own}
            without = " ".join(f"{flag(weight)} 0" for weight in weights if defaults[weight] != 0)
            raise NoEffectError(f"{flag(name)} has no effect with {without}; leave it out")
    for name in IGNORED_BY[str(values["qq_estimator"])]:
        if name in asked_for:
            raise NoEffectError(
                f"{flag(name)} has no effect with --qq-estimator {values['qq_estimator']}; leave it out"
            )
    return [flag(name) for name in asked_for]
