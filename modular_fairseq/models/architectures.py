"""The papers' architectures as rows of defaults: an arch sets what it lists, the command line changes the
rest.

| arch                      | paper                                                                                                    |
|---------------------------|----------------------------------------------------------------------------------------------------------|
| modular_transformer*      | "Attention Is All You Need", the sizes of fairseq's presets                                              |
| mae_transformer*          | MAE-7, "A Mixture of h - 1 Heads is Better than h Heads"; MAE-6: --mae-dropped-heads 2                   |
| dma_transformer*          | "Bayesian Transformer Using Disentangled Mask Attention" (train with --criterion modular_cross_entropy)  |
| multistream_transformer*  | "Multi-Stream Transformers": k(l) are k streams of l layers; with skip: --stream-skip                    |
| tim_transformer*          | "Transformers with Competitive Ensembles of Independent Mechanisms", 2 mechanisms, or 4 where it says so |
| modular_transformer_lm*   | "Adaptive Input Representations" (Baevski and Auli) for _wiki103                                         |
| mae_transformer_lm*       | MAE-7 as a language model                                                                                |
"""

from fairseq.models import register_model_architecture

from modular_fairseq.models import language_model, translation  # noqa: F401  (an arch names a registered model)
from modular_fairseq.models.options import PRESETS


def size(embed_dim: int, ffn_embed_dim: int, heads: int, layers: int = 6) -> dict:
    """The same for encoder and decoder, whose widths follow."""
    both = {"attention_heads": heads, "layers": layers}
    stacks = {f"{stack}_{name}": value for stack in ("encoder", "decoder") for name, value in both.items()}
    return {"encoder_embed_dim": embed_dim, "encoder_ffn_embed_dim": ffn_embed_dim, **stacks}


def streams(k: int, layers: int) -> dict:
    """k(l) in the paper's notation; the decoder keeps its depth."""
    return {"streams": k, "encoder_layers": 2 + k * layers}


def mechanisms(n: int, layers: str = "middle") -> dict:
    return {"tim_layers": layers, "tim_mechanisms": n}


IWSLT_DE_EN, WMT_EN_DE, TINY_CPU = (
    size(512, 1024, heads=4),
    size(512, 2048, heads=8),
    size(128, 256, heads=8, layers=2),
)
MAE = {"attention_type": "mae"}


def clusters(number: int, centroid_gradient: float = 10.0) -> dict:
    return {"attention_type": "dma", "dma_clusters": number, "dma_centroid_gradient": centroid_gradient}


# MAE mixes 8 experts everywhere, so it has 8 heads where fairseq's IWSLT preset has 4; the parameter count is
# the same.
EIGHT_HEADS = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}

TRANSLATION = {
    "modular_transformer_iwslt_de_en": [IWSLT_DE_EN],
    "modular_transformer_wmt_en_de": [WMT_EN_DE],
    "modular_transformer_tiny_cpu": [TINY_CPU],
    "mae_transformer": [MAE],
    "mae_transformer_iwslt_de_en": [IWSLT_DE_EN, MAE, EIGHT_HEADS],
    "mae_transformer_wmt_en_de": [WMT_EN_DE, MAE],
    "mae_transformer_tiny_cpu": [TINY_CPU, MAE],
    # Section 4.1: 4 clusters, except in the IWSLT base model; c_grad 10, except for Chinese. Widths are not
    # in the paper, but give its parameter counts (with 43,690 joint types for WMT14); for Chinese they do
    # not: its sizes are those of IWSLT.
    "dma_transformer": [clusters(4)],
    "dma_transformer_iwslt_de_en": [IWSLT_DE_EN, clusters(8)],
    "dma_transformer_iwslt_de_en_small": [size(384, 1024, heads=4), clusters(4)],
    "dma_transformer_iwslt_de_en_tiny": [size(256, 512, heads=4), clusters(4)],
    "dma_transformer_wmt_en_de": [WMT_EN_DE, clusters(4)],
    "dma_transformer_wmt_en_de_small": [size(384, 2048, heads=8), clusters(4)],
    "dma_transformer_wmt_zh_en": [IWSLT_DE_EN, clusters(4, centroid_gradient=5.0)],
    "dma_transformer_tiny_cpu": [TINY_CPU, clusters(4)],
    "multistream_transformer": [streams(2, 2)],
    "multistream_transformer_iwslt_de_en": [IWSLT_DE_EN, streams(2, 2)],
    "multistream_transformer_wmt_en_de": [WMT_EN_DE, streams(2, 2)],
    "multistream_transformer_tiny_cpu": [TINY_CPU, streams(2, 1)],
    "multistream_transformer_2x1": [size(128, 512, heads=8, layers=4), streams(2, 1)],
    "multistream_transformer_2x2": [size(512, 2048, heads=8), streams(2, 2)],
    "multistream_transformer_4x1": [size(512, 2048, heads=8), streams(4, 1)],
    # Wider than the plain Transformer, so that they have as many parameters (`PEERS`).
    "tim_transformer": [size(576, 2304, heads=8), mechanisms(2)],
    "tim_transformer_iwslt_de_en": [size(576, 1152, heads=6), mechanisms(2)],
    "tim_transformer_iwslt_de_en_4": [size(640, 1088, heads=8), mechanisms(4)],
    "tim_transformer_wmt_en_de": [size(576, 2304, heads=8), mechanisms(2)],
    "tim_transformer_wmt_en_de_4": [size(640, 2048, heads=8), mechanisms(4)],
    "tim_transformer_tiny_cpu": [TINY_CPU, mechanisms(2, layers="all")],  # no middle in 2 layers
}
# The plain arch with about as many parameters as a wider one: what its times are compared with.
PEERS = {
    "tim_transformer": "modular_transformer_wmt_en_de",
    "tim_transformer_iwslt_de_en": "modular_transformer_iwslt_de_en",
    "tim_transformer_iwslt_de_en_4": "modular_transformer_iwslt_de_en",
    "tim_transformer_wmt_en_de": "modular_transformer_wmt_en_de",
    "tim_transformer_wmt_en_de_4": "modular_transformer_wmt_en_de",
}

PRE_NORM = {"decoder_normalize_before": True}  # fairseq: "Model training is not stable without this"
WIKI103 = {
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
TINY_CPU_LM = {"decoder_embed_dim": 128, "decoder_ffn_embed_dim": 256, "decoder_layers": 2}

LANGUAGE_MODELS = {
    "modular_transformer_lm_wiki103": [PRE_NORM, WIKI103],
    "modular_transformer_lm_tiny_cpu": [PRE_NORM, TINY_CPU_LM],
    "mae_transformer_lm": [MAE],
    "mae_transformer_lm_wiki103": [PRE_NORM, WIKI103, MAE],
    "mae_transformer_lm_tiny_cpu": [PRE_NORM, TINY_CPU_LM, MAE],
}


def register(arch: str, *rows: dict, model: str = "modular_transformer") -> None:
    """Make `--arch` of rows of defaults, of which later ones override earlier ones. `model`: its family,
    modular_transformer or modular_transformer_lm."""
    defaults = {name: value for row in rows for name, value in row.items()}

    def set_defaults(args) -> None:
        for name, value in defaults.items():
            setattr(args, name, getattr(args, name, value))

    PRESETS[arch] = defaults
    register_model_architecture(model, arch)(set_defaults)


for _arch, _rows in TRANSLATION.items():
    register(_arch, *_rows)
for _arch, _rows in LANGUAGE_MODELS.items():
    register(_arch, *_rows, model="modular_transformer_lm")
