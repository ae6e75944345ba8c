"""Start the workers of one training on this machine's processors; they exchange gradients over gloo."""

import os
import subprocess
import sys
import time

from tests.fairseq_commands import OPTIMIZE, QUIET, TINY
from tests.places import ROOT

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
from modular_fairseq.models.mae import gate_parameters
from fairseq.trainer import Trainer
from tests.watched_trainer import digest
from fairseq_cli.train import cli_main
step = Trainer.train_step
def train_step(self, samples, raise_oom=False):
    output = step(self, samples, raise_oom)
    model = self.get_model()
    assert all(p.grad is None for p in gate_parameters(model))
    if self.get_num_updates() % {every} == 0:
        state = digest([*model.parameters(), *(b for b in model.buffers() if b.dim())])
        print("STATE", self.get_num_updates(), state, flush=True)
    return output
Trainer.train_step = train_step
sys.argv[0] = "fairseq-train"
cli_main()
"""


class Workers:
    """The workers of one training.

    Attributes:
        processes: the process of each rank.
        logs: the file with the output of each rank.
    """

    def __init__(self, data, save_dir, *args, number=2, every=1, common=(*TINY, *OPTIMIZE)):
        """Start the processes.

        Args:
            data: the folder of binarized data.
            save_dir: the folder for checkpoints and logs.
            *args: further options of fairseq-train.
            number: how many workers there are.
            every: after how many updates each worker prints a digest of its model's state.
            common: options before `args`.
        """
        save_dir.mkdir(parents=True, exist_ok=True)
        meeting = save_dir / "rendezvous"
        meeting.unlink(missing_ok=True)  # workers that were killed leave it
        words = [data, *common, *QUIET, *args, "--save-dir", save_dir]
        words += ["--distributed-world-size", number, "--distributed-init-method", f"file://{meeting}"]
        words += ["--distributed-no-spawn", "--distributed-backend", "gloo", "--distributed-rank"]
        program = [sys.executable, "-c", WORKER.format(root=str(ROOT), every=every), *map(str, words)]
        # Preloaded interpreters cannot pass on the open files with which torch's compiler starts workers.
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        self.logs = [save_dir / f"worker{rank}.log" for rank in range(number)]
        self.processes = []
        for rank, log in enumerate(self.logs):
            with open(log, "w") as out:
                started = subprocess.Popen(
                    [*program, str(rank)], stdout=out, stderr=subprocess.STDOUT, env=environment, cwd=ROOT
                )
            self.processes.append(started)

    def outputs(self):
        """Return what each worker has written so far."""
        return [log.read_text() for log in self.logs]

    def states(self):
        """Return, for each worker, its lines with the states of its model."""
        return [
            [line for line in output.splitlines() if line.startswith("STATE")] for output in self.outputs()
        ]

    def finish(self, seconds=240):
        """Wait for the workers, and return their exit statuses. They are killed after some seconds."""
        end = time.monotonic() + seconds
        try:
            return [worker.wait(max(0, end - time.monotonic())) for worker in self.processes]
        finally:
            for worker in self.processes:
                worker.kill()
