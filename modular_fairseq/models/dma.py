"""Disentangled mask attention: "Bayesian Transformer Using Disentangled Mask Attention".

The paper is by Chien and Huang (2022). The maths is in `modules/semantic_mask.py`,
`modules/gaussian_mixture.py`, `modules/disentangled_heads.py` and `modules/mutual_information.py`. The
criteria of this package add its losses (`dma_losses.py`).
"""

from dataclasses import dataclass, field
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models import BaseFairseqModel
from torch import nn

from modular_fairseq.models.architectures import (
    IWSLT_DE_EN,
    TINY_CPU,
    TINY_CPU_ROBERTA,
    WMT_EN_DE,
    register_all,
    size,
)
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.dma_losses import DEFAULT_WEIGHTS, DmaLosses, DmaLossOptions, semantic_masks
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.registry import Place, register_attention
from modular_fairseq.modules.gaussian_mixture import (
    CENTROID_MODES,
    POSTERIORS,
    VARIANCES,
    GaussianMixture,
    compute_densities,
)
from modular_fairseq.modules.semantic_mask import SemanticMask
from modular_fairseq_cli.errors import UsageError

# fairseq's parser reads the choices of an option from its type, which must be made at run time.
Posterior: Any = ChoiceEnum(list(POSTERIORS))
CentroidMode: Any = ChoiceEnum(list(CENTROID_MODES))
Variance: Any = ChoiceEnum(list(VARIANCES))


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
    dma_sampled_scores: bool = field(
        default=False,
        metadata={
            "help": "in training, compute the attention scores from the samples of latent vectors and "
            "queries too, as in the paper's expectation; only with --dma-posterior sample"
        },
    )
    dma_variance: Variance = field(
        default="learned",
        metadata={
            "help": "variances of latent vectors: learned (a vector for each head), computed (from the "
            "latent vector, by a trained layer) or fixed (0.01, as in the code that the authors released) "
            "(default: learned)"
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
            ["dma_posterior", "dma_sampled_scores", "dma_decoder_eval_mask"],
            "with --dma-clusters 1, which is plain attention",
        )
    if options.dma_posterior != "sample":
        choice.refuse(["dma_sampled_scores"], "without --dma-posterior sample, as there are no samples")
    if options.dma_centroid_gradient == 1:
        choice.refuse(["dma_centroid_mode"], "with --dma-centroid-gradient 1")
    if "decoder" not in choice.stacks:
        choice.refuse(["dma_decoder_eval_mask"], "in a model without a decoder")
    if choice.stacks == ["encoder", "decoder"] and options.encoder_embed_dim != options.decoder_embed_dim:
        raise UsageError(
            f"--decoder-embed-dim {options.decoder_embed_dim} with --encoder-embed-dim "
            f"{options.encoder_embed_dim}: they must be equal with --attention-type "
            f"{options.attention_type}, which has the same clusters for source and target words"
        )


def short_training(options: Options, epochs: int, warmup_updates: int) -> list[str]:
    """Return the option that lets the losses reach full weight when the learning rate does.

    Nothing is returned if the user has set the warm-up, or if all weights are 0.
    """
    warmup = DmaLossOptions().aux_warmup_updates
    given = {name: getattr(options, f"{name}_weight", None) for name in DmaLosses.signs}
    weights = [DEFAULT_WEIGHTS[name] if weight is None else weight for name, weight in given.items()]
    if getattr(options, "aux_warmup_updates", warmup) != warmup or not any(weights):
        return []
    return ["--aux-warmup-updates", str(warmup_updates)]


def prepare(model: BaseFairseqModel, options: Options) -> None:
    """Let every forward pass in training compute the densities of all masks at once.

    Activation checkpointing computes layers a second time, one by one, and FSDP gathers the parameters of a
    layer only when it runs. There every mask computes its own.
    """
    sharded = any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules())
    if not options.checkpoint_activations and not sharded:
        model.register_forward_pre_hook(_compute_densities)
        model.register_forward_hook(_forget_densities, always_call=True)


def _compute_densities(model: nn.Module, args: Any) -> None:
    if model.training:
        compute_densities(_mixtures_of_tokens(model))


def _forget_densities(model: nn.Module, args: Any, output: Any) -> None:
    if model.training:
        for mixture in _mixtures_of_tokens(model):
            mixture.prepared = None


def _mixtures_of_tokens(model: nn.Module) -> list[GaussianMixture]:
    return [mask.tokens for mask in semantic_masks(model).values()]


@register_attention(
    "dma",
    seam="mask",
    options=DmaOptions,
    summary="disentangled mask attention, a semantic mask in every attention module",
    check=check,
    after_build=prepare,
    losses=DmaLosses,
    must_agree={".centroid_scale": "--dma-centroid-gradient or --dma-centroid-mode changed between them"},
    short_training=short_training,
    benched=(
        "dma_transformer_iwslt_de_en",
        f"dma_transformer_iwslt_de_en {DmaLosses.left_out_by}",
        "dma_roberta",
    ),
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
        options.dma_variance,
        options.dma_sampled_scores,
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
MASKED_LANGUAGE_MODELS = {
    "dma_roberta": [clusters(4)],
    "dma_roberta_tiny_cpu": [TINY_CPU_ROBERTA, clusters(4)],
}
register_all(MASKED_LANGUAGE_MODELS, "modular_roberta")
