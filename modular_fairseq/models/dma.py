"""Disentangled mask attention: "Bayesian Transformer Using Disentangled Mask Attention".

The paper is by Chien and Huang (2022). The maths is in `modules/semantic_mask.py`,
`modules/gaussian_mixture.py`, `modules/disentangled_heads.py` and `modules/mutual_information.py`. The
criterion `modular_cross_entropy` adds the losses:

    L = L_nll + c_kl (KL_z + KL_q) + c_qq L_Dqq - c_xq L_Dxq        (section 3.3)
"""
# fairseq's parser knows `Optional[float]`, but not `float | None`.
# ruff: noqa: UP007, UP045

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from modular_fairseq.models.architectures import IWSLT_DE_EN, TINY_CPU, WMT_EN_DE, register_all, size
from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import Place, register_attention
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.modules.gaussian_mixture import CENTROID_MODES, POSTERIORS
from modular_fairseq.modules.mutual_information import CRITICS, DENSITIES
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import UsageError

# The paper does not give its weights. In an untrained dma_transformer_iwslt_de_en KL is 3.81, L_Dqq 0.000 and
# L_Dxq 0.024 (random tokens).
DEFAULT_WEIGHTS = {"kl": 0.01, "qq": 0.1, "xq": 0.1}

# fairseq's parser reads the choices of an option from its type, which must be made at run time.
Posterior: Any = ChoiceEnum(list(POSTERIORS))
CentroidMode: Any = ChoiceEnum(list(CENTROID_MODES))
Densities: Any = ChoiceEnum(list(DENSITIES))
Critic: Any = ChoiceEnum(list(CRITICS))


