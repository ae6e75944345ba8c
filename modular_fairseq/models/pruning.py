"""Load some layers of a checkpoint: --encoder-layers-to-keep and --decoder-layers-to-keep.

fairseq drops all layers of a stack whose option is not given if the other one is
(fairseq/checkpoint_utils.py:746-839). It then forgets the options, and saves a checkpoint with the former
number of layers among its options, which nothing can load. Here each stack is pruned by its own option, and
the options stay. A checkpoint that has as many layers as are kept is taken for one that was pruned before.
"""

import re
from typing import Any

from torch import Tensor

from modular_fairseq_cli.errors import UsageError

STACKS = ("encoder", "decoder")


def layers_to_keep(text: str, stack: str) -> list[int]:
    """Return the numbers of the layers that an option keeps, in growing order.

    Args:
        text: the value of the option, such as "0,2".
        stack: "encoder" or "decoder".

    Raises:
        UsageError: the text is not a list of different numbers.
    """
    parts = [part.strip() for part in text.split(",")]
    numbers = sorted(int(part) for part in parts if part.isdecimal())
    if len(numbers) < len(parts) or len(set(numbers)) < len(numbers):
        raise UsageError(
            f"--{stack}-layers-to-keep {text}: give different numbers of layers, from 0, with commas between "
            "them, such as 0,2"
        )
    return numbers


def pruned(state_dict: dict[str, Tensor], model_cfg: Any) -> dict[str, Tensor]:
    """Return a state dict with the layers that the options of a model keep, numbered from 0.

    Args:
        state_dict: parameters and buffers of a checkpoint.
        model_cfg: the options, or None.

    Raises:
        UsageError: the checkpoint does not have one of the layers.
    """
    for stack in STACKS:
        if text := getattr(model_cfg, f"{stack}_layers_to_keep", None):
            state_dict = _of_layers(state_dict, stack, layers_to_keep(text, stack), text)
    return state_dict


def _of_layers(state_dict: dict[str, Tensor], stack: str, kept: list[int], text: str) -> dict[str, Tensor]:
    """Return a state dict with some layers of one stack, numbered from 0."""
    layer = re.compile(rf"({stack}\.(?:.*?\.)?layers\.)(\d+)(\..*)")
    found = {key: match for key in state_dict if (match := layer.fullmatch(key))}
    present = {int(match[2]) for match in found.values()}
    if len(present) == len(kept):
        return state_dict
    if missing := [number for number in kept if number not in present]:
        raise UsageError(
            f"--{stack}-layers-to-keep {text}: the {stack} of the checkpoint has no layer {missing[0]}; its "
            f"layers are 0 to {max(present, default=-1)}"
        )
    chosen = {}
    for key, value in state_dict.items():
        match = found.get(key)
        if match is None:
            chosen[key] = value
        elif int(match[2]) in kept:
            chosen[f"{match[1]}{kept.index(int(match[2]))}{match[3]}"] = value
    return chosen
