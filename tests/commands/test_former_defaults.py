"""Test that a training does not silently continue with other defaults than it began with."""

import logging

import pytest
import torch

from modular_fairseq.training import former_defaults
from tests.fairseq_commands import run_generate, run_train

OF_MAE = "--mae-gate-norm batch --mae-gate-lr 0.2 --mae-gate-loss sentence"
MAE = "--arch mae_transformer"
DMA = "--arch dma_transformer --criterion modular_cross_entropy"
BOTH = "--arch mae_transformer --attention-type mae+dma --criterion modular_cross_entropy"


@pytest.fixture
def warnings_of(reversal_data, tmp_path, caplog):
    """Train, and return what is said of former defaults."""
    caplog.set_level(logging.WARNING, logger=former_defaults.__name__)

    def train(args, epochs, folder="run"):
        caplog.clear()
        run_train(reversal_data, *args.split(), "--max-epoch", epochs, "--save-dir", tmp_path / folder)
        return [
            each.getMessage().partition("to continue as before, give ")[2]
            for each in caplog.records
            if each.name == former_defaults.__name__
        ]

    return train


@pytest.mark.parametrize(
    ("args", "former"), [(MAE, OF_MAE), (DMA, "--qq-floor 0.0"), (BOTH, f"{OF_MAE} --qq-floor 0.0")]
)
def test_former_defaults_are_named_once_and_continue_the_training(warnings_of, args, former):
    assert warnings_of(f"{args} {former}", 1) == []
    assert warnings_of(f"{args} {former}", 2) == []
    assert warnings_of(args, 3) == [former]
    assert warnings_of(args, 4) == []  # the file has the present defaults now


def test_only_options_that_still_have_the_present_default_are_named(warnings_of):
    warnings_of(f"{MAE} {OF_MAE}", 1)
    said = warnings_of(f"{MAE} --mae-gate-lr 0.3", 2)
    assert said == ["--mae-gate-norm batch --mae-gate-loss sentence"]


def test_a_training_that_began_with_other_values_is_not_named(warnings_of):
    warnings_of(f"{MAE} --mae-gate-lr 0.4 --mae-gate-loss token", 1)
    assert warnings_of(MAE, 2) == []


@pytest.mark.parametrize(
    ("args", "part"),
    [
        (f"{MAE} --mae-gating uniform", "model"),
        ("--arch modular_transformer", "model"),
        (f"{DMA} --qq-weight 0", "criterion"),
        (f"{DMA} --qq-estimator clusters", "criterion"),
        (f"{DMA} --dma-clusters 1", "criterion"),
        ("--arch modular_transformer --criterion modular_cross_entropy", "criterion"),
    ],
)
def test_options_without_effect_are_not_named(warnings_of, tmp_path, args, part):
    """Version 0.1 saved all of its defaults."""
    warnings_of(args, 1)
    path = tmp_path / "run" / "checkpoint_last.pt"
    state = torch.load(path, weights_only=False)
    of_mae = {"mae_gate_norm": "batch", "mae_gate_lr": 0.2, "mae_gate_loss": "sentence"}
    former = {"model": of_mae, "criterion": {"qq_floor": 0.0}}
    assert former[part].keys() <= state["cfg"][part].keys()
    state["cfg"][part].update(former[part])
    torch.save(state, path)
    assert warnings_of(args, 2) == []


def test_of_gates_that_the_main_optimizer_trains_only_the_norm_is_named(warnings_of):
    joint_main = f"{MAE} --mae-training joint_main"
    warnings_of(f"{joint_main} --mae-gate-norm batch", 1)
    assert warnings_of(joint_main, 2) == ["--mae-gate-norm batch"]


def test_fine_tuning_and_inference_are_no_continuation(reversal_data, warnings_of, tmp_path, caplog):
    warnings_of(f"{MAE} {OF_MAE}", 1, "trained")
    path = tmp_path / "trained" / "checkpoint_last.pt"
    assert warnings_of(f"{MAE} --finetune-from-model {path}", 1) == []
    run_generate(reversal_data, path)
    assert former_defaults.__name__ not in {each.name for each in caplog.records}


def test_a_fine_tuning_that_continues_without_its_model_is_told_its_interval(reversal_data, tmp_path, caplog):
    """fairseq needs --finetune-from-model only at the beginning, but an interval depends on it."""
    caplog.set_level(logging.INFO)

    def train(epochs, options="", folder="tuned"):
        caplog.clear()
        args = [*MAE.split(), *options.split(), "--max-epoch", epochs, "--save-dir", tmp_path / folder]
        run_train(reversal_data, *args)
        return "\n".join(each.getMessage() for each in caplog.records)

    train(1, folder="trained")
    start = f"--finetune-from-model {tmp_path}/trained/checkpoint_last.pt"
    assert "the epochs that are a multiple of 1\n" in train(1, start)
    assert "it was 1" not in train(2, start)
    said = train(3)
    assert "it was 1, and is 5 now; to continue as before, give --mae-gate-interval 1\n" in said
    assert "the epochs that are a multiple of 5\n" in said
    assert "it was 1" not in train(5, "--mae-gate-interval 1")
