"""Start a Slurm of one node on this machine, on localhost only, and run a command with it.

    python tests/system/one_node_slurm.py bash      # a shell in which sbatch, squeue and scancel work

The node has the processors of this machine and two GPUs that do not exist, so that jobs may ask for GPUs. All
daemons end with the command. It needs the programs of Debian's packages slurmctld, slurmd, slurm-client and
munge. All files are in a temporary folder.
"""

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from getpass import getuser
from pathlib import Path

PROGRAMS = ("slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "munged")
# The directories of Debian's daemons, which are not on the PATH of every user.
PATH = os.pathsep.join([os.environ["PATH"], "/usr/sbin", "/sbin"])
GPUS = 2  # as in Gres
CONFIGURATION = """
ClusterName=one_node
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmdPort={ports[1]}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=sched_interval=1,sched_min_interval=0,batch_sched_delay=0,bf_interval=1
KillWait=2
OverTimeLimit=0
GresTypes=gpu
NodeName=localhost NodeHostname={host} NodeAddr=127.0.0.1 CPUs={processors} RealMemory={memory} Gres=gpu:2
PartitionName=all Nodes=localhost Default=YES MaxTime=INFINITE State=UP
"""


def missing() -> str:
    """Return the reason why no Slurm can be started here, or ""."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    return f"Slurm is not installed ({', '.join(absent)} missing)" if absent else ""


@contextmanager
def one_node() -> Iterator[dict[str, str]]:
    """Run a Slurm for the length of a `with` block, and yield the environment variables that it needs.

    Raises:
        RuntimeError: a daemon ended, or the node is not ready within a minute. The message has the end of the
            daemons' logs.
    """
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="one-node-slurm-")))
        folder.chmod(0o755)
        for name in ("state", "spool"):
            (folder / name).mkdir()
        key = folder / "munge.key"
        key.write_bytes(os.urandom(1024))
        key.chmod(0o400)
        values = {
            "folder": folder,
            "host": socket.gethostname().partition(".")[0],
            "ports": _free_ports(2),
            "user": getuser(),
            "processors": os.cpu_count(),
            "memory": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        }
        configuration = folder / "slurm.conf"
        configuration.write_text(CONFIGURATION.format_map(values), encoding="utf-8")
        gpus = [folder / f"gpu{number}" for number in range(GPUS)]
        for each in gpus:
            each.touch()
        (folder / "gres.conf").write_text(
            "".join(f"Name=gpu File={each}\n" for each in gpus), encoding="utf-8"
        )
        environment = {**os.environ, "PATH": PATH, "SLURM_CONF": str(configuration)}
        munge = ["--key-file", key, "--socket", folder / "munge.socket", "--pid-file", folder / "munge.pid"]
        munge += ["--seed-file", folder / "munge.seed", "--log-file", folder / "munge.log"]
        daemons = [
            ["munged", "--foreground", "--force", *munge],
            ["slurmctld", "-D", "-i"],
            ["slurmd", "-D", "-N", "localhost"],
        ]
        started = []
        for daemon in daemons:
            process = subprocess.Popen(
                list(map(str, daemon)), env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            stack.callback(_end, process)
            started.append(process)
            if daemon[0] == "munged":
                _wait(lambda: (folder / "munge.socket").exists(), started, folder)
        _wait(lambda: _is_ready(environment), started, folder)
        stack.callback(subprocess.run, ["scancel", "--user", getuser()], env=environment)
        yield environment


def _is_ready(environment: dict[str, str]) -> bool:
    """Return whether the node takes jobs."""
    done = subprocess.run(["sinfo", "-h", "-o", "%T"], env=environment, capture_output=True, text=True)
    return done.stdout.strip() == "idle"


def _wait(is_ready, daemons: list[subprocess.Popen], folder: Path) -> None:
    end = time.monotonic() + 60
    while not is_ready():
        if time.monotonic() > end or any(each.poll() is not None for each in daemons):
            logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in folder.glob("*.log"))
            raise RuntimeError(f"Slurm did not start:\n{logs}")
        time.sleep(0.1)


def _end(process: subprocess.Popen) -> None:
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_ports(number: int) -> list[int]:
    """Return ports of this machine that are free now."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(number)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def main() -> None:
    if reason := missing():
        sys.exit(f"one_node_slurm.py: error: {reason}; apt-get install slurmctld slurmd slurm-client munge")
    with one_node() as environment:
        sys.exit(subprocess.run(sys.argv[1:] or ["bash"], env=environment).returncode)


if __name__ == "__main__":
    main()