@dataclass
class DmaOptions(FairseqDataclass):
    """The options of semantic masks."""

    dma_clusters: int = field(
        default=4,
        metadata={
            "help": "number of clusters (Gaussians) of each mixture; with 1 cluster attention is plain "
            "(default: 4)"
        },
    )
    dma_posterior: Posterior = field(
        default="expected",
        metadata={
            "help": "how the clusters of latent vectors are inferred: expected (from their expected "
            "log-densities) or sample (in training from a random sample, as in the paper; slower "
            "on CPUs). Only with 2 clusters or more (default: expected)"
        },
    )
    dma_centroid_gradient: float = field(
        default=10.0,
        metadata={
            "help": "factor by which the steps of cluster centroids are lengthened, c_grad in the paper; "
            "0.001 to 1000 (default: 10)"
        },
    )
    dma_centroid_mode: CentroidMode = field(
        default="lr",
        metadata={
            "help": "how --dma-centroid-gradient acts: lr (Adam takes steps of that many times the "
            "length) or hook (the gradient of centroids is multiplied, which is the letter of the "
            "paper; Adam undoes it). Only with a factor other than 1 (default: lr)"
        },
    )
    dma_decoder_eval_mask: bool = field(
        default=False,
        metadata={
            "help": "use the mask of the decoder's self-attention in evaluation and search too, not only "
            "in training; a language model has no other mask"
        },
    )


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
    aux_warmup_updates: int = field(
        default=4000,
        metadata={
            "help": "number of updates in which --kl-weight, --qq-weight and --xq-weight grow linearly "
            "from 0 to their values; 0: none (default: 4000)"
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
        default=0.0,
        metadata={
            "help": "lower limit of L_Dqq in nats: where a module and sentence are below it, they get no "
            "gradient; -inf: no floor, as in Eq. 6, which has no lowest value (default: 0)"
        },
    )
    xq_critic: Critic = field(
        default="head",
        metadata={
            "help": "how L_Dxq sees tokens: head (through the head of the query) or mean (through the "
            "mean of all heads) (default: head)"
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
        mask.wanted, mask.losses = wanted, {}
    try:
        yield losses
        by_module = [mask.losses for mask in masks if mask.losses]
        for name in by_module[0] if by_module else ():
            losses[name] = torch.stack([of_module[name] for of_module in by_module]).mean(dim=0)
    finally:
        for mask in masks:
            mask.losses = {}


class DmaLosses(AuxiliaryLosses):
    """KL divergences and mutual information of semantic masks (section 3.3).

    Mutual information is at least 0, but its estimate by Eq. 6 is not. If L_Dqq is minimised without a floor,
    it falls to -18 and below, as heads learn to have tokens that are never in the same clusters. It is then
    most of the objective. On Multi30k (4+4 layers, 738 updates) validation perplexity was 16.9 without a
    floor, 14.5 with a floor of 0, and 14.8 without L_Dqq. The floor is therefore 0 by default. The logged
    value of `qq` is the estimate by Eq. 6.

    Raises:
        UsageError: a weight is negative or not finite, or an option would have no effect.
    """

    options = DmaLossOptions
    signs = {"kl": 1, "qq": 1, "xq": -1}
    left_out_by = "--kl-weight 0 --qq-weight 0 --xq-weight 0"

    def __init__(self, cfg: Options):
        self.asked_for = _check_loss_options(cfg)
        given = {"kl": cfg.kl_weight, "qq": cfg.qq_weight, "xq": cfg.xq_weight}
        self.full_weights = {
            name: DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in given.items()
        }
        self.warmup_updates = cfg.aux_warmup_updates
        self.qq_interval = cfg.qq_interval
        self.how: dict[str, Any] = {
            "densities": str(cfg.qq_densities),
            "pairs": cfg.qq_pairs,
            "floor": cfg.qq_floor,
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
        wanted = LossSettings(kl=weights["kl"] > 0, qq=weights["qq"] > 0, xq=weights["xq"] > 0, **self.how)
        with measuring(model, wanted) as losses:
            yield losses

    def without_gradient(self, model: nn.Module, weights: dict[str, float]) -> list[nn.Parameter]:
        """Return all parameters of the masks if the KL weight is 0, as some may get no gradient then."""
        if weights["kl"] > 0:
            return []
        return [parameter for mask in semantic_masks(model).values() for parameter in mask.parameters()]

    def check_model(self, model: nn.Module) -> None:
        masks = semantic_masks(model).values()
        heads = max(mask.num_heads for mask in masks)
        pairs = heads * (heads - 1) // (2 if self.how["densities"] == "pooled" else 1)
        for option in self.asked_for:
            if option.startswith(("--qq", "--xq")) and all(mask.tokens.clusters == 1 for mask in masks):
                raise UsageError(
                    f"{option} has no effect with --dma-clusters 1, as all queries are in one cluster; leave "
                    "it out"
                )
            if option.startswith("--qq") and heads == 1:
                raise UsageError(
                    f"{option} has no effect with 1 attention head, as L_Dqq compares heads; leave it out"
                )
        if self.how["pairs"] >= pairs > 0:
            raise UsageError(
                f"--qq-pairs {self.how['pairs']} has no effect, as {heads} heads have {pairs} pairs; leave "
                "it out to use all of them"
            )


def _check_loss_options(cfg: Options) -> list[str]:
    """Refuse values that cannot work or have no effect, and return the options that need a model with DMA.

    These are the options that the user has set, except weights of 0.
    """
    own = [f for f in fields(DmaLossOptions) if f.name != "_name"]
    values = {f.name: getattr(cfg, f.name) for f in own}
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
        for f in own
        if values[f.name] != f.default and not (f.name.endswith("_weight") and values[f.name] == 0)
    ]
    for name in asked_for:
        weights = (
            ["kl_weight", "qq_weight", "xq_weight"]
            if name == "aux_warmup_updates"
            else [f"{name.partition('_')[0]}_weight"]
        )
        if name not in weights and all(values[weight] == 0 for weight in weights):
            without = " ".join(f"{flag(weight)} 0" for weight in weights)
            raise UsageError(f"{flag(name)} has no effect with {without}; leave it out")
    return [flag(name) for name in asked_for]


def check(choice: Choice) -> None:
    """Raise UsageError for options of masks that cannot work or would have no effect."""
    options = choice.options
    if options.dma_clusters < 1:
        raise UsageError(
            f"--dma-clusters must be at least 1 (which is plain attention), not {options.dma_clusters}"
        )
    if not 1e-3 <= options.dma_centroid_gradient <= 1e3:  # it must also work in half precision
        raise UsageError(
            f"--dma-centroid-gradient must be between 0.001 and 1000, not {options.dma_centroid_gradient}"
        )
    if options.dma_clusters == 1:
        choice.refuse(
            ["dma_posterior", "dma_decoder_eval_mask"], "with --dma-clusters 1, which is plain attention"
        )
    if options.dma_centroid_gradient == 1:
        choice.refuse(["dma_centroid_mode"], "with --dma-centroid-gradient 1")
    if "encoder" in choice.stacks and options.encoder_embed_dim != options.decoder_embed_dim:
        raise UsageError(
            f"--decoder-embed-dim {options.decoder_embed_dim} with --encoder-embed-dim "
            f"{options.encoder_embed_dim}: they must be equal with --attention-type "
            f"{options.attention_type}, which has the same clusters for source and target words"
        )
    if options.adaptive_softmax_cutoff is not None:
        raise UsageError(
            "--adaptive-softmax-cutoff needs --criterion adaptive_loss, which does not add the losses of "
            f"--attention-type {options.attention_type}; leave one of them out"
        )


def short_training(options: Options, epochs: int, warmup_updates: int) -> list[str]:
    """Return the option that lets the losses reach full weight when the learning rate does.

    Nothing is returned if the user has set a weight or the warm-up.
    """
    defaults = DmaLossOptions()
    names = [*(f"{name}_weight" for name in DmaLosses.signs), "aux_warmup_updates"]
    if any(getattr(options, name, getattr(defaults, name)) != getattr(defaults, name) for name in names):
        return []
    return ["--aux-warmup-updates", str(warmup_updates)]


@register_attention(
    "dma",
    seam="mask",
    options=DmaOptions,
    summary="disentangled mask attention, a semantic mask in every attention module",
    check=check,
    losses=DmaLosses,
    must_agree={".centroid_scale": "--dma-centroid-gradient or --dma-centroid-mode changed between them"},
    short_training=short_training,
    benched=("dma_transformer_iwslt_de_en", f"dma_transformer_iwslt_de_en {DmaLosses.left_out_by}"),
)
def build_mask(options: Options, place: Place) -> SemanticMask:
    """Build the `mask` of one attention module.

    In the decoder's self-attention "the semantic mask was disregarded [...] in test phase" (section 4.1),
    unless --dma-decoder-eval-mask is given.
    """
    return SemanticMask(
        place.num_heads,
        place.embed_dim,
        options.dma_clusters,
        options.dma_posterior,
        options.dma_centroid_gradient,
        options.dma_centroid_mode,
        self_attention=place.self_attention,
        in_evaluation=options.dma_decoder_eval_mask or not (place.decoder and place.self_attention),
    )


def clusters(number: int, centroid_gradient: float = 10.0) -> dict[str, Any]:
    """Return the options of masks with `number` clusters."""
    return {"attention_type": "dma", "dma_clusters": number, "dma_centroid_gradient": centroid_gradient}


# There are 4 clusters except in the IWSLT base model, and c_grad is 10 except for Chinese (section 4.1). The
# paper does not give widths. Those chosen here give its parameter counts, with 43,690 joint types for WMT14,
# but not its count for Chinese, where the sizes are those of IWSLT.
ARCHS = {
    "dma_transformer": [clusters(4)],
    "dma_transformer_iwslt_de_en": [IWSLT_DE_EN, clusters(8)],
    "dma_transformer_iwslt_de_en_small": [size(384, 1024, heads=4), clusters(4)],
    "dma_transformer_iwslt_de_en_tiny": [size(256, 512, heads=4), clusters(4)],
    "dma_transformer_wmt_en_de": [WMT_EN_DE, clusters(4)],
    "dma_transformer_wmt_en_de_small": [size(384, 2048, heads=8), clusters(4)],
    "dma_transformer_wmt_zh_en": [IWSLT_DE_EN, clusters(4, centroid_gradient=5.0)],
    "dma_transformer_tiny_cpu": [TINY_CPU, clusters(4)],
}
register_all(ARCHS)
