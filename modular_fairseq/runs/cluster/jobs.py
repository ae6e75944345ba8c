"""Submit the steps of runs as jobs, through submitit, and know which jobs there are."""

import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from tabulate import tabulate

from modular_fairseq.runs.cluster.resources import Resources
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.cluster_task import Task
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import is_locked, only_one, read_json, write_file, write_json
from modular_fairseq_cli.processes import say, share_processors

JOBS = "jobs.json"  # in the folder of a step: the last job of each step there
SIGNAL_SECONDS = 30  # before its time limit a job is told to be started again
LOCK = "background.lock"  # a job in the background holds the lock of this file, and writes its process id
# The signal would end a batch script that still starts. The process of the task has a handler of its own.
IGNORE = "trap '' USR2"
YEARS = 100 * 365 * 24.0  # the time limit of a job in the background, in hours


class Step(NamedTuple):
    """A part of the work on a run, which one job does.

    Args:
        name: its name, which is unique among the steps, such as "train mae-3/mae-7/seed-1".
        folder: the folder into which the work is saved.
        command: words of the command that does the work, and that continues it after a kill.
        resources: what the job asks for.
        after: names of the steps that must have ended before.
        done: whether the work is done.
        log: the path of a log that shows the progress of the work, or "".
        also_after_failure: whether the job starts even if a step before it has failed.
    """

    name: str
    folder: str
    command: Sequence[str]
    resources: Resources
    after: Sequence[str] = ()
    done: bool = False
    log: str = ""
    also_after_failure: bool = False


class Job(NamedTuple):
    """A job that was submitted: its number, and the file with the messages of its command."""

    number: str
    log: str


def submitit() -> Any:
    """Return the module submitit.

    Raises:
        UsageError: it is not installed.
    """
    try:
        import submitit
    except ImportError:
        raise UsageError(
            "--launcher needs submitit, which is not installed; pip install 'modular_fairseq[cluster]'"
        ) from None
    return submitit


def live() -> dict[str, tuple[str, str]] | None:
    """Return the user's jobs in Slurm, keyed by their numbers: the state, and the reason why a job waits.

    Slurm's words are returned, such as PENDING and Priority. The result is None on a machine without squeue.

    Raises:
        UsageError: squeue fails.
    """
    if shutil.which("squeue") is None:
        return None
    command = ["squeue", "--me", "--noheader", "--format=%A|%T|%r"]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        reason = next((line for line in done.stderr.splitlines() if line.strip()), "no message")
        raise UsageError(f"{' '.join(command)} failed ({reason}); try again when Slurm answers")
    lines = (line.strip().split("|", 2) for line in done.stdout.splitlines() if line.strip())
    return {number: (state, reason) for number, state, reason in lines}


def recorded(folder: str) -> dict[str, Job]:
    """Return the last job of each step of a folder, keyed by the names of the steps."""
    return {name: Job(**job) for name, job in (read_json(os.path.join(folder, JOBS)) or {}).items()}


def failed(steps: Sequence[Step]) -> list[str]:
    """Return the names of steps that are not done although their jobs have ended."""
    present = live() or {}
    numbers = {step.name: recorded(step.folder).get(step.name) for step in steps if not step.done}
    return [name for name, job in numbers.items() if job is not None and job.number not in present]


