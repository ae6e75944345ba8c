"""Build small models, tasks and batches for the tests."""

import re
from argparse import Namespace
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.models.transformer import TransformerModelBase

import modular_fairseq  # noqa: F401
from modular_fairseq.analysis import ANALYSES
from modular_fairseq.models.options import FAMILIES, nested_config
from modular_fairseq.models.translation import ModularTransformer

SMALL = {
    "encoder_embed_dim": 32,
    "encoder_ffn_embed_dim": 48,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "dropout": 0.0,
}
OF_TEXT = [name for name in ANALYSES if name != "pictures"]  # the analyses for data that are no pictures
HEADS = {"encoder_attention_heads": 4, "decoder_attention_heads": 4}


def dictionary(size: int = 40) -> Dictionary:
    """Return a dictionary of `size` words, w0, w1, ..., beside fairseq's 4 special symbols."""
    words = Dictionary()
    for i in range(size):
        words.add_symbol(f"w{i}")
    return words


def task(size: int = 40) -> SimpleNamespace:
    """Return the parts of a translation task that a model reads: one dictionary for both languages."""
    words = dictionary(size)
    return SimpleNamespace(source_dictionary=words, target_dictionary=words)


def options(arch: str = "modular_transformer", **changes):
    """Return the options of an arch as the command line fills them, in a small size by default."""
    args = Namespace(**{**SMALL, **HEADS, **changes})
    ARCH_CONFIG_REGISTRY[arch](args)
    return FAMILIES["modular_transformer"](**vars(args))


def build(arch: str = "modular_transformer", seed: int = 1, **changes) -> ModularTransformer:
    """Build a small model of an arch with the options in `changes`."""
    torch.manual_seed(seed)
    return ModularTransformer.build_model(options(arch, **changes), task())


def build_preset(arch: str, vocabulary: tuple[int, int], **changes) -> ModularTransformer:
    """Build an arch in its full size on the meta device, which needs no memory.

    Args:
        vocabulary: numbers of source and target types, special symbols included. If both are equal, both
            languages share one dictionary.
    """
    args = Namespace(**changes)
    ARCH_CONFIG_REGISTRY[arch](args)
    source, target = (dictionary(types - 4) for types in vocabulary)
    target = source if vocabulary[0] == vocabulary[1] else target
    with torch.device("meta"):
        return ModularTransformer.build_model(
            FAMILIES["modular_transformer"](**vars(args)),
            SimpleNamespace(source_dictionary=source, target_dictionary=target),
        )


def build_stock(seed: int = 1, **changes) -> TransformerModelBase:
    """Build fairseq's own Transformer with the same options."""
    torch.manual_seed(seed)
    return TransformerModelBase.build_model(nested_config(options(**changes)), task())


# The parameters of a plain Transformer, by parts of their names.
OF_TRANSFORMER = re.compile(
    r"(^|\.)((q|k|v|out)_proj|fc[12]|\w*layer_?norm\w*|embed_tokens|embed_positions|output_projection)\."
)


def randomize_parts(model: torch.nn.Module, seed: int = 2) -> None:
    """Move what a model has beside a plain Transformer far from neutral.

    This concerns clusters, gate networks with their running statistics, and all other parameters that a plain
    Transformer does not have.
    """
    generator = torch.Generator().manual_seed(seed)
    parameters = dict(model.named_parameters())
    for name, t in [*parameters.items(), *model.named_buffers()]:
        added = name in parameters and ".gate_network." not in name
        if not re.search(r"\.(gate|mask)\.", name):
            added = added and not OF_TRANSFORMER.search(name)
        if (added or ".mask." in name) and not name.endswith(("centroid_scale", "input_divisor")):
            t.data.add_(0.3 * torch.randn(t.shape, generator=generator).to(t.dtype))
        if ".gate_network." in name and t.is_floating_point():
            noise = torch.randn(t.shape, generator=generator).to(t.dtype)
            t.data.copy_(noise.abs() + 0.5 if "running_var" in name else t.data + 0.7 * noise)


def batch(lengths: list[tuple[int, int]], seed: int = 0, pad: int = 1, eos: int = 2, types: int = 44) -> dict:
    """Return a batch of sentence pairs in fairseq's format, with random words.

    Sources are padded on the left and targets on the right, as fairseq does it.

    Args:
        lengths: (source, target) lengths of each pair, </s> included.
        types: number of types, special symbols included.
    """
    generator = torch.Generator().manual_seed(seed)
    source = torch.full((len(lengths), max(s for s, _ in lengths)), pad)
    target = torch.full((len(lengths), max(t for _, t in lengths)), pad)
    previous = target.clone()
    for i, (s, t) in enumerate(lengths):
        source[i, source.size(1) - s :] = torch.cat(
            [torch.randint(4, types, (s - 1,), generator=generator), torch.tensor([eos])]
        )
        words = torch.randint(4, types, (t - 1,), generator=generator)
        target[i, :t] = torch.cat([words, torch.tensor([eos])])
        previous[i, :t] = torch.cat([torch.tensor([eos]), words])
    return {
        "id": torch.arange(len(lengths)),
        "nsentences": len(lengths),
        "ntokens": sum(t for _, t in lengths),
        "net_input": {
            "src_tokens": source,
            "src_lengths": torch.tensor([s for s, _ in lengths]),
            "prev_output_tokens": previous,
        },
        "target": target,
    }


LENGTHS = [(7, 5), (3, 8), (1, 1), (6, 2), (9, 7)]
