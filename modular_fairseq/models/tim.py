"""Independent mechanisms: "Transformers with Competitive Ensembles of Independent Mechanisms".

The paper is by Lamb et al. (2021). The maths is in `modules/independent_mechanisms.py` and
`modules/grouped.py`.
"""

import functools
from dataclasses import dataclass, field, replace
from typing import Any

from fairseq.dataclass import ChoiceEnum, FairseqDataclass

from modular_fairseq.models.architectures import (
    PIXELS,
    TINY_CPU,
    TINY_CPU_ROBERTA,
    encoder_size,
    register_all,
    size,
)
from modular_fairseq.models.assembly import build_arrangement
from modular_fairseq.models.checks import Choice
from modular_fairseq.models.fairseq_options import Options
from modular_fairseq.models.options import are_of_a_command_line
from modular_fairseq.models.registry import LayerParts, LayerPlace, register_layer
from modular_fairseq.modules.independent_mechanisms import Competition, InterMechanismAttention
from modular_fairseq_cli.errors import UsageError

# A single mechanism had these parameters in version 0.1. They had no effect, as they only entered softmaxes
# over one number.
WITHOUT_EFFECT = tuple(
    f"{module}.{name}"
    for module in ("competition.linear", "communication.q_proj", "communication.k_proj")
    for name in ("weight", "bias")
)

# fairseq's parser reads the choices of an option from its type, which must be made at run time.
Layers: Any = ChoiceEnum(["none", "middle", "all"])


@dataclass
class TimOptions(FairseqDataclass):
    """The options of layers of independent mechanisms."""

    tim_layers: Layers = field(
        default="none",
        metadata={
            "help": "layers of encoder and decoder that consist of independent mechanisms (TIM layers): "
            "none, middle (all but the first two and the last) or all (default: none)"
        },
    )
    tim_mechanisms: int = field(
        default=2,
        metadata={
            "help": "number of mechanisms of a TIM layer; it must divide the width, the feed-forward "
            "width and the number of heads of encoder and decoder; a single mechanism does not compete "
            "(default: 2)"
        },
    )
    tim_no_competition: bool = field(
        default=False,
        metadata={
            "help": "leave out the competition of a TIM layer (NoComp), so that no softmax over "
            "mechanisms weighs their updates after the self-attention"
        },
    )
    tim_communication_heads: int = field(
        default=2,
        metadata={
            "help": "number of heads of the attention between the mechanisms of a position; 0: mechanisms "
            "do not communicate (default: 2)"
        },
    )
    tim_communication_dim: int = field(
        default=32,
        metadata={
            "help": "width of each head of the attention between mechanisms; only with "
            "--tim-communication-heads 1 or more (default: 32)"
        },
    )


def is_tim_layer(placement: str, number: int, depth: int) -> bool:
    """Tell whether a layer is a TIM layer.

    `middle` means "all of the transformer layers except for the first two layers and the last layer"
    (appendix A.3). Appendix A.1 says the opposite, against everything else in the paper.

    Args:
        placement: value of --tim-layers.
        number: place of the layer on a word's way, from 0.
        depth: number of layers that a word passes.
    """
    return placement == "all" or (placement == "middle" and 2 <= number < depth - 1)


def check(choice: Choice) -> None:
    """Raise UsageError for options of TIM layers that cannot work or would have no effect."""
    options = choice.options
    if options.tim_communication_heads < 0:
        raise UsageError(
            f"--tim-communication-heads must be at least 0 (none), not {options.tim_communication_heads}"
        )
    if options.tim_communication_heads == 0:
        choice.refuse(["tim_communication_dim"], "with --tim-communication-heads 0")
    elif options.tim_communication_dim < 1:
        raise UsageError(f"--tim-communication-dim must be at least 1, not {options.tim_communication_dim}")
    if options.tim_mechanisms == 1 and are_of_a_command_line():  # checkpoints of 0.1 may have both
        choice.refuse(["tim_no_competition"], "with --tim-mechanisms 1, which has no competition")
    for stack in choice.stacks:
        for each in ("embed_dim", "ffn_embed_dim", "attention_heads"):
            choice.check_multiple(f"{stack}_{each}", "tim_mechanisms")
        _check_depth(choice, stack)
        if f"{stack}_layers_to_keep" in choice.changed:
            raise UsageError(
                f"--{stack}-layers-to-keep renumbers layers, so that plain layers would become TIM layers; "
                "leave it out with --tim-layers"
            )
    choice.refuse_quantisation("--tim-layers")


def _check_depth(choice: Choice, stack: str) -> None:
    """Raise UsageError if --tim-layers middle would make no TIM layer in `stack`."""
    layers = depth = getattr(choice.options, f"{stack}_layers")
    way, enough = "", 4
    if stack == "encoder":
        arrangement = build_arrangement(choice.options)
        depth, enough = arrangement.depth(layers), arrangement.layers_for(4)
        if depth != layers:
            way = f" with {arrangement.option} (a word passes {depth} layers)"
    if choice.options.tim_layers == "middle" and depth < 4:
        raise UsageError(
            f"--tim-layers middle leaves the first two layers and the last one plain, so --{stack}-layers "
            f"{layers}{way} has no TIM layer: use at least {enough} layers, or --tim-layers all"
        )


