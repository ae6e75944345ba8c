"""Test that two processes train one model over gloo, are stopped and resume."""

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.tasks import setup_task

from modular_fairseq.training import compilation
from modular_fairseq.training.checkpoints import load_checkpoint
from tests.fairseq_commands import TINY, run_train, train_config, weights
from tests.gloo_workers import Workers
from tests.watched_trainer import COMBINED, WITH_MASKS

# Through fairseq's commands


JOINT = """
    --arch mae_transformer --mae-training joint --mae-gate-norm layer --mae-gate-dropout 0 --dropout 0
    --optimizer sgd --lr 0.5 --mae-gate-lr 1 --max-tokens 1000 --batch-size 24 --max-epoch 1
    --required-batch-size-multiple 1
"""


def run_workers(data, save_dir, *args, **settings):
    """Train with two processes over gloo, and return what each printed of its model's state after every
    update.
    """
    workers = Workers(data, save_dir, *args, **settings)
    assert workers.finish() == [0, 0], "".join(output[-3000:] for output in workers.outputs())
    return workers.states()


@pytest.mark.parametrize(
    ("backend", "update_freq", "finetune", "body"),
    [
        ("legacy_ddp", 2, "all", ""),
        ("c10d", 1, "all", f"{COMBINED} --criterion modular_cross_entropy --loss-chunk-size 16"),
        ("legacy_ddp", 1, "gates", ""),
        ("c10d", 2, "all", WITH_MASKS),
        ("c10d", 1, "all", "--mae-training joint"),
        ("legacy_ddp", 2, "all", "--mae-training joint"),
    ],
    ids=lambda value: str(value),
)
def test_two_workers_stay_the_same_and_resume(reversal_data, tmp_path, backend, update_freq, finetune, body):
    args = [
        "--arch",
        "mae_transformer",
        "--ddp-backend",
        backend,
        "--update-freq",
        update_freq,
        "--mae-finetune",
        finetune,
        *body.split(),
    ]
    if finetune == "all":
        args += [] if "joint" in body else ["--mae-gate-interval", 1]
    else:
        run_train(
            reversal_data, "--arch", "mae_transformer", "--max-epoch", 1, "--save-dir", tmp_path / "trained"
        )
        args += ["--finetune-from-model", tmp_path / "trained" / "checkpoint_last.pt"]
    first, second = run_workers(reversal_data, tmp_path / "workers", *args, "--max-epoch", 2)
    assert first == second and len(first) >= 2 and len(set(first)) == len(first)
    resumed, resumed_too = run_workers(reversal_data, tmp_path / "workers", *args, "--max-epoch", 3)
    assert resumed == resumed_too and resumed
    assert int(resumed[0].split()[1]) == int(first[-1].split()[1]) + 1


@pytest.mark.parametrize(
    "body",
    [
        f"--arch mae_transformer {WITH_MASKS}",
        "--arch dma_transformer --criterion modular_cross_entropy --kl-weight 0 --xq-weight 0",
        "--arch modular_transformer --criterion modular_cross_entropy --label-smoothing 0 "
        "--adaptive-softmax-cutoff 8,12",
        "--arch modular_transformer --criterion modular_cross_entropy --loss-chunk-size 5",
        "--arch modular_transformer --criterion modular_cross_entropy --loss-chunk-size 5 "
        "--share-decoder-input-output-embed",
    ],
)
def test_a_search_for_unused_parameters_changes_nothing(reversal_data, tmp_path, body):
    """The criterion alone uses the mixtures of queries, the adaptive softmax and, in chunks, the output
    layer.
    """
    args = ["--ddp-backend", "c10d", *body.split(), "--max-update", 3]
    found = [
        run_workers(reversal_data, tmp_path / str(len(more)), *args, *more)
        for more in ([], ["--find-unused-parameters"])
    ]
    assert found[0] == found[1] and len(found[0][0]) == 3


