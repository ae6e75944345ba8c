"""The papers' architectures as rows of defaults: an arch sets what it lists, the command line changes the rest.

| arch                              | paper                                                                                   |
|-----------------------------------|-----------------------------------------------------------------------------------------|
| modular_transformer*              | "Attention Is All You Need", the sizes of fairseq's presets                             |
| mae_transformer*                  | MAE-7, "A Mixture of h - 1 Heads is Better than h Heads"; MAE-6: --mae-dropped-heads 2  |
| modular_transformer_lm*           | "Adaptive Input Representations" (Baevski and Auli) for _wiki103                        |
| mae_transformer_lm*               | MAE-7 as a language model                                                               |
"""

from fairseq.models import register_model_architecture

from modular_fairseq.models import language_model, translation  # noqa: F401  (an arch names a registered model)
from modular_fairseq.models.options import PRESETS

IWSLT_DE_EN = {
    "encoder_ffn_embed_dim": 1024,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
}
WMT_EN_DE = {}
TINY_CPU = {
    "encoder_embed_dim": 128,
    "encoder_ffn_embed_dim": 256,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 8,
    "decoder_attention_heads": 8,
}
# MAE mixes 8 experts everywhere, so it has 8 heads where fairseq's IWSLT preset has 4; the parameter count is the same.
EIGHT_HEADS = {"encoder_attention_heads": 8, "decoder_attention_heads": 8}
MAE = {"attention_type": "mae"}


def size(embed_dim: int, ffn_embed_dim: int, heads: int, layers: int = 6) -> dict:
    stacks = {f"{stack}_attention_heads": heads for stack in ("encoder", "decoder")} | {
        f"{stack}_layers": layers for stack in ("encoder", "decoder")
    }
    return {"encoder_embed_dim": embed_dim, "encoder_ffn_embed_dim": ffn_embed_dim, **stacks}


def streams(k: int, layers: int) -> dict:
    """k(l) in the paper's notation; the decoder keeps its depth."""
    return {"streams": k, "encoder_layers": 2 + k * layers}


def mechanisms(n: int, layers: str = "middle") -> dict:
    return {"tim_layers": layers, "tim_mechanisms": n}


FOUR_LAYERS, SIX_LAYERS = size(128, 512, heads=8, layers=4), size(512, 2048, heads=8)
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


def _register(model: str, arch: str, *rows: dict) -> None:
    defaults = {name: value for row in rows for name, value in row.items()}

    def set_defaults(args) -> None:
        for name, value in defaults.items():
            setattr(args, name, getattr(args, name, value))

    PRESETS[arch] = defaults
    register_model_architecture(model, arch)(set_defaults)


for _suffix, _size in (("_iwslt_de_en", IWSLT_DE_EN), ("_wmt_en_de", WMT_EN_DE), ("_tiny_cpu", TINY_CPU)):
    _register("modular_transformer", f"modular_transformer{_suffix}", _size)
    _register("modular_transformer", f"mae_transformer{_suffix}", _size, MAE, EIGHT_HEADS)
for _suffix, _size in (("", WMT_EN_DE), ("_iwslt_de_en", IWSLT_DE_EN), ("_wmt_en_de", WMT_EN_DE)):
    _register("modular_transformer", f"multistream_transformer{_suffix}", _size, streams(2, 2))
_register("modular_transformer", "multistream_transformer_2x1", FOUR_LAYERS, streams(2, 1))
_register("modular_transformer", "multistream_transformer_2x2", SIX_LAYERS, streams(2, 2))
_register("modular_transformer", "multistream_transformer_4x1", SIX_LAYERS, streams(4, 1))
_register("modular_transformer", "multistream_transformer_tiny_cpu", TINY_CPU, streams(2, 1))
for _suffix in ("", "_wmt_en_de"):
    _register("modular_transformer", f"tim_transformer{_suffix}", size(576, 2304, heads=8), mechanisms(2))
_register("modular_transformer", "tim_transformer_wmt_en_de_4", size(640, 2048, heads=8), mechanisms(4))
_register("modular_transformer", "tim_transformer_iwslt_de_en", size(576, 1152, heads=6), mechanisms(2))
_register("modular_transformer", "tim_transformer_iwslt_de_en_4", size(640, 1088, heads=8), mechanisms(4))
_register("modular_transformer", "tim_transformer_tiny_cpu", TINY_CPU, mechanisms(2, layers="all"))
# Archs that are wider than a plain one so as to have about as many parameters, with that plain one: what times are compared with.
PEERS = {
    "tim_transformer": "modular_transformer_wmt_en_de",
    "tim_transformer_wmt_en_de": "modular_transformer_wmt_en_de",
    "tim_transformer_wmt_en_de_4": "modular_transformer_wmt_en_de",
    "tim_transformer_iwslt_de_en": "modular_transformer_iwslt_de_en",
    "tim_transformer_iwslt_de_en_4": "modular_transformer_iwslt_de_en",
}
_register("modular_transformer", "mae_transformer", MAE)
for _suffix, _size in (("_wiki103", WIKI103), ("_tiny_cpu", TINY_CPU_LM)):
    _register("modular_transformer_lm", f"modular_transformer_lm{_suffix}", PRE_NORM, _size)
    _register("modular_transformer_lm", f"mae_transformer_lm{_suffix}", PRE_NORM, _size, MAE)
_register("modular_transformer_lm", "mae_transformer_lm", MAE)