def submit(look: Callable[[], Sequence[Step]], folder: str) -> None:
    """Submit the steps that are not done and that no job works on, and record their jobs.

    A job that waits for a step which is submitted again would never start. It is cancelled, and its step is
    submitted again, too.

    Args:
        look: returns the steps as they are now, each after those that it needs.
        folder: the folder for the logs of jobs.

    Raises:
        UsageError: there is no Slurm, Slurm refuses a job, or another process submits jobs for this folder.
    """
    executors = submitit()
    if shutil.which("sbatch") is None:
        raise UsageError(
            "--launcher slurm: there is no sbatch on this machine; log in to the cluster, or use --launcher "
            "local"
        )
    os.makedirs(folder, exist_ok=True)
    jobs: dict[str, str] = {}
    with only_one(folder):
        present, new = live() or {}, set[str]()
        present.pop(os.environ.get("SLURM_JOB_ID", ""), None)  # this process is no job that works on a step
        for step in look():  # after `live`: a job that has ended before has done its step
            if step.done:
                continue
            known = recorded(step.folder)
            if step.name in known and known[step.name].number in present:
                if new.isdisjoint(step.after):
                    jobs[step.name] = known[step.name].number
                    continue
                # It fails for a job that has ended meanwhile, which does no harm.
                subprocess.run(["scancel", known[step.name].number], capture_output=True)
            # A new executor for each job: submitit waits between the jobs of one.
            # With exec, the process of the task replaces the shell, so Slurm's signal reaches it.
            python = f"exec {shlex.quote(sys.executable)}"
            executor = executors.SlurmExecutor(folder, max_num_timeout=10**6, python=python)
            needs = [jobs[name] for name in step.after if name in jobs]
            executor.update_parameters(**_parameters(step, needs))
            task = Task(list(step.command), os.getcwd(), step.folder, step.resources.hours)
            try:
                job = executor.submit(task)
            except executors.core.utils.FailedJobError as error:
                reason = str(error).strip().splitlines()[-1:] or ["sbatch gave no reason"]
                raise UsageError(
                    f"Slurm refuses the job {step.name} ({reason[0]}), after {len(new)} other jobs were "
                    "submitted; correct that, such as the resources, and the same command submits the rest"
                ) from None
            jobs[step.name] = job.job_id
            known[step.name] = Job(job.job_id, str(job.paths.stderr))
            os.makedirs(step.folder, exist_ok=True)
            content = {name: each._asdict() for name, each in known.items()}
            write_json(os.path.join(step.folder, JOBS), content)
            new.add(step.name)
    there = len(jobs) - len(new)
    say(f"{len(new)} jobs were submitted, {there} are there already; their logs are in {folder}")


def describe(steps: Sequence[Step]) -> str:
    """Return a table of the jobs that `submit` would submit, with what they wait for and ask for."""
    lines = []
    for step in steps:
        if not step.done:
            asked = _parameters(step, [])
            asked.pop("additional_parameters")
            internal = ("job_name", "setup", "signal_delay_s", "use_srun")
            asked = {name: value for name, value in asked.items() if name not in internal}
            asked |= step.resources.slurm
            given = " ".join(f"{name.replace('_', '-')}={value}" for name, value in asked.items())
            lines.append([step.name, ", ".join(step.after), given])
    return tabulate(lines, ["job", "waits for", "asks for"], disable_numparse=True)


def share_job(workers: int) -> None:
    """Let the programs that this process starts use the processors of its job of Slurm, or of this machine.

    Args:
        workers: the number of programs that run at the same time.
    """
    if processors := os.environ.get("SLURM_CPUS_PER_TASK"):
        os.environ.setdefault("OMP_NUM_THREADS", processors)
    else:
        share_processors(workers)


def through_srun(run: Run) -> Run:
    """Return a run whose training is started by srun, one worker for each task of the present job.

    The workers meet on this machine, the first one of the job, at a port that follows from the number of the
    job. fairseq could infer all this from Slurm's variables (--distributed-port), but only with GPUs.

    Raises:
        UsageError: this is no job of Slurm, or it has another number of tasks than the run has workers.
    """
    tasks = os.environ.get("SLURM_NTASKS")
    if tasks != str(run.workers):
        raise UsageError(
            f"--srun: {run.name} needs a job of Slurm with {run.workers} tasks; here are {tasks or 'none'}"
        )
    port = 20_000 + int(os.environ["SLURM_JOB_ID"]) % 20_000
    address = f"tcp://{os.environ['SLURMD_NODENAME']}:{port}"
    srun = ["srun", "--unbuffered", "--kill-on-bad-exit=1"]
    if processors := os.environ.get("SLURM_CPUS_PER_TASK"):  # srun does not take it from the job
        srun.append(f"--cpus-per-task={processors}")
    worker = 'exec "$@" --distributed-rank "$SLURM_PROCID" --device-id "$SLURM_LOCALID"'
    meeting = ["--distributed-init-method", address, "--distributed-no-spawn"]
    return run._replace(launcher=[*srun, "bash", "-c", worker, "worker"], words=[*run.words, *meeting])


