"""Submit the steps of runs as jobs, through submitit, and know which jobs there are."""

import json
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NamedTuple

from modular_fairseq.runs.cluster.resources import Resources
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.cluster_task import Task
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import is_locked, only_one, read_json, write_file
from modular_fairseq_cli.processes import say

JOBS = "jobs.json"  # in the folder of a step: the last job of each step there
SIGNAL_SECONDS = 30  # before its time limit a job is told to be started again
LOCK = "background.lock"  # a job in the background holds the lock of this file
# The signal would end a batch script that still starts. The program of the task catches it.
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


def live() -> dict[str, tuple[str, str]]:
    """Return the user's jobs in Slurm, keyed by their numbers: the state, and the reason why a job waits.

    Slurm's words are returned, such as PENDING and Priority. Without Slurm there are no jobs.

    Raises:
        UsageError: squeue fails.
    """
    if shutil.which("squeue") is None:
        return {}
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
    present = live()
    numbers = {step.name: recorded(step.folder).get(step.name) for step in steps if not step.done}
    return [name for name, job in numbers.items() if job is not None and job.number not in present]


def submit(steps: Sequence[Step], folder: str) -> None:
    """Submit the steps that are neither done nor in the hands of a job, and record their jobs.

    A job that waits for a step which is submitted again would never start. It is cancelled, and its step is
    submitted again, too.

    Args:
        steps: the steps, each after those that it needs.
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
        present, new = live(), set[str]()
        present.pop(os.environ.get("SLURM_JOB_ID", ""), None)  # this process is no job that works on a step
        for step in steps:
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
            # exec: the batch script becomes the process of the task, which so gets the signal.
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
                    f"Slurm refuses the job {step.name} ({reason[0]}); correct the resources"
                ) from None
            jobs[step.name] = job.job_id
            known[step.name] = Job(job.job_id, str(job.paths.stderr))
            os.makedirs(step.folder, exist_ok=True)
            content = {name: each._asdict() for name, each in known.items()}
            write_file(os.path.join(step.folder, JOBS), json.dumps(content, indent=1) + "\n")
            new.add(step.name)
    there = len(jobs) - len(new)
    say(f"{len(new)} jobs were submitted, {there} are there already; their logs are in {folder}")


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

    Args:
        command: words of the command.
        folder: the folder for its logs.

    Raises:
        UsageError: a command runs there already.
    """
    executors = submitit()
    os.makedirs(folder, exist_ok=True)
    if in_background(folder):
        raise UsageError(
            f"a job in the background works on this already ({folder}); --status shows what it does"
        )
    executor = executors.LocalExecutor(folder, max_num_timeout=10**6)
    # submitit would hide all GPUs that were not asked for.
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    visible = (
        "unset CUDA_VISIBLE_DEVICES" if gpus is None else f"export CUDA_VISIBLE_DEVICES={shlex.quote(gpus)}"
    )
    executor.update_parameters(timeout_min=60 * YEARS, setup=["trap '' HUP", visible])
    task = Task(list(command), os.getcwd(), folder, YEARS, os.path.join(folder, LOCK))
    job = executor.submit(task)
    say(f"a job in the background was started; its log is {job.paths.stderr}")


def in_background(folder: str) -> bool:
    """Return whether a job in the background has its logs in a folder."""
    return is_locked(os.path.join(folder, LOCK))


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
