"""Disentangled mask attention: "Bayesian Transformer Using Disentangled Mask Attention" (Chien and Huang
2022).

The maths is in `modules/semantic_mask.py`, `modules/gaussian_mixture.py`, `modules/disentangled_heads.py` and
`modules/mutual_information.py`. The criterion `modular_cross_entropy` adds the losses:

    L = L_nll + c_kl (KL_z + KL_q) + c_qq L_Dqq - c_xq L_Dxq        (section 3.3)

(`Optional[float]`, because fairseq's parser does not know `float | None`.)
"""
# ruff: noqa: UP007, UP045

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from typing import Optional

import torch
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from torch import Tensor, nn

from modular_fairseq.models.architectures import IWSLT_DE_EN, TINY_CPU, WMT_EN_DE, register_all, size
from modular_fairseq.models.auxiliary_losses import AuxiliaryLosses
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.options import flag
from modular_fairseq.models.registry import Place, register_attention
from modular_fairseq.modules.disentangled_heads import LossSettings
from modular_fairseq.modules.gaussian_mixture import CENTROID_MODES, POSTERIORS
from modular_fairseq.modules.mutual_information import CRITICS, DENSITIES
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import UsageError

# The paper does not say which it used. Of a fresh dma_transformer_iwslt_de_en KL is 3.81, L_Dqq 0.000 and
# L_Dxq 0.024 (random tokens).
DEFAULT_WEIGHTS = {"kl": 0.01, "qq": 0.1, "xq": 0.1}


@dataclass
class DmaOptions(FairseqDataclass):
    """Options of semantic masks."""

    dma_clusters: int = field(
        default=4, metadata={"help": "Gaussians of a mixture; with 1 attention is plain"}
    )
    dma_posterior: ChoiceEnum(list(POSTERIORS)) = field(
        default="expected",
        metadata={
            "help": "clusters of latent vectors by their expected log-densities, or in training by those of "
            "a sample (slower on CPUs)"
        },
    )
    dma_centroid_gradient: float = field(
        default=10.0,
        metadata={"help": "makes steps of cluster centroids so many times as long: c_grad"},
    )
    dma_centroid_mode: ChoiceEnum(list(CENTROID_MODES)) = field(
        default="lr",
        metadata={
            "help": "lr: really so, under Adam; hook: their gradient is multiplied, the paper's letter, "
            "which Adam undoes"
        },
    )
    dma_decoder_eval_mask: bool = field(
        default=False,
        metadata={
            "help": "mask the decoder's self-attention (a language model has no other) also in evaluation "
            "and search"
        },
    )


@dataclass
class DmaLossOptions(FairseqDataclass):
    """Options of the criterion for the losses of semantic masks."""

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
        default=1,
        metadata={"help": "compute L_Dqq in every N-th update only, with N times the weight"},
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


def semantic_masks(model: nn.Module) -> dict[str, SemanticMask]:
    """Return the masks by the name of their attention module, such as encoder.layers.0.self_attn."""
    return {
        name.removesuffix(".mask"): module
        for name, module in model.named_modules()
        if isinstance(module, SemanticMask)
    }


