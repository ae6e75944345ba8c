"""`modular-fairseq ablate` is killed or interrupted, and continued."""

import json
import math
import os
import subprocess
import sys

import pytest

from modular_fairseq_cli.processes import call
from tests.ablations import (
    BASE,
    TWO,
    TWO_YAML,
    ablation,
    result,
    settle,
    words,
)
from tests.fairseq_commands import differing_weights, going_on, run_train
from tests.places import ROOT
from tests.processes import PATIENCE, wait_for

pytestmark = pytest.mark.usefixtures("real_commands")


def test_ctrl_c_stops_the_command_too(tmp_path):
    pids = []

    def interrupt(line):
        pids.append(int(line))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        call(
            [sys.executable, "-u", "-c", "import os, time; print(os.getpid()); time.sleep(6000)"],
            str(tmp_path / "log"),
            interrupt,
        )
    with pytest.raises(ProcessLookupError):
        os.kill(pids[0], 0)


def test_an_ablation_that_is_killed_and_started_again(reversal_data, tmp_path):
    """With fairseq itself: a run that has ended is not run again, and the killed one ends as if it had not
    been killed, bit for bit.
    """
    out = tmp_path / "out"
    two = ablation(out, TWO, data=reversal_data)
    settle(two, {(): result(50.0, 60.0)})
    (tmp_path / "two.yaml").write_text(TWO_YAML)
    command = [sys.executable, "-m", "modular_fairseq_cli", "ablate"]
    given = [str(reversal_data), "--out", str(out), "--mechanisms", str(tmp_path / "two.yaml"), "--", *BASE]
    pipes = {
        "cwd": ROOT,
        "env": {**os.environ, "OMP_NUM_THREADS": "1"},
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
    }
    killed, shown, first = out / "hidden_dropout-seed1", tmp_path / "stderr", "epoch 1, update 4: validation"
    with shown.open("w") as file:
        process = subprocess.Popen([*command, *given], **{**pipes, "stderr": file})
    # The command shows a line of the training up to 0.1 seconds after it was written.
    wait_for(lambda: (killed / "checkpoint2.pt").exists() and first in shown.read_text(), process)
    process.kill()
    process.communicate()
    err = shown.read_text()
    assert not (killed / "checkpoint10.pt").exists(), err
    assert "[2 of 4] hidden_dropout-seed1" in err and f"{first} perplexity" in err

    with going_on(killed, after_kill=True):
        again = subprocess.run([*command, "--out", str(out)], **pipes, timeout=PATIENCE)
    assert again.returncode == 0, again.stderr
    assert again.stdout == (out / "table.txt").read_text()
    assert "baseline 50.00 60.00 1.00" in words(again.stdout) and "full transformer" in again.stdout
    for name in ("hidden_dropout-seed1", "multihead-seed1", "hidden_dropout+multihead-seed1"):
        found = json.loads((out / name / "result.json").read_text())
        lines = [line.split(" | ") for line in (out / name / "train.log").read_text().splitlines()]
        logged = [json.loads(line[-1]) for line in lines if line[2:3] in (["valid"], ["train"])]
        assert found["valid"] == min(float(stats["valid_ppl"]) for stats in logged if "valid_ppl" in stats)
        assert found["train"] == float(logged[-1]["train_ppl"]) and found["updates"] == 40
        assert math.isfinite(found["test"]) and found["test"] != found["valid"] and not found["diverged"]

    ((_, run),) = two.trials(("hidden dropout",))
    run_train(*run.train_command[1:], "--save-dir", tmp_path / "whole", common=())
    assert differing_weights(killed / "checkpoint_last.pt", tmp_path / "whole/checkpoint_last.pt") == []
