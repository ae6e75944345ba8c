"""Test the refusal of an arch for the task of another model family."""

import pytest
from fairseq.models import ARCH_MODEL_NAME_REGISTRY
from fairseq.tasks import TASK_REGISTRY

from modular_fairseq.models.options import PRESETS
from modular_fairseq.models.tasks import TASKS, check_task, mechanisms_of
from modular_fairseq_cli.errors import UsageError


@pytest.mark.parametrize(
    ("arch", "task", "said"),
    [
        ("mae_transformer_tiny_cpu", "masked_lm", "give --arch mae_roberta_tiny_cpu for"),
        ("mae_transformer_wmt_en_de", "language_modeling", "give --arch mae_transformer_lm for"),
        ("dma_roberta", "translation", "give --arch dma_transformer for"),
        (
            "dma_transformer_iwslt_de_en",
            "language_modeling",
            "give --arch modular_transformer_lm --attention-type dma --dma-clusters 8 for",
        ),
        (
            "tim_roberta_nocomp",
            "language_modeling",
            "give --arch modular_transformer_lm --tim-layers middle --tim-no-competition for",
        ),
        (
            "tim_transformer_tiny_cpu",
            "language_modeling",
            "give --arch modular_transformer_lm_tiny_cpu --tim-layers all for",
        ),
        ("multistream_transformer", "language_modeling", "give --arch modular_transformer_lm for"),
    ],
)
def test_the_arch_that_is_named_has_the_mechanisms(arch, task, said):
    with pytest.raises(UsageError, match=f"--arch {arch} is a model for --task .*; {said} --task {task}$"):
        check_task(arch, TASK_REGISTRY[task])


@pytest.mark.parametrize("family", TASKS)
def test_every_arch_is_refused_for_the_tasks_of_the_other_families(family):
    archs = [arch for arch in PRESETS if ARCH_MODEL_NAME_REGISTRY[arch] != family]
    assert any(mechanisms_of(arch) for arch in archs)
    for arch in archs:
        for task in TASKS[family]:
            with pytest.raises(UsageError, match=f"^--arch {arch} is a model for"):
                check_task(arch, task)


def test_an_arch_is_accepted_for_the_tasks_of_its_family():
    for arch in PRESETS:
        for task in TASKS[ARCH_MODEL_NAME_REGISTRY[arch]]:
            check_task(arch, task)