def submit_to_background(command: Sequence[str], folder: str) -> None:
    """Run a command in the background of this machine, where it goes on if the terminal is closed.

    This function returns when the job has begun.

    Args:
        command: words of the command.
        folder: the folder for its logs.

    Raises:
        UsageError: a command runs there already, another process starts one, or the job ends at once.
    """
    executors = submitit()
    os.makedirs(folder, exist_ok=True)
    with only_one(folder):
        if background(folder) is not None:
            raise UsageError(
                f"a job in the background works on this already ({folder}); --status shows what it does"
            )
        write_file(os.path.join(folder, LOCK), "")  # without the number of an earlier process
        executor = executors.LocalExecutor(folder, max_num_timeout=10**6)
        # submitit would hide all GPUs that were not asked for.
        gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
        visible = (
            "unset CUDA_VISIBLE_DEVICES"
            if gpus is None
            else f"export CUDA_VISIBLE_DEVICES={shlex.quote(gpus)}"
        )
        # The process that submitit leaves behind must not keep the output of this one open, and the keys of
        # its terminal must not end it.
        output = f"exec </dev/null >>{shlex.quote(os.path.join(folder, 'submitit.log'))} 2>&1"
        executor.update_parameters(
            timeout_min=60 * YEARS, setup=[output, "trap '' HUP INT QUIT TSTP", visible]
        )
        task = Task(list(command), os.getcwd(), folder, YEARS, os.path.join(folder, LOCK))
        job = executor.submit(task)
        log = str(job.paths.stderr)
        while (process := background(folder)) is None:
            if job.done():
                raise UsageError(f"the job in the background ended at once; its log is {log}")
            time.sleep(0.1)
    say(f"a job in the background was started; its log is {log}; to stop it: kill -KILL {process}")


def background(folder: str) -> int | None:
    """Return the process of the job in the background that has its logs in a folder, or None."""
    path = os.path.join(folder, LOCK)
    if not is_locked(path):
        return None
    with open(path, encoding="utf-8") as file:
        number = file.read().strip()
    return int(number) if number.isdecimal() else None


def _parameters(step: Step, needs: Sequence[str]) -> dict[str, Any]:
    """Return the parameters of a job for submitit's executor.

    The command runs on the first node, outside of srun, so that it can call srun for the training itself.
    Slurm sends the signal before the time limit to this process (B:).
    """
    resources = step.resources
    gpus = resources.gpus // resources.nodes
    condition = "afterany" if step.also_after_failure else "afterok"
    parameters: dict[str, Any] = {
        "job_name": step.name.replace(" ", ":"),
        "partition": resources.partition,
        "account": resources.account,
        "time": max(1, round(60 * resources.hours)),
        "nodes": resources.nodes,
        "ntasks_per_node": resources.workers // resources.nodes,
        "gpus_per_node": gpus or None,
        "cpus_per_task": resources.cpus,
        "mem": None if resources.memory is None else f"{round(resources.memory * 1024)}M",
        "dependency": f"{condition}:{':'.join(needs)}" if needs else None,
        "setup": [IGNORE, *resources.setup],
        "signal_delay_s": SIGNAL_SECONDS,
        "use_srun": False,
        "additional_parameters": {
            "signal": f"B:USR2@{SIGNAL_SECONDS}",
            "requeue": True,
            "kill-on-invalid-dep": "yes",
            **resources.slurm,
        },
    }
    return {name: value for name, value in parameters.items() if value is not None}
