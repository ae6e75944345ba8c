"""Write a plain Transformer in the format of CTranslate2 (https://opennmt.net/CTranslate2)."""

from typing import Any

import torch
from ctranslate2.converters import fairseq as converter
from ctranslate2.converters.converter import Converter
from ctranslate2.specs import common_spec, transformer_spec
from fairseq.data import Dictionary
from fairseq.modules import MultiheadAttention as FairseqAttention
from fairseq.tasks.translation import TranslationTask
from torch import nn

from modular_fairseq.modules.attention import MultiheadAttention
from modular_fairseq_cli.errors import UsageError

ACTIVATIONS = {
    "relu": common_spec.Activation.RELU,
    "gelu": common_spec.Activation.GELU,
    "gelu_accurate": common_spec.Activation.GELUTanh,
    "gelu_fast": common_spec.Activation.GELUTanh,
}


def save(model: Any, task: TranslationTask, folder: str, quantization: str) -> None:
    """Write a model that `fixed_heads.plain` returned.

    Args:
        model: the model.
        task: its task, which has the dictionaries.
        folder: a folder that does not exist.
        quantization: the type of the weights, as CTranslate2 names it: "float32", "int8" and so on.

    Raises:
        UsageError: CTranslate2 does not have the activation function of the model.
    """
    _ToCTranslate2(model, task).convert(folder, quantization=quantization)


class _ToCTranslate2(Converter):
    def __init__(self, model: Any, task: TranslationTask):
        self._model, self._task = model, task

    def _load(self) -> transformer_spec.TransformerSpec:
        model, cfg = self._model, self._model.cfg
        activation = getattr(cfg, "activation_fn", "relu")
        if activation not in ACTIVATIONS:
            raise UsageError(
                f"the model cannot be exported: CTranslate2 has no activation function {activation}, only "
                f"{', '.join(ACTIVATIONS)}"
            )
        encoder, decoder = model.encoder, model.decoder
        common = {"activation": ACTIVATIONS[activation]}
        spec = transformer_spec.TransformerSpec(
            transformer_spec.TransformerEncoderSpec(
                len(encoder.layers), _heads(encoder), **common, **_norms(encoder), head_dim=_head_dim(encoder)
            ),
            transformer_spec.TransformerDecoderSpec(
                len(decoder.layers),
                _heads(decoder),
                **common,
                **_norms(decoder),
                head_dim=_head_dim(decoder),
                project_in_out=decoder.project_in_dim is not None,
            ),
        )
        with torch.no_grad():
            converter.set_transformer_encoder(spec.encoder, encoder)
            converter.set_transformer_decoder(spec.decoder, decoder)
        spec.register_source_vocabulary(_vocabulary(self._task.src_dict))
        spec.register_target_vocabulary(_vocabulary(self._task.tgt_dict))
        spec.config.decoder_start_token = spec.config.eos_token
        spec.config.add_source_eos = True
        return spec


def _attention(stack: nn.Module) -> list[Any]:
    """Return the attention modules of an encoder or decoder, of this package or of fairseq."""
    return [
        module for module in stack.modules() if isinstance(module, (MultiheadAttention, FairseqAttention))
    ]


def _heads(stack: nn.Module) -> int:
    (heads,) = {module.num_heads for module in _attention(stack)}
    return heads


def _head_dim(stack: nn.Module) -> int:
    (head_dim,) = {module.head_dim for module in _attention(stack)}
    return head_dim


def _norms(stack: Any) -> dict[str, bool]:
    return {
        "pre_norm": stack.layers[0].normalize_before,
        "no_final_norm": stack.layer_norm is None,
        "layernorm_embedding": stack.layernorm_embedding is not None,
    }


def _vocabulary(dictionary: Dictionary) -> list[str]:
    """Return the types of a dictionary, with CTranslate2's name for padding."""
    return ["<blank>" if word == dictionary.pad_word else word for word in dictionary.symbols]
