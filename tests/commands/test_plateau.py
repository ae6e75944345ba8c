"""Test that --lr-scheduler reduce_lr_on_plateau continues as an uninterrupted training."""

from contextlib import nullcontext

import pytest
import torch

from tests.fairseq_commands import differing_weights, going_on, run_train

# No loss is a tenth of the best one, so all epochs are bad: the learning rate falls after every second one.
PLATEAU = ["--lr-scheduler", "reduce_lr_on_plateau", "--lr-shrink", 0.5, "--lr-threshold", 0.9]


@pytest.mark.parametrize("optimizer", ["adam", "torch_adam"])
@pytest.mark.parametrize("warmup", [0, 3])
def test_a_training_that_is_stopped_after_each_epoch_equals_another(
    reversal_data, tmp_path, optimizer, warmup
):
    options = ["--arch", "modular_transformer", *PLATEAU, "--lr-patience", 1, "--optimizer", optimizer]
    options += ["--warmup-updates", warmup, "--log-format", "json"]
    whole, resumed = tmp_path / "whole", tmp_path / "resumed"
    run_train(reversal_data, *options, "--max-epoch", 7, "--save-dir", whole)
    rates = []
    for epochs in range(1, 8):
        with going_on(resumed) if rates else nullcontext():
            run_train(reversal_data, *options, "--max-epoch", epochs, "--save-dir", resumed)
        state = torch.load(resumed / "checkpoint_last.pt", weights_only=False)
        rates.append(state["last_optimizer_state"]["param_groups"][0]["lr"])
    assert rates[0] > rates[-1] and len(set(rates)) == 3
    assert differing_weights(resumed / "checkpoint_last.pt", whole / "checkpoint_last.pt") == []
