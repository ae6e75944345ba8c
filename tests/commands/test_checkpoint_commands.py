"""Test that hostile checkpoints are refused before their code runs, and that several processes can read one
checkpoint.
"""

import json
import os
import pickle
import subprocess
import sys
from argparse import Namespace

import numpy as np
import pytest
import torch

from tests.hostile_checkpoints import FORMATS, Pickled, checkpoint, refusal
from tests.places import ROOT
from tests.processes import PATIENCE

# ---- hostile files ----


@FORMATS
@pytest.mark.parametrize("where", ["option", "metric", "array"])
@pytest.mark.parametrize("attack", ["system", "eval", "Popen"])
def test_a_payload_is_refused_before_it_runs(tmp_path, attack, where, zipped):
    marker, path = tmp_path / "marker", tmp_path / "hostile.pt"
    payload = {
        "system": Pickled(os.system, (f"touch {marker}",)),
        "eval": Pickled(eval, (f"open({str(marker)!r}, 'w')",)),
        "Popen": Pickled(subprocess.Popen, (["touch", str(marker)],)),
    }[attack]
    state = {
        "option": checkpoint(args=Namespace(lr=[Namespace(value=payload)])),
        "metric": checkpoint(extra_state={"val_loss": payload}),
        "array": checkpoint(extra_state={"val_loss": np.array([payload], dtype=object)}),
    }[where]
    torch.save(state, path, _use_new_zipfile_serialization=zipped)

    sentence = refusal(path)
    if where == "array":
        assert "something other than numbers" in sentence
    else:
        assert f"the Python object {attack}" in sentence or f".{attack}, which" in sentence
    assert not marker.exists()

    made = pickle.loads(pickle.dumps(payload))  # the payload would run
    if attack == "Popen":
        made.wait()
    assert marker.exists()


# ---- fairseq's own commands ----


def test_fairseq_generate_refuses_a_hostile_checkpoint_by_one_sentence(tmp_path, reversal_data):
    marker, path = tmp_path / "marker", tmp_path / "hostile.pt"
    torch.save(checkpoint(args=Namespace(x=Pickled(os.system, (f"touch {marker}",)))), path)
    command = [
        sys.executable,
        "-m",
        "fairseq_cli.generate",
        str(reversal_data),
        "--user-dir",
        "modular_fairseq",
        "--path",
        str(path),
    ]
    done = subprocess.run([*command, "--cpu"], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"modular_fairseq: error: {path} is refused")
    assert (
        "posix.system" in done.stderr and "Traceback" not in done.stderr and "weights_only" not in done.stderr
    )
    assert not marker.exists()


# ---- what several processes send each other when training resumes ----


BROADCAST = """
import datetime, json, sys
import modular_fairseq
import torch
from fairseq import checkpoint_utils
from fairseq.distributed import utils
rank, meeting, path = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group(
    "gloo", init_method=f"file://{meeting}", rank=rank, world_size=2,
    timeout=datetime.timedelta(seconds=600)
)
state = checkpoint_utils.load_checkpoint_to_cpu(path) if rank == 0 else None
cpu = torch.device("cpu")
state = utils.broadcast_object(state, src_rank=0, group=utils.get_global_group(), dist_device=cpu)
cfg, model, extra = state["cfg"], state["model"], state["extra_state"]
print(json.dumps([type(cfg).__name__, cfg.model.arch, list(cfg.optimization.lr), model["weight"].tolist(),
                  model["steps"].item(), extra["sum"].tolist(), float(extra["best"])]))
"""


def test_two_processes_share_a_checkpoint(tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save(checkpoint(extra_state={"sum": np.array([5, 2]), "best": np.float64(1.5)}), path)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", BROADCAST, str(rank), str(tmp_path / "rendezvous"), str(path)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [process.communicate(timeout=PATIENCE) for process in processes]
    finally:
        for process in processes:
            process.kill()
    expected = ["DictConfig", "some_arch", [0.1, 0.05], [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]], 7, [5, 2], 1.5]
    for process, (out, err) in zip(processes, outputs, strict=True):
        assert process.returncode == 0, err
        assert json.loads(out.splitlines()[-1]) == expected
