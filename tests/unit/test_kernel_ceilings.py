"""Test that no model launches more kernels than it needs: each kind of work has a ceiling.

On a GPU launches take most of the time of models of this size, and one more operation in each layer costs 12
to 36 of them. A change that needs more kernels for a good reason raises the ceiling. The numbers belong to
one version of torch. `modular-fairseq bench --kernels` shows what they consist of.
"""

import argparse

import pytest
import torch

from modular_fairseq.benchmark import command as benchmark
from modular_fairseq.benchmark import jobs
from modular_fairseq.benchmark.comparison import F_STEP, G_STEP, TRAINING
from modular_fairseq.benchmark.counts import A_STEP, STOCK_NAME, count_kernels
from modular_fairseq.benchmark.kernels import BACKWARD, FORWARD, UPDATE
from modular_fairseq.benchmark.tasks import KINDS
from modular_fairseq.models import layers

pytestmark = [
    pytest.mark.cpu_only("the ceilings count the operations that torch calls on a CPU"),
    pytest.mark.skipif(not torch.__version__.startswith("2.13."), reason="the ceilings belong to torch 2.13"),
]

MASK_ONLY = "--kl-weight 0 --qq-weight 0 --xq-weight 0"
PLAIN, TIM = "modular_transformer_iwslt_de_en", "tim_transformer_iwslt_de_en"
STREAMS = "multistream_transformer_iwslt_de_en --stream-skip"
PREFIX, DMA = "mae_transformer_iwslt_de_en", "dma_transformer_iwslt_de_en"
PLAIN_LM, MAE_LM = "modular_transformer_lm", "mae_transformer_lm"
SOURCE = f"{PREFIX} --mae-gate-context source"
# (arch and options, work): kernels of the forward pass, of the backward pass and of the update, and waits for
# the device; or, of a step of a search, all kernels, and waits if there are any.
CEILINGS: dict[tuple[str, str], tuple[int, ...]] = {
    (PLAIN, TRAINING): (407, 368, 42, 13),
    (PLAIN, A_STEP): (114,),
    (f"{PLAIN} --fp16", TRAINING): (408, 371, 47, 16),
    (f"{PLAIN} --fp16", A_STEP): (115,),
    (f"{PLAIN} --bf16", TRAINING): (408, 369, 45, 13),
    (f"{PLAIN} --bf16", A_STEP): (114,),
    (f"{PLAIN} --amp", TRAINING): (578, 571, 55, 16),
    (f"{PLAIN} --amp", A_STEP): (114,),
    (STREAMS, TRAINING): (414, 371, 42, 13),
    (STREAMS, A_STEP): (114,),
    (PREFIX, F_STEP): (903, 386, 98, 13),
    (PREFIX, G_STEP): (867, 711, 40, 12),
    (PREFIX, A_STEP): (222,),
    (SOURCE, F_STEP): (880, 386, 86, 13),
    (SOURCE, G_STEP): (844, 702, 40, 12),
    (SOURCE, A_STEP): (126,),
    (f"{PREFIX} --mae-training joint", TRAINING): (867, 884, 106, 16),
    (f"{PREFIX} --mae-training joint", A_STEP): (222,),
    (f"{PREFIX} --mae-gate-norm batch", F_STEP): (957, 386, 98, 13),
    (f"{PREFIX} --mae-gate-norm batch", G_STEP): (921, 984, 40, 12),
    (f"{PREFIX} --mae-gate-norm batch", A_STEP): (222,),
    (TIM, TRAINING): (608, 806, 42, 13),
    (TIM, A_STEP): (195,),
    (f"{DMA} {MASK_ONLY}", TRAINING): (753, 968, 42, 13),
    (f"{DMA} {MASK_ONLY}", A_STEP): (174,),
    (DMA, TRAINING): (1272, 1225, 69, 16),
    (DMA, A_STEP): (174,),
    (PLAIN_LM, TRAINING): (169, 143, 42, 9),
    (PLAIN_LM, A_STEP): (123, 15),
    (MAE_LM, F_STEP): (342, 149, 87, 9),
    (MAE_LM, G_STEP): (330, 252, 40, 8),
    (MAE_LM, A_STEP): (239, 15),
    (f"{MAE_LM} --fp16", F_STEP): (355, 152, 92, 12),
    (f"{MAE_LM} --fp16", G_STEP): (349, 264, 76, 8),
    (f"{MAE_LM} --fp16", A_STEP): (258, 15),
}

