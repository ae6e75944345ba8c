"""Make the registered runs, each in a process of its own, and write their records."""

import argparse
import os
import shutil
import subprocess
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import torch

from modular_fairseq.runs.evidence.claims import Register
from modular_fairseq.runs.evidence.corpora import compare
from modular_fairseq.runs.evidence.jobs import Job, Plan
from modular_fairseq.runs.evidence.processor_time import measured
from modular_fairseq.runs.evidence.records import Folders, made, record_of, write_log, write_record
from modular_fairseq.runs.execution import Diverged
from modular_fairseq.runs.run import Run
from modular_fairseq.training.checkpoints import weights_digest
from modular_fairseq.user_dir import PLUGIN
from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one, read_json, write_json
from modular_fairseq_cli.processes import processors, python_module, say

MEMORY = 4 * 2**30  # bytes of a GPU for a run; 12 runs of table multi30k at --scale cpu took 16 GB together
TIME = "core-seconds.json"  # in the folder of a run: the time of processors that it has taken so far
BEGUN = "begun.json"  # in the folder of a run: `made` when it was begun
CODE = os.path.dirname(PLUGIN)  # the folder of the code that runs


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
        given = f"--commit {commit}" if commit else "--run needs --commit HASH"
        raise UsageError(
            f"{given}: {register.path} registers commit {register.commit}; run scripts/evidence.sh, which "
            "makes a clone of it"
        )
    head, changed = git(CODE, "rev-parse", "HEAD"), git(CODE, "status", "--porcelain", "-uno")
    if head != commit or changed:
        what = "changed" if head == commit else f"commit {head or 'unknown'}"
        raise UsageError(
            f"the code in {CODE} is {what}, but {register.path} registers commit {commit}; run "
            "scripts/evidence.sh, which makes a clone of it"
        )
    folder, name = os.path.split(os.path.abspath(register.path))
    if git(folder, "status", "--porcelain", "--", name) or not git(folder, "ls-files", "--", name):
        raise UsageError(f"{register.path} has changes that were not committed; commit them before any run")


def git(folder: str, *words: str) -> str:
    """Return what a command of git prints, or "" if it fails, as outside of a repository."""
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
    return done.stdout.strip()


def make_all(
    plan: Plan, jobs: Sequence[Job], records: dict[str, Any], results: str, args: argparse.Namespace
) -> None:
    """Make the given runs, as far as they have no record yet, several at a time.

    A run that another one is fine-tuned from is made again if its checkpoint was lost. Its record stays. A
    run that diverged is not made again. A run whose pair was made on another device is left out, because the
    two would be no pair. The runs read a copy of the claims, so changes of the file do not reach them.

    Args:
        plan: the plan.
        jobs: the jobs that may be made.
        records: the records that exist.
        results: the folder of records.
        args: `claims`, `data`, `out`, `commit`, `jobs` and `device` are those of the command line.

    Raises:
        UsageError: some runs failed. The others are made nevertheless.
    """
    missing = _to_be_made(plan, jobs, records, args.device)
    for corpus in dict.fromkeys(job.run.corpus for job in missing):
        if not os.path.isdir(corpus.whole):
            raise UsageError(f"{corpus.whole} does not exist; prepare it by --prepare TEXT")
        compare(plan.register, os.path.basename(corpus.folder), corpus.contents())
        corpus.check(plan.register.path)  # which draws the subset before runs do so side by side
    claims = os.path.join(os.path.abspath(args.out), plan.register.commit, "claims.yaml")
    finished = {name: threading.Event() for name in (job.run.name for job in missing)}
    failures = []

    def make(number: int, job: Job) -> None:
        start = getattr(job.run.start, "name", "")
        if start in finished:
            finished[start].wait()
        try:
            say(f"[{number} of {len(missing)}] {job.run.name}")
            command = [*python_module("modular_fairseq_cli"), "evidence", claims]
            command += ["--data", os.path.abspath(args.data), "--out", os.path.abspath(args.out)]
            command += ["--commit", args.commit, "--device", args.device]
            command += ["--one", job.run.name, "--results", results]
            environment = {**os.environ, "OMP_NUM_THREADS": "1"}
            if args.device == "cpu":
                environment["CUDA_VISIBLE_DEVICES"] = ""  # fairseq takes a GPU that it sees
            # `python -m` prefers the packages in the present folder, so this must be the folder of this code.
            done = subprocess.run(command, env=environment, cwd=CODE, preexec_fn=lifetime.before_exec())
            if done.returncode:
                failures.append(job.run.name)
        finally:
            finished[job.run.name].set()

    if not missing:
        return
    os.makedirs(os.path.dirname(claims), exist_ok=True)
    with only_one(os.path.dirname(claims)):
        shutil.copyfile(args.claims, claims)
        with ThreadPoolExecutor(args.jobs) as pool:
            list(pool.map(make, range(1, len(missing) + 1), missing))
    if failures:
        raise UsageError(f"these runs failed: {', '.join(failures)}; the messages above say why")


