"""Named architectures (--arch). An arch sets the defaults of some options, which the command line may change.

This file has the sizes, and the plain Transformers of these sizes: "Attention Is All You Need" (Vaswani et
al. 2017) in fairseq's sizes, "Adaptive Input Representations" (Baevski and Auli) for `_wiki103`, and BERT
(Devlin et al. 2019) in the sizes that two of the papers compare with. The archs of a mechanism are in the
file of the mechanism.
"""

from argparse import Namespace
from typing import Any

from fairseq.models import register_model_architecture

from modular_fairseq.models import language_model, roberta, translation  # noqa: F401  (archs need these models to be registered)
from modular_fairseq.models.options import PRESETS


def size(embed_dim: int, ffn_embed_dim: int, heads: int, layers: int = 6) -> dict[str, Any]:
    """Return the sizes of a Transformer whose encoder and decoder have equally many heads and layers.

    The widths of the decoder are not set, so they follow the widths of the encoder.
    """
    both = {"attention_heads": heads, "layers": layers}
    stacks = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in both.items()}
    return {"encoder_embed_dim": embed_dim, "encoder_ffn_embed_dim": ffn_embed_dim, **stacks}


IWSLT_DE_EN = size(512, 1024, heads=4)
WMT_EN_DE = size(512, 2048, heads=8)
TINY_CPU = size(128, 256, heads=8, layers=2)

PRE_NORM: dict[str, Any] = {
    "decoder_normalize_before": True
}  # fairseq: "Model training is not stable without this"
WIKI103 = {
    **PRE_NORM,
    "decoder_layers": 16,
    "decoder_embed_dim": 1024,
    "decoder_ffn_embed_dim": 4096,
    "dropout": 0.3,
    "attention_dropout": 0.1,
    "activation_dropout": 0.1,
    "adaptive_input": True,
    "adaptive_input_factor": 4,
    "adaptive_input_cutoff": "20000,60000",
    "adaptive_softmax_cutoff": "20000,60000",
    "adaptive_softmax_dropout": 0.2,
    "adaptive_softmax_factor": 4,
    "tie_adaptive_weights": True,
    "tie_adaptive_proj": True,
    "no_decoder_final_norm": True,
}
TINY_CPU_LM = {
    **PRE_NORM,
    "decoder_embed_dim": 128,
    "decoder_ffn_embed_dim": 256,
    "decoder_layers": 2,
}
# minGPT's model of pictures, in the size of the TIM paper (A.1). minGPT neither scales its embeddings nor
# drops out.
PIXELS = {
    **PRE_NORM,
    "decoder_embed_dim": 184,
    "decoder_ffn_embed_dim": 736,
    "decoder_attention_heads": 8,
    "decoder_layers": 6,
    "decoder_learned_pos": True,
    "no_scale_embedding": True,
    "activation_fn": "gelu",
    "dropout": 0.0,
}


def encoder_size(embed_dim: int, ffn_embed_dim: int, heads: int, layers: int = 12) -> dict[str, Any]:
    """Return the sizes of a Transformer that is only an encoder."""
    both = size(embed_dim, ffn_embed_dim, heads, layers)
    return {name: value for name, value in both.items() if name.startswith("encoder_")}


TINY_CPU_ROBERTA = encoder_size(128, 256, heads=8, layers=2)

# For each wide arch, the plain arch with about as many parameters. Benchmarks compare the two.
PEERS: dict[str, str] = {}


def register(arch: str, *rows: dict, model: str = "modular_transformer", peer: str | None = None) -> None:
    """Register an `--arch` that sets the defaults in `rows`; a later row overrides an earlier one.

    Args:
        arch: name of the arch.
        rows: defaults of options.
        model: name of the model family, under which fairseq knows the model.
        peer: the plain arch with about as many parameters, if this arch is wider than the plain arch of its
            size.
    """
    defaults = {name: value for row in rows for name, value in row.items()}

    def set_defaults(args: Namespace) -> None:
        for name, value in defaults.items():
            setattr(args, name, getattr(args, name, value))

    PRESETS[arch] = defaults
    if peer is not None:
        PEERS[arch] = peer
    register_model_architecture(model, arch)(set_defaults)


def register_all(
    archs: dict[str, list[dict]], model: str = "modular_transformer", peers: dict[str, str] | None = None
) -> None:
    """Register several archs of a model family, with their rows and their peers (see `register`)."""
    for arch, rows in archs.items():
        register(arch, *rows, model=model, peer=(peers or {}).get(arch))


TRANSLATION = {
    "modular_transformer_iwslt_de_en": [IWSLT_DE_EN],
    "modular_transformer_wmt_en_de": [WMT_EN_DE],
    "modular_transformer_tiny_cpu": [TINY_CPU],
}
register_all(TRANSLATION)
LANGUAGE_MODELS = {
    "modular_transformer_lm_wiki103": [WIKI103],
    "modular_transformer_lm_tiny_cpu": [TINY_CPU_LM],
    "modular_transformer_lm_pixels": [PIXELS],
}
register_all(LANGUAGE_MODELS, "modular_transformer_lm")
MASKED_LANGUAGE_MODELS = {
    "modular_roberta_130m": [encoder_size(768, 4096, heads=12)],  # BERT-130M of the TIM paper
    # The ensemble paper does not give widths; these are the base model's.
    "modular_roberta_4_layers": [encoder_size(768, 3072, heads=8, layers=4)],
    "modular_roberta_tiny_cpu": [TINY_CPU_ROBERTA],
}
register_all(MASKED_LANGUAGE_MODELS, "modular_roberta")
