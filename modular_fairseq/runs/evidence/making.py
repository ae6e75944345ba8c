"""Make the registered runs, each in a process of its own, and write their records."""

import argparse
import json
import os
import resource
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch

from modular_fairseq.runs.evidence.claims import Register
from modular_fairseq.runs.evidence.corpora import compare
from modular_fairseq.runs.evidence.jobs import Job, Plan
from modular_fairseq.runs.evidence.records import record_of, write_record
from modular_fairseq.runs.run import PLUGIN, Diverged, Run
from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file
from modular_fairseq_cli.processes import processors, say

MEMORY = 4 * 2**30  # bytes of a GPU for a run of the size of --scale cpu; assumed, not measured
TIME = "core-seconds.json"  # in the folder of a run: the time of processors that it has taken so far


def default_jobs(device: str) -> int:
    """Return the number of runs at a time: 1 on CPUs, and on a GPU as many as fit.

    Raises:
        UsageError: there is no GPU.
    """
    if device == "cpu":
        return 1
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU; use --device cpu")
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(free // MEMORY, processors()))


def refuse_another_code(register: Register, commit: str | None) -> None:
    """Refuse to make runs with other code or other claims than those in the history.

    Raises:
        UsageError: no commit is registered; the code that runs is not the registered commit, or was changed;
            or the claims have changes that were not committed.
    """
    if register.commit == "none":
        raise UsageError(f"{register.path} names no commit yet, so no run can be made")
    if commit != register.commit:
        raise UsageError(
            f"--commit {commit}: {register.path} registers commit {register.commit}; run "
            "scripts/evidence.sh, which makes a clone of it"
        )
    code = os.path.dirname(PLUGIN)
    head, changed = git(code, "rev-parse", "HEAD"), git(code, "status", "--porcelain", "-uno")
    if head != commit or changed:
        raise UsageError(
            f"the code in {code} is {'changed' if head == commit else f'commit {head}'}, but {register.path} "
            f"registers commit {commit}; run scripts/evidence.sh, which makes a clone of it"
        )
    folder, name = os.path.split(os.path.abspath(register.path))
    if git(folder, "status", "--porcelain", "--", name) or not git(folder, "ls-files", "--", name):
        raise UsageError(f"{register.path} has changes that were not committed; commit them before any run")


def git(folder: str, *words: str) -> str:
    """Return what a command of git prints, or "" if it fails, as outside of a repository."""
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
    return done.stdout.strip()


def make_all(plan: Plan, records: dict[str, Any], args: argparse.Namespace) -> None:
    """Make the runs that have no record yet, several at a time.

    A run that another one is fine-tuned from is made again if its checkpoint was lost. Its record stays. A
    run that diverged is not made again.

    Raises:
        UsageError: some runs failed. The others are made nevertheless.
    """
    missing = [job for job in plan.jobs if job.run.name not in records]
    starts = {job.run.start.name for job in missing if isinstance(job.run.start, Run)}
    missing = [job for job in plan.jobs if job.run.name not in records or _is_lost(job.run, starts, records)]
    for corpus in dict.fromkeys(job.run.corpus for job in missing):
        if not os.path.isdir(corpus.whole):
            raise UsageError(f"{corpus.whole} does not exist; prepare it by --prepare TEXT")
        compare(plan.register, os.path.basename(corpus.folder), corpus.contents())
        corpus.check(plan.register.path)  # which draws the subset before runs do so side by side
    finished = {name: threading.Event() for name in (job.run.name for job in missing)}
    failures = []

    def make(number: int, job: Job) -> None:
        start = getattr(job.run.start, "name", "")
        if start in finished:
            finished[start].wait()
        say(f"[{number} of {len(missing)}] {job.run.name}")
        command = [sys.executable, "-m", "modular_fairseq_cli", "evidence", args.claims]
        command += ["--data", args.data, "--out", args.out, "--commit", args.commit, "--one", job.run.name]
        command += ["--device", args.device]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if args.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""  # fairseq takes a GPU that it sees
        done = subprocess.run(command, env=environment, preexec_fn=lifetime.before_exec())
        if done.returncode:
            failures.append(job.run.name)
        finished[job.run.name].set()

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(make, range(1, len(missing) + 1), missing))
    if failures:
        raise UsageError(f"these runs failed: {', '.join(failures)}; the messages above say why")


def _is_lost(run: Run, starts: set[str], records: dict[str, Any]) -> bool:
    """Return whether a recorded run is in `starts`, which are needed, and its checkpoint is not there."""
    return run.name in starts and not records[run.name]["diverged"] and not os.path.exists(run.checkpoint)


def make_one(plan: Plan, name: str, results: str, args: argparse.Namespace) -> None:
    """Make a run and write its record.

    A run that diverges is recorded as such. A run that should start from it is recorded, but not made.

    Args:
        plan: the plan.
        name: the name of the run.
        results: the folder of records.
        args: `commit` is the commit that makes it, and `device` where.

    Raises:
        UsageError: the run failed.
    """
    (job,) = [job for job in plan.jobs if job.run.name == name]
    os.makedirs(job.run.folder, exist_ok=True)
    records = plan.records(results)
    start = job.run.start
    diverged = isinstance(start, Run) and start.name in records and records[start.name]["diverged"]
    try:
        if not diverged:
            job.run.check()
            job.run.train(say)
            if name in records:
                return  # only its checkpoint was lost
            for measurements in job.measurements.values():
                for measurement in measurements:
                    measurement.finish(say)
    except Diverged as error:
        say(str(error))
        diverged = True
    finally:
        seconds = add_time(job)
    measured = {} if diverged else job.measurements
    record = record_of(job.run, measured, args.commit, job.claims, seconds / 60, diverged)
    record["made"]["device"] = args.device
    write_record(results, name, record)


def add_time(job: Job) -> float:
    """Add the time that processors have spent on this process to the run's time, and return the sum in s.

    The processes that this process has started count too.
    """
    path = job.run.path(TIME)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = (read_json(path) or 0.0) + sum(each.ru_utime + each.ru_stime for each in used)
    write_file(path, json.dumps(seconds) + "\n")
    return seconds