@register_layer(
    "tim",
    options=TimOptions,
    is_used=lambda options: options.tim_layers != "none",
    needs="--tim-layers middle or all",
    check=check,
    benched=("tim_transformer_iwslt_de_en", "tim_roberta"),
)
def build_mechanisms(options: Options, place: LayerPlace) -> LayerParts:
    """Build the parts of a TIM layer: groups of features, competition and communication (Algorithm 1).

    For decoders the paper only says that its layer is a drop-in replacement. Here mechanism m of a decoder
    layer attends to slice m of the encoder output. Mechanisms therefore mix only in the inter-mechanism
    attention, which follows the cross-attention. The competition weighs the update "after the self-attention"
    (section 2.2.1), not the update of the cross-attention.
    """
    if not is_tim_layer(options.tim_layers, place.number, place.depth):
        return LayerParts()
    n, heads, dim = options.tim_mechanisms, options.tim_communication_heads, options.tim_communication_dim
    parts = LayerParts(groups=n) if n > 1 else LayerParts(obsolete=WITHOUT_EFFECT)
    if n > 1 and not options.tim_no_competition:
        parts = replace(parts, competition=functools.partial(Competition, n, place.embed_dim))
    if heads:
        build_communication = functools.partial(
            InterMechanismAttention, n, place.embed_dim, heads, dim, options.attention_dropout
        )
        parts = replace(parts, communication=build_communication)
    return parts


def mechanisms(n: int, layers: str = "middle") -> dict[str, Any]:
    """Return the options of n mechanisms in each TIM layer."""
    return {"tim_layers": layers, "tim_mechanisms": n}


# These archs are wider than the plain Transformer, so that they have about as many parameters as their peer.
IWSLT, WMT = "modular_transformer_iwslt_de_en", "modular_transformer_wmt_en_de"
ARCHS = {
    "tim_transformer": [size(576, 2304, heads=8), mechanisms(2)],
    "tim_transformer_iwslt_de_en": [size(576, 1152, heads=6), mechanisms(2)],
    "tim_transformer_iwslt_de_en_4": [size(640, 1088, heads=8), mechanisms(4)],
    "tim_transformer_wmt_en_de": [size(576, 2304, heads=8), mechanisms(2)],
    "tim_transformer_wmt_en_de_4": [size(640, 2048, heads=8), mechanisms(4)],
    "tim_transformer_tiny_cpu": [TINY_CPU, mechanisms(2, layers="all")],  # 2 layers have no middle
}
PEERS = {
    "tim_transformer": WMT,
    "tim_transformer_iwslt_de_en": IWSLT,
    "tim_transformer_iwslt_de_en_4": IWSLT,
    "tim_transformer_wmt_en_de": WMT,
    "tim_transformer_wmt_en_de_4": WMT,
}
register_all(ARCHS, peers=PEERS)
# Models of pictures (A.1), which have about as many parameters as the plain one of width 184.
WIDE_PIXELS = {"decoder_embed_dim": 200, "decoder_ffn_embed_dim": 800, "decoder_attention_heads": 10}
LANGUAGE_MODELS = {
    "tim_transformer_lm_pixels": [PIXELS, WIDE_PIXELS, mechanisms(2)],
    "tim_transformer_lm_pixels_nocomp": [PIXELS, WIDE_PIXELS, mechanisms(2), {"tim_no_competition": True}],
}
register_all(
    LANGUAGE_MODELS, "modular_transformer_lm", dict.fromkeys(LANGUAGE_MODELS, "modular_transformer_lm_pixels")
)
# Table 2. The text has lost the widths. These give its parameter counts (with 32,678 types): 132.0M (130M)
# for 9 of 12 layers, and 113.9M (110M) for 12 of 12, which the table has without competition.
TIM_BERT = encoder_size(1024, 4096, heads=16)
MASKED_LANGUAGE_MODELS = {
    "tim_roberta": [TIM_BERT, mechanisms(2)],
    "tim_roberta_nocomp": [TIM_BERT, mechanisms(2), {"tim_no_competition": True}],
    "tim_roberta_all": [TIM_BERT, mechanisms(2, layers="all"), {"tim_no_competition": True}],
    "tim_roberta_tiny_cpu": [TINY_CPU_ROBERTA, mechanisms(2, layers="all")],
}
PEERS_OF_MASKED = {
    "tim_roberta": "modular_roberta_130m",
    "tim_roberta_nocomp": "modular_roberta_130m",
    "tim_roberta_all": "modular_roberta",
}
register_all(MASKED_LANGUAGE_MODELS, "modular_roberta", PEERS_OF_MASKED)