def _to_be_made(plan: Plan, jobs: Sequence[Job], records: dict[str, Any], device: str) -> list[Job]:
    """Return the jobs that have no record, and those whose lost checkpoint one of them starts from.

    Jobs are left out whose pair was made on another device. A sentence says so.
    """
    missing = [job for job in jobs if job.run.name not in records]
    elsewhere = {
        job.run.name: pair for job in missing if (pair := _pair_elsewhere(job, plan, records, device))
    }
    if elsewhere:
        name, pair = next(iter(elsewhere.items()))
        say(
            f"{len(elsewhere)} of {len(missing)} runs are left out, such as {name}: {pair} of the same claim "
            f"and seed was made on {records[pair]['made']['device']}, and runs on two devices are no pair; "
            "make them with another --device"
        )
    wanted = {job.run.name: job for job in missing if job.run.name not in elsewhere}
    starts = {job.run.start.name for job in wanted.values() if isinstance(job.run.start, Run)}
    return [
        job
        for job in jobs
        if job.run.name in wanted or (job.run.name in starts & records.keys() and _is_lost(job.run, records))
    ]


def _pair_elsewhere(job: Job, plan: Plan, records: dict[str, Any], device: str) -> str | None:
    """Return the name of a recorded run of a claim and the seed of a job that has another device, or None."""
    others = (
        other.run.name
        for other in plan.jobs
        if other.seed == job.seed and job.claims.keys() & other.claims.keys()
    )
    return next(
        (name for name in others if name in records and records[name]["made"]["device"] != device), None
    )


def _is_lost(run: Run, records: dict[str, Any]) -> bool:
    """Return whether a recorded run has no finished checkpoint any more. One that diverged never had it."""
    return not records[run.name]["diverged"] and not _is_there(run)


def _is_there(run: Run) -> bool:
    """Return whether a run has ended and its checkpoint exists."""
    return run.training is not None and os.path.exists(run.checkpoint)


def make_one(plan: Plan, name: str, results: str, args: argparse.Namespace) -> None:
    """Make a run and write its record.

    The log of a run for a primary claim is kept beside the record. A run that diverges is recorded as such. A
    run that should start from it is recorded, but not made. When a record is written, the checkpoint that
    training would continue from is removed.

    Args:
        plan: the plan.
        name: the name of the run.
        results: the folder of records.
        args: `commit` is the commit that makes it, `device` where, and `data` and `out` are the folders of
            the corpora and of runs.

    Raises:
        UsageError: there is no such run; it failed; it was begun on another device or with other versions;
            the run that it starts from is not finished; or it was made again, for runs that start from it,
            and gave another model than the recorded one.
    """
    job = next((job for job in plan.jobs if job.run.name == name), None)
    if job is None:
        raise UsageError(f"--one {name}: the claims need no such run; --run gives this option by itself")
    run, records = job.run, plan.records(results)
    os.makedirs(run.folder, exist_ok=True)
    _refuse_another_machine(run, args.device)
    with measured(run.path(TIME)):
        diverged = not _make(run, records, job)
    if name in records:  # only its checkpoint was lost
        if weights_digest(run.checkpoint) != records[name]["weights"]:
            raise UsageError(
                f"{name} was made again and gave another model than its record says, as another processor "
                "may round differently; remove its record and those of the runs that start from it, to make "
                "them all again"
            )
        return
    minutes = (read_json(run.path(TIME)) or 0.0) / 60
    measurements = {} if diverged else job.measurements
    folders = Folders(args.data, args.out, CODE)
    record = record_of(run, measurements, args.commit, job.claims, minutes, args.device, folders, diverged)
    if job.primary and os.path.exists(run.path("train.log")):  # a run that was not made has no log
        write_log(results, run, args.commit, folders)
    write_record(results, name, record)
    if not diverged and os.path.exists(run.last):
        os.remove(run.last)


def _refuse_another_machine(run: Run, device: str) -> None:
    """Refuse to go on with a run elsewhere: its record could name one device, processor and torch only.

    Raises:
        UsageError: the run was begun on another device or processor, or with other versions or libraries, or
            nothing says where.
    """
    now = {name: value for name, value in made(device).items() if name != "date"}
    begun = read_json(run.path(BEGUN))
    if begun is None and os.path.exists(run.last):
        raise UsageError(
            f"{run.name} has a checkpoint, and no {BEGUN} says on which machine it was begun; remove "
            f"{run.folder} to begin it again"
        )
    if begun is None:
        write_json(run.path(BEGUN), now)
    elif begun != now:
        differ = [f"{name} {begun.get(name)}" for name in begun | now if begun.get(name) != now.get(name)]
        raise UsageError(
            f"{run.name} was begun with {', '.join(differ)}; go on with it there, or remove {run.folder} to "
            "begin it again"
        )


def _make(run: Run, records: dict[str, Any], job: Job) -> bool:
    """Train a run and, if it has no record yet, measure it.

    Returns:
        whether it has a model: it has none if the run, or the run that it starts from, diverged.

    Raises:
        UsageError: the run failed, or the run that it starts from is not finished.
    """
    if isinstance(run.start, Run):
        if records.get(run.start.name, {}).get("diverged"):
            return False
        if not _is_there(run.start):
            raise UsageError(f"{run.name} starts from {run.start.name}, which is not finished; make it first")
    if run.trains and run.training is not None and not os.path.exists(run.checkpoint):
        for path in (run.path("training.json"), run.last):
            with suppress(FileNotFoundError):
                os.remove(path)
    run.check()
    for measurements in job.measurements.values():
        for measurement in measurements:
            measurement.check()
    try:
        run.train(say)
    except Diverged as error:
        say(str(error))
        return False
    if run.name not in records:
        for measurements in job.measurements.values():
            for measurement in measurements:
                measurement.finish(say)
    return True
