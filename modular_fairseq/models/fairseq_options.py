"""The options of fairseq's Transformers as flat dataclasses.

fairseq's own `TransformerConfig` nests encoder and decoder in a way that its command line cannot fill in.
"""
# fairseq's parser knows `Optional[int]`, but not `int | None`.
# ruff: noqa: UP007, UP045

from argparse import Namespace
from collections.abc import Set
from dataclasses import Field, dataclass, field, fields, make_dataclass
from typing import Any, Optional, Protocol

from fairseq import utils
from fairseq.dataclass import ChoiceEnum, FairseqDataclass
from fairseq.models.transformer import TransformerConfig
from fairseq.models.transformer.transformer_config import (
    DEFAULT_MIN_PARAMS_TO_WRAP,
    DecoderConfig,
    EncDecBaseConfig,
    QuantNoiseConfig,
)
from fairseq.models.transformer_lm import TransformerLanguageModelConfig

Activation: Any = ChoiceEnum(utils.get_available_activation_fns())


class Options(Protocol):
    """The options of a model or criterion, as attributes.

    They are an argparse namespace, a hydra config, or fairseq's `TransformerConfig` or another dataclass.
    """

    def __getattr__(self, name: str, /) -> Any: ...


# These options of fairseq have no effect here. They choose other kernels, layers or checkpointing, are for
# TorchScript, or are kept for old checkpoints.
_LEFT_OUT = {
    "base_layers",
    "base_shuffle",
    "base_sublayers",
    "char_inputs",
    "cross_self_attention",
    "decoder_xformers_att_config",
    "encoder_xformers_att_config",
    "export",
    "merge_src_tgt_embed",
    "no_cross_attention",
    "offload_activations",
    "relu_dropout",
    "scale_attn",
    "scale_fc",
    "scale_heads",
    "scale_resids",
}
# A width that is not set equals the one named here, as in fairseq's own Transformer presets.
_FOLLOWS = {
    "decoder_embed_dim": "encoder_embed_dim",
    "decoder_ffn_embed_dim": "encoder_ffn_embed_dim",
    "decoder_input_dim": "decoder_embed_dim",
    "decoder_output_dim": "decoder_embed_dim",
}
_NESTED = {"encoder": EncDecBaseConfig, "decoder": DecoderConfig, "quant_noise": QuantNoiseConfig}


def _flat(config: type, left_out: Set[str] = frozenset()) -> type:
    """Return a dataclass of the options in `config`, without those that are left out.

    Nested parts become flat: encoder.layers is encoder_layers.
    """
    parts = [
        (f"{outer.name}_{part.name}" if outer.name in _NESTED else part.name, part)
        for outer in fields(config)
        for part in (fields(_NESTED[outer.name]) if outer.name in _NESTED else [outer])
        if not (outer.name.startswith("_") or part.name.startswith("_"))
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
            kind = Optional[str]  # fairseq declares a list but reads a string, "0,2,4"
        flat.append((name, kind, field(default=default, metadata=metadata)))
    return make_dataclass(
        f"Flat{config.__name__}", flat, bases=(FairseqDataclass,), namespace={"__module__": __name__}
    )


FlatTransformerConfig = _flat(TransformerConfig, left_out={"adaptive_input"})
FlatTransformerLanguageModelConfig = _flat(TransformerLanguageModelConfig)

# fairseq's RoBERTa has these options of an encoder. A value is a default that differs from the Transformer's.
_ROBERTA: dict[str, Any] = {
    "activation_fn": "gelu",
    "dropout": 0.1,
    "attention_dropout": 0.1,
    "activation_dropout": 0.0,
    "encoder_embed_dim": 768,
    "encoder_ffn_embed_dim": 3072,
    "encoder_layers": 12,
    "encoder_attention_heads": 12,
    "encoder_normalize_before": False,
    "encoder_layerdrop": 0.0,
    "encoder_layers_to_keep": None,
    "checkpoint_activations": False,
    "quant_noise_pq": 0.0,
    "quant_noise_pq_block_size": 8,
    "quant_noise_scalar": 0.0,
    "min_params_to_wrap": DEFAULT_MIN_PARAMS_TO_WRAP,
}
# RoBERTa's encoder has these values of options, which users cannot change.
ROBERTA_STRUCTURE = {
    "encoder_learned_pos": True,
    "no_scale_embedding": True,
    "no_token_positional_embeddings": False,
    "adaptive_input": False,
    # fairseq cannot load such heads: the checkpoint has weight_orig where it looks for weight.
    "spectral_norm_classification_head": False,
}


@dataclass
class _RobertaOptions(FairseqDataclass):
    """The options of fairseq's RoBERTa that its Transformer does not have.

    fairseq declares them in `RobertaModel.add_args`. Its options --mha-... and --ffn-... are left out. They
    prune the weights of fairseq's own attention, which this model does not have.
    """

    max_positions: Optional[int] = field(
        default=None,
        metadata={"help": "number of learned positions (default: the longest input of the task)"},
    )
    layernorm_embedding: Optional[bool] = field(
        default=None,
        metadata={
            "help": "normalise the embeddings (default: only without --encoder-normalize-before, as in BERT)"
        },
    )
    pooler_activation_fn: Activation = field(
        default="tanh", metadata={"help": "activation function of classification heads"}
    )
    pooler_dropout: float = field(
        default=0.0, metadata={"help": "dropout probability in classification heads"}
    )
    untie_weights_roberta: bool = field(
        default=False,
        metadata={
            "help": "give the output layer a weight matrix of its own; by default it shares the embeddings"
        },
    )
    load_checkpoint_heads: bool = field(
        default=False, metadata={"help": "make and load the classification heads that a checkpoint has"}
    )


def _with_defaults(config: type, defaults: dict[str, Any], base: type) -> type:
    """Return a dataclass of those options of `config` that `defaults` names, after the options of `base`."""
    own = {f.name: f for f in fields(config)}
    changed = [
        (name, own[name].type, field(default=default, metadata=dict(own[name].metadata)))
        for name, default in defaults.items()
    ]
    return make_dataclass("FlatRobertaConfig", changed, bases=(base,), namespace={"__module__": __name__})


FlatRobertaConfig = _with_defaults(FlatTransformerConfig, _ROBERTA, _RobertaOptions)


def resolved(options: Options, family: type) -> Namespace:
    """Return the options of a model family, with every width set.

    A width that was not given equals the option that it follows. An option that `options` does not have
    gets its default.
    """
    flat = {f.name: value_of(options, f) for f in fields(family) if not f.name.startswith("_")}
    for name, source in _FOLLOWS.items():
        if name in flat and flat[name] is None:
            flat[name] = flat[source]
    return Namespace(**flat)


def value_of(options: Options, f: Field) -> Any:
    """Return an option, or its default if `options` comes from a checkpoint older than the option."""
    return getattr(options, f.name, f.default)
