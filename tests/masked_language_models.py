"""Build small masked language models for the tests."""

from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.roberta import RobertaModel

import modular_fairseq  # noqa: F401
from modular_fairseq.models.options import FAMILIES
from modular_fairseq.models.roberta import ModularRoberta
from tests.helpers import dictionary

SMALL = {
    "encoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 48,
    "encoder_attention_heads": 4,
    "encoder_layers": 2,
}
BOS, PAD, EOS, UNK = range(4)


def task(types=40, positions=16):
    """Return the parts of a task that a model reads: a dictionary of `types` words and <mask>."""
    words = dictionary(types)
    words.add_symbol("<mask>")
    return SimpleNamespace(source_dictionary=words, target_dictionary=words, max_positions=lambda: positions)


def build(arch="modular_roberta", seed=1, types=40, positions=16, **changes):
    """Build a small masked language model of an arch."""
    torch.manual_seed(seed)
    args = Namespace(**{**SMALL, **changes})
    ARCH_CONFIG_REGISTRY[arch](args)
    return ModularRoberta.build_model(FAMILIES["modular_roberta"](**vars(args)), task(types, positions))


def build_preset(arch, types):
    """Build an arch in its full size for a dictionary of `types` types, on the meta device."""
    args = Namespace()
    ARCH_CONFIG_REGISTRY[arch](args)
    with torch.device("meta"):  # 4 special symbols and <mask>
        return ModularRoberta.build_model(FAMILIES["modular_roberta"](**vars(args)), task(types - 5, 512))


def build_stock(seed=1, types=40, positions=16, **changes):
    """Build fairseq's own RoBERTa."""
    torch.manual_seed(seed)
    args = Namespace(**{**SMALL, "max_positions": positions, **changes})
    return RobertaModel.build_model(args, task(types, positions))
