"""fairseq-train is killed at any moment and started again."""

import signal

import pytest

from tests.fairseq_commands import (
    OPTIMIZE,
    QUIET,
    TINY,
    differing_weights,
    going_on,
    run_train,
    start,
)
from tests.processes import wait_for

pytestmark = pytest.mark.usefixtures("real_commands")


def test_killing_training_at_any_moment_and_starting_it_again(reversal_data, tmp_path):
    """The end is that of a run that was never killed, bit for bit."""
    args = [reversal_data, *TINY, *OPTIMIZE, *QUIET, "--arch", "mae_transformer", "--mae-gate-interval", 2]
    run_train(reversal_data, *args[1:], "--max-epoch", 8, "--save-dir", tmp_path / "whole", common=())
    for epoch in (2, 5):
        process = start("train", *args, "--max-epoch", 8, "--save-dir", tmp_path / "killed")
        wait_for((tmp_path / f"killed/checkpoint{epoch}.pt").exists, process)
        process.send_signal(signal.SIGKILL)
        out, err = process.communicate()
        assert process.returncode == -signal.SIGKILL, err
        assert not (tmp_path / "killed/checkpoint8.pt").exists()
    with going_on(tmp_path / "killed", after_kill=True):
        run_train(reversal_data, *args[1:], "--max-epoch", 8, "--save-dir", tmp_path / "killed", common=())
    whole, killed = (tmp_path / folder / "checkpoint_last.pt" for folder in ("whole", "killed"))
    assert differing_weights(whole, killed) == []