@contextmanager
def measuring(model: nn.Module, wanted: LossSettings) -> Iterator[dict[str, Tensor]]:
    """Around a forward pass in training: afterwards the dictionary has the losses that are `wanted`, [B]
    each.

    They are means over the modules that took part: LayerDrop may leave some out. No module keeps a graph,
    also after an exception.
    """
    masks, losses = semantic_masks(model).values(), {}
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

    Mutual information is at least 0, but its estimate by Eq. 6 is not: minimised without a floor it goes to
    -18 and below, by heads whose tokens are never in the same clusters, until it is most of the objective. On
    Multi30k (4+4 layers, 738 updates) validation perplexity was 16.9 without a floor, 14.5 with the floor of
    0, 14.8 without L_Dqq. Hence the default; `qq` is logged as Eq. 6 has it.

    Raises:
        UsageError: a weight that is negative or not finite, or options that would be ignored.
    """

    options = DmaLossOptions
    signs = {"kl": 1, "qq": 1, "xq": -1}
    left_out_by = "--kl-weight 0 --qq-weight 0 --xq-weight 0"

    def __init__(self, cfg):
        self.asked_for = _check_loss_options(cfg)
        given = {"kl": cfg.kl_weight, "qq": cfg.qq_weight, "xq": cfg.xq_weight}
        self.full_weights = {
            name: DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in given.items()
        }
        self.warmup_updates = cfg.aux_warmup_updates
        self.qq_interval = cfg.qq_interval
        self.how = {
            "densities": str(cfg.qq_densities),
            "pairs": cfg.qq_pairs,
            "floor": cfg.qq_floor,
            "critic": str(cfg.xq_critic),
        }

    @staticmethod
    def concerns(model: nn.Module) -> bool:
        return bool(semantic_masks(model))

    def weights(self, num_updates: int | None) -> dict[str, float]:
        """Return the weights at an update; outside fairseq's training, where nothing counts updates, the
        full ones.
        """
        if num_updates is None:
            return self.full_weights
        warm = min(1.0, (num_updates + 1) / max(self.warmup_updates, 1))
        weights = {name: warm * weight for name, weight in self.full_weights.items()}
        weights["qq"] *= 0 if num_updates % self.qq_interval else self.qq_interval
        return weights

    @contextmanager
    def measuring(self, model: nn.Module, weights: dict[str, float]) -> Iterator[dict[str, Tensor]]:
        wanted = LossSettings(**{name: weight > 0 for name, weight in weights.items()}, **self.how)
        with measuring(model, wanted) as losses:
            yield losses

    def without_gradient(self, model: nn.Module, weights: dict[str, float]) -> list[nn.Parameter]:
        """Without KL nothing gives a gradient to clusters that are not used otherwise."""
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
                    f"{option} has no effect with --dma-clusters 1, where nothing tells queries apart; leave "
                    "it out"
                )
            if option.startswith("--qq") and heads == 1:
                raise UsageError(
                    f"{option} has no effect with 1 attention head, as L_Dqq is between heads; leave it out"
                )
        if self.how["pairs"] >= pairs > 0:
            raise UsageError(
                f"--qq-pairs {self.how['pairs']} has no effect, as {heads} heads have {pairs} pairs; leave "
                "it out for all of them"
            )


def _check_loss_options(cfg) -> list[str]:
    """Refuse impossible and ineffective values; return the options that were set, but for weights of 0."""
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
    """Raise UsageError for options of masks that cannot work or would be ignored."""
    options = choice.options
    if options.dma_clusters < 1:
        raise UsageError(
            f"--dma-clusters must be at least 1 (which is plain attention), not {options.dma_clusters}"
        )
    if not 1e-3 <= options.dma_centroid_gradient <= 1e3:  # it is multiplied in half precision, too
        raise UsageError(
            f"--dma-centroid-gradient must be positive, 0.001 to 1000, not {options.dma_centroid_gradient}"
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
            f"{options.attention_type}, where source and target words are in the same clusters"
        )
    if options.adaptive_softmax_cutoff is not None:
        raise UsageError(
            f"--adaptive-softmax-cutoff does not work with --attention-type {options.attention_type}, whose "
            "losses --criterion modular_cross_entropy adds, and adaptive_loss does not; leave one of them out"
        )


def short_training(options, epochs: int, warmup_updates: int) -> list[str]:
    """Return the option that lets the losses reach full weight when the learning rate does.

    A user who sets weights or the warm-up decides alone.
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
def build_mask(options, place: Place) -> SemanticMask:
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


def clusters(number: int, centroid_gradient: float = 10.0) -> dict:
    return {"attention_type": "dma", "dma_clusters": number, "dma_centroid_gradient": centroid_gradient}


# Section 4.1: 4 clusters, except in the IWSLT base model; c_grad 10, except for Chinese. Widths are not in
# the paper, but give its parameter counts (with 43,690 joint types for WMT14); for Chinese they do not: its
# sizes are those of IWSLT.
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