@pytest.mark.parametrize("criterion", ["adaptive_loss", "modular_cross_entropy"])
def test_two_workers_stay_the_same_if_one_has_no_rare_words(reversal_data, tmp_path, criterion):
    """The last cut-off leaves one word to its tail, so some batches have no word of it."""
    dictionary = Dictionary.load(str(reversal_data / "dict.en.txt"))
    cutoffs = f"--adaptive-softmax-cutoff 8,{len(dictionary) - 1}"
    args = f"--arch modular_transformer --ddp-backend c10d --batch-size 2 {cutoffs} --criterion {criterion}"
    optimize = ["--optimizer", "adam", "--lr", "5e-3", "--max-tokens", "150", "--max-epoch", "1"]
    first, second = run_workers(reversal_data, tmp_path, *args.split(), common=[*TINY, *optimize])
    assert first == second and len(set(first)) == len(first) > 5


@pytest.mark.skipif(compilation.missing("cpu") is not None, reason=str(compilation.missing("cpu")))
def test_two_workers_with_compiled_layers_stay_the_same(reversal_data, tmp_path):
    args = ["--arch", "modular_transformer", "--dropout", 0, "--ddp-backend", "c10d", "--max-epoch", 1]
    compiled, compiled_too = run_workers(reversal_data, tmp_path / "compiled", *args, "--compile")
    assert compiled == compiled_too and compiled
    run_workers(reversal_data, tmp_path / "plain", *args)
    expected, found = (weights(tmp_path / name / "checkpoint_last.pt") for name in ("plain", "compiled"))
    for name, weight in expected.items():
        if not name.endswith("k_proj.bias"):  # its gradient is 0 but for rounding
            torch.testing.assert_close(found[name], weight, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("backend", "norm"), [("legacy_ddp", "layer"), ("c10d", "lagged"), ("c10d", "batch")]
)
def test_two_workers_train_jointly_as_one_with_twice_the_micro_batches(
    reversal_data, tmp_path, backend, norm
):
    """The data have three batches, one of which is half as long, so the second worker ends the epoch with a
    dummy batch. With --mae-gate-norm batch, BatchNorm normalises by the batch of a worker, as it does by a
    micro-batch.
    """
    args = [*JOINT.split(), "--mae-gate-norm", norm]
    first, _ = run_workers(reversal_data, tmp_path / "two", *args, "--ddp-backend", backend)
    run_train(reversal_data, *args, "--update-freq", 2, "--save-dir", tmp_path / "one")
    task = setup_task(train_config(reversal_data, *args).task)
    task.load_dataset("train")
    batches = task.get_batch_iterator(task.dataset("train"), max_tokens=1000, max_sentences=24)
    assert len(batches) == 3
    two, one = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("two", "one"))
    assert len(first) == one["optimizer_history"][-1]["num_updates"] == 2
    assert one["extra_state"]["train_iterator"]["epoch"] == 2
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, atol=2e-6, rtol=1e-5)


def test_two_workers_have_the_running_statistics_of_one_with_all_their_inputs(reversal_data, tmp_path):
    """One worker has batches of 60 sentences, two have 40 and 20. A gate that normalises by its running
    statistics does not see how the sentences are divided, so everything is equal.
    """
    args = [*JOINT.split(), "--mae-gate-norm", "lagged", "--max-epoch", 4, "--max-tokens", 2000]
    first, _ = run_workers(reversal_data, tmp_path / "two", *args, "--batch-size", 40)
    run_train(reversal_data, *args, "--batch-size", 60, "--save-dir", tmp_path / "one")
    two, one = (load_checkpoint(tmp_path / name / "checkpoint_last.pt") for name in ("two", "one"))
    assert len(first) == one["optimizer_history"][-1]["num_updates"] == 4
    assert any(
        ".norm.running_var" in name and (value - 1).abs().max() > 0.1 for name, value in one["model"].items()
    )
    for name, value in one["model"].items():
        torch.testing.assert_close(two["model"][name], value, atol=5e-6, rtol=1e-4)
