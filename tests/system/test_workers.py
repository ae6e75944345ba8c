"""Test that two processes train one model over gloo, are stopped and resume."""

import os
import socket
import subprocess
import sys

import pytest

from tests.fairseq_commands import OPTIMIZE, QUIET, TINY, run_train
from tests.places import ROOT
from tests.watched_trainer import COMBINED, WITH_MASKS

# Through fairseq's commands


WORKER = """
import sys
sys.path.insert(0, {root!r})
import torch
from torch.nn.parallel import DistributedDataParallel as DDP
torch.set_num_threads(1)
plain_init = DDP.__init__
# fairseq names GPU 0 even on a machine without one
def on_cpu(self, module, device_ids=None, output_device=None, **kwargs):
    plain_init(self, module, **kwargs)
DDP.__init__ = on_cpu
import modular_fairseq
from fairseq.trainer import Trainer
from tests.watched_trainer import digest
from fairseq_cli.train import cli_main
step = Trainer.train_step
def train_step(self, samples, raise_oom=False):
    output = step(self, samples, raise_oom)
    model = self.get_model()
    state = digest([*model.parameters(), *(b for b in model.buffers() if b.dim())])
    print("STATE", self.get_num_updates(), state, flush=True)
    return output
Trainer.train_step = train_step
sys.argv[0] = "fairseq-train"
cli_main()
"""


def run_workers(data, save_dir, *args):
    """Train with two processes over gloo, and return what each printed of its model's state after every
    update.
    """
    with socket.socket() as s:
        s.bind(("localhost", 0))
        port = s.getsockname()[1]
    root = str(ROOT)
    workers = []
    for rank in range(2):
        command = [
            sys.executable,
            "-c",
            WORKER.format(root=root),
            str(data),
            *TINY,
            *OPTIMIZE,
            *QUIET,
            *map(str, args),
            "--save-dir",
            str(save_dir),
        ]
        command += [
            "--distributed-world-size",
            "2",
            "--distributed-rank",
            str(rank),
            "--distributed-init-method",
            f"tcp://localhost:{port}",
        ]
        command += ["--distributed-no-spawn", "--distributed-backend", "gloo"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        workers.append(
            subprocess.Popen(
                command,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                env=environment,
                cwd=root,
            )
        )
    try:
        outputs = [worker.communicate(timeout=240)[0] for worker in workers]
    finally:
        for worker in workers:
            worker.kill()
    assert [worker.returncode for worker in workers] == [0, 0], outputs[0][-3000:] + outputs[1][-3000:]
    return [[line for line in output.splitlines() if line.startswith("STATE")] for output in outputs]


@pytest.mark.parametrize(
    ("backend", "update_freq", "finetune", "body"),
    [
        ("legacy_ddp", 2, "all", ""),
        ("c10d", 1, "all", COMBINED),
        ("legacy_ddp", 1, "gates", ""),
        ("c10d", 2, "all", WITH_MASKS),
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
        args += ["--mae-gate-interval", 1]
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
