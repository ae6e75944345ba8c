"""Build small language models for the tests."""

from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer_lm import TransformerLanguageModel

from modular_fairseq.models.fairseq_options import resolved
from modular_fairseq.models.language_model import ModularTransformerLanguageModel
from modular_fairseq.models.options import FAMILIES
from tests.helpers import dictionary

SMALL = {
    "decoder_embed_dim": 32,
    "decoder_ffn_embed_dim": 48,
    "decoder_attention_heads": 4,
    "decoder_layers": 2,
    "dropout": 0.0,
}

# Options of other parts of fairseq-train that the model reads.
VALUES_OF_OTHER_OPTIONS = {
    "add_bos_token": False,
    "tokens_per_sample": 16,
    "max_target_positions": 16,
    "tpu": False,
}


def lm_options(arch, **changes):
    """Return the options of an arch as the command line fills them, in a small size by default."""
    args = Namespace(**{**SMALL, **VALUES_OF_OTHER_OPTIONS, **changes})
    ARCH_CONFIG_REGISTRY[arch](args)
    return FAMILIES["modular_transformer_lm"](**vars(args))


def task(types=40):
    """Return the parts of a language modelling task that a model reads: one dictionary of `types` words."""
    words = dictionary(types)
    return SimpleNamespace(source_dictionary=words, target_dictionary=words)


def build(arch, model=ModularTransformerLanguageModel, seed=1, types=40, **changes):
    """Build a small language model of an arch, which may also be fairseq's own `TransformerLanguageModel`."""
    torch.manual_seed(seed)
    cfg = lm_options(arch, **changes)
    if model is TransformerLanguageModel:
        cfg = Namespace(
            **vars(resolved(cfg, FAMILIES["modular_transformer_lm"])),
            base_layers=0,
            scale_fc=False,
            scale_attn=False,
            scale_heads=False,
            scale_resids=False,
        )
    return model.build_model(cfg, task(types))
