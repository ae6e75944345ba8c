"""fairseq's Transformer options, flat, because its own `TransformerConfig` nests encoder and decoder in a way
that its command line cannot fill in.

(`Optional[int]`, because fairseq's parser does not know `int | None`.)
"""
# ruff: noqa: UP007, UP045

from argparse import Namespace
from collections.abc import Set
from dataclasses import Field, field, fields, make_dataclass
from typing import Optional

from fairseq.dataclass import FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import DecoderConfig, EncDecBaseConfig, QuantNoiseConfig
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

# fairseq's options that do not apply: other kernels, other layers, other checkpointing, TorchScript, and
# names kept for old checkpoints.
_LEFT_OUT = {
    "base_layers",
    "base_shuffle",
    "base_sublayers",
    "char_inputs",
    "cross_self_attention",
    "decoder_xformers_att_config",
    "encoder_xformers_att_config",
    "export",
    "no_cross_attention",
    "offload_activations",
    "relu_dropout",
    "scale_attn",
    "scale_fc",
    "scale_heads",
    "scale_resids",
}
# Not set: as in fairseq's own Transformer presets, the decoder follows the encoder, and its ends follow the
# decoder.
_FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}
_NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}


def _flat(config: type, left_out: Set[str] = frozenset()) -> type:
    """The dataclass of fairseq's options in `config`, nested parts flat (encoder.layers is encoder_layers),
    without those left out.
    """
    parts = [
        (f"{outer.name}_{part.name}" if outer.name in _NESTED else part.name, part)
        for outer in fields(config)
        for part in (fields(_NESTED[outer.name]) if outer.name in _NESTED else [outer])
        if not outer.name.startswith("_")
    ]
    names = {name for name, _ in parts}
    flat = []
    for name, part in parts:
        if name in _LEFT_OUT or name in left_out:
            continue
        kind, default, metadata = part.type, part.default, dict(part.metadata)
        if _FOLLOWS.get(name) in names:
            kind, default = Optional[int], None
            metadata["help"] = (
                metadata.get("help", name.replace("_", " "))
                + f" (default: {_FOLLOWS[name].replace('_', ' ')})"
            )
        elif name.endswith("layers_to_keep"):
            kind = Optional[str]  # fairseq declares a list and reads "0,2,4"
        flat.append((name, kind, field(default=default, metadata=metadata)))
    return make_dataclass(
        f"Flat{config.__name__}", flat, bases=(FairseqDataclass,), namespace={"__module__": __name__}
    )


FlatTransformerConfig = _flat(TransformerConfig, left_out={"adaptive_input"})
FlatTransformerLanguageModelConfig = _flat(TransformerLanguageModelConfig)


def resolved(options, family: type) -> Namespace:
    """Return the options of a family; a width that was not given is that of the option it follows."""
    flat = {f.name: value_of(options, f) for f in fields(family) if not f.name.startswith("_")}
    for name, source in _FOLLOWS.items():
        if flat[name] is None:
            flat[name] = flat[source]
    return Namespace(**flat)


def value_of(options, f: Field):
    """An option; its default where `options` comes from a checkpoint that is older than the option."""
    return getattr(options, f.name, f.default)