# Masked language models, without attention dropout as the models above. (With it, torch computes attention
# on a CPU by 10 more kernels in each layer.)
CEILINGS |= {
    (f"{arch} --attention-dropout 0", work): ceiling
    for (arch, work), ceiling in {
        ("modular_roberta", TRAINING): (304, 272, 64, 20),
        ("multistream_roberta", TRAINING): (306, 274, 64, 20),
        ("tim_roberta", TRAINING): (583, 866, 64, 20),
        ("mae_roberta", F_STEP): (621, 284, 108, 20),
        ("mae_roberta", G_STEP): (597, 483, 42, 11),
        ("dma_roberta", TRAINING): (703, 715, 112, 35),
    }.items()
}
KIND_OF = {"_lm": "language_modeling", "_roberta": "masked_lm"}  # by the ends of the names of archs


def counted(model: str):
    parser = argparse.ArgumentParser()
    benchmark.add_arguments(parser)
    arch = model.split()[0]
    kind = next((kind for end, kind in KIND_OF.items() if arch.endswith(end)), "translation")
    words = ["--task", kind, "--kernels", "--target-types", "88"]
    args = parser.parse_args([*words, *(["--source-types", "99"] if kind == "translation" else [])])
    benchmark.complete_arguments(args)
    task = jobs.random_task(args.source_types, args.target_types, kind)
    stacks = [stack.partition(".")[0] for stack in KINDS[kind].stacks]
    widths = "".join(f" --{stack}-embed-dim 48 --{stack}-ffn-embed-dim 48" for stack in stacks)
    return count_kernels(model, benchmark.parse_model(model + widths, task, args), task, args)


@pytest.mark.parametrize("model", dict.fromkeys(model for model, _ in CEILINGS))
def test_no_model_launches_more_kernels_than_its_ceiling(model):
    rows = [row for row in counted(model) if row.model != STOCK_NAME]
    assert {row.work for row in rows} == {work for name, work in CEILINGS if name == model}
    for row in rows:
        if row.work == A_STEP:
            ceiling, waits = (*CEILINGS[model, A_STEP], 0)[:2]
            assert row.count.total() <= ceiling and row.count.total_waits() <= waits
            continue
        forward, backward, update, waits = CEILINGS[model, row.work]
        assert row.count.total(FORWARD) <= forward
        assert row.count.total(BACKWARD) <= backward
        assert row.count.total(UPDATE) <= update
        assert row.count.total_waits() <= waits


@pytest.mark.parametrize("mechanism", ["modular", "tim", "mae", "dma", "multistream"])
def test_a_layer_of_a_masked_model_has_the_kernels_of_an_encoder_layer_of_a_translation_model(mechanism):
    def of_six_layers(model: str) -> list[int]:
        long, short = (counted(f"{model} --encoder-layers {number}") for number in (12, 6))
        return [
            row.count.total(phase) - other.count.total(phase)
            for row, other in zip(long, short, strict=True)
            if row.work in (TRAINING, F_STEP, G_STEP) and row.model != STOCK_NAME
            for phase in (FORWARD, BACKWARD)
        ]

    masked = of_six_layers(f"{mechanism}_roberta --attention-dropout 0")
    translation = of_six_layers(f"{mechanism}_transformer_iwslt_de_en")
    assert masked
    assert all(ours <= 1.2 * theirs for ours, theirs in zip(masked, translation, strict=True)), (
        masked,
        translation,
    )


def test_one_more_operation_in_each_layer_is_noticed(monkeypatch):
    """This is what the ceilings are for."""
    feed_forward = layers._Layer._feed_forward
    monkeypatch.setattr(layers._Layer, "_feed_forward", lambda layer, x: feed_forward(layer, x * 1.0))
    with pytest.raises(AssertionError, match="assert .* (<=|==) "):
        test_no_model_launches_more_kernels_than_its_ceiling(PLAIN)
