"""Test that models with frozen weights compute as others do: the same operations and the same numbers.

A checkpoint of --mae-finetune has frozen weights wherever it is loaded. torch may choose another way to
multiply by a matrix that needs no gradient, which is much slower in a decoding step of one position.
"""

from collections import Counter

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from modular_fairseq.modules.grouped import contiguous_rows
from tests import language_models
from tests.helpers import LENGTHS, batch, build, randomize_parts

EVERY_LAYER = {"tim_layers": "all"}
MECHANISMS = [
    {},
    {"share_decoder_input_output_embed": True},
    {"attention_type": "mae"},
    {"attention_type": "mae", "mae_gate_context": "window"},
    {"attention_type": "dma", "dma_decoder_eval_mask": True},
    EVERY_LAYER,
    {**EVERY_LAYER, "tim_mechanisms": 4, "attention_type": "mae+dma", "dma_decoder_eval_mask": True},
]
BEAM, STEPS = 3, 4


class Operations(TorchDispatchMode):
    """Count the operations of aten inside the block, by name."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        self.counts[operation._schema.name] += 1
        return operation(*args, **(kwargs or {}))


def name(changes):
    return ",".join(f"{key}={value}" for key, value in changes.items()) or "plain"


@torch.no_grad()
def decode(model, frozen):
    """Return the scores of each decoding step, and the operations of each step.

    An encoder-decoder model searches as a beam search does; a language model continues as many rows.
    """
    model.eval().requires_grad_(not frozen)
    words = torch.randint(4, 44, (len(LENGTHS) * BEAM, STEPS), generator=torch.Generator().manual_seed(0))
    known = {}
    if hasattr(model, "encoder"):
        source = batch(LENGTHS)["net_input"]
        encoded = model.encoder(source["src_tokens"], source["src_lengths"])
        order = torch.arange(len(LENGTHS)).repeat_interleave(BEAM)
        known = {"encoder_out": model.encoder.reorder_encoder_out(encoded, order)}
    state, scores, counts = {}, [], []
    for length in range(1, STEPS + 1):
        with Operations() as operations:
            scores.append(model.decoder(words[:, :length], incremental_state=state, **known)[0])
        counts.append(operations.counts)
    return scores, counts


def check(model):
    decode(model, False)  # matrices that depend on lengths alone are made once
    (scores, counts), (frozen_scores, frozen_counts) = decode(model, False), decode(model, True)
    assert all(step["aten::mm"] >= 1 for step in counts)  # the output layer
    assert frozen_counts == counts
    for ours, expected in zip(frozen_scores, scores, strict=True):
        assert torch.equal(ours, expected)


@pytest.mark.parametrize("pre_norm", [False, True])
@pytest.mark.parametrize("changes", MECHANISMS, ids=name)
def test_a_frozen_translation_model_decodes_by_the_same_operations(changes, pre_norm):
    model = build(encoder_normalize_before=pre_norm, decoder_normalize_before=pre_norm, **changes)
    randomize_parts(model)
    check(model)


@pytest.mark.parametrize("changes", MECHANISMS, ids=name)
def test_a_frozen_language_model_decodes_by_the_same_operations(changes):
    model = language_models.build("modular_transformer_lm", **changes)
    randomize_parts(model)
    check(model)


@pytest.mark.parametrize("length", [1, 3])
def test_contiguous_rows_have_the_strides_of_their_shape(length):
    """At one position `contiguous` would keep the strides of the transposed tensor."""
    x = torch.randn(length, 5, 8)
    y = contiguous_rows(x.transpose(0, 1))
    assert torch.equal(y, x.transpose(0, 1))
    assert y.stride() == (8 * length, 8, 1)
    assert (y.data_ptr() == x.data_ptr()) == (length == 1)  # a copy only where one is needed
