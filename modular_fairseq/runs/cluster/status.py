"""Show what the runs of a command do: as a table, which is refreshed on a terminal."""

import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tabulate import tabulate

from modular_fairseq.runs.cluster.jobs import Step, live, recorded
from modular_fairseq.runs.run import FAILURE
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import progress
from modular_fairseq_cli.files import is_locked

PAUSE = 5  # seconds between two looks
TAIL = 100_000  # bytes at the end of a log that are read
WAITS, RUNS, DONE, FAILED, STOPPED, NOT_BEGUN = "queued", "running", "done", "failed", "stopped", "not begun"
UNKNOWN = "unknown"
AT_WORK = (WAITS, RUNS)


class State(NamedTuple):
    """What a step does: its state, the number of its job or "", and a remark."""

    state: str
    job: str = ""
    remark: str = ""


def state_of(step: Step, ready: bool, jobs: dict[str, tuple[str, str]] | None, process: int | None) -> State:
    """Return the state of a step: queued, running, done, failed, stopped, not begun or unknown.

    Args:
        step: the step.
        ready: whether the steps that it needs are done.
        jobs: the jobs of Slurm (see `live`).
        process: the process of the job in the background that works on the steps, or None.
    """
    if step.done:
        return State(DONE)
    job = recorded(step.folder).get(step.name)
    number = job.number if job else ""
    state, reason = (jobs or {}).get(number, ("", ""))
    if state == "PENDING":
        return State(WAITS, number, f"Slurm: {reason}")
    if state or (ready and is_locked(os.path.join(step.folder, ".lock"))):
        return State(RUNS, number, last_progress(step.log) if step.log else "")
    if ready and (failure := _tail(os.path.join(step.folder, FAILURE))):
        return State(FAILED, number, failure[-1])
    if process is not None:
        return State(WAITS)
    if job is not None and jobs is None:
        return State(UNKNOWN, number, "there is no squeue on this machine, which would show the job")
    if job is not None and not os.path.exists(job.log):
        return State(FAILED, number, "the job was cancelled before it began, as after a failure before it")
    if job is not None:
        return State(FAILED, number, last_line(job.log))
    if step.log and os.path.exists(step.log):
        return State(STOPPED, "", last_progress(step.log))
    return State(NOT_BEGUN)


def last_progress(path: str) -> str:
    """Return the last progress that the log of a training shows, such as an epoch and a perplexity."""
    found = (text.strip() for line in reversed(_tail(path)) if (text := progress(line)))
    return next(found, "")


def last_line(path: str) -> str:
    """Return the last line of a log that a command wrote; lines of submitit and Slurm are passed over."""
    lines = (line.strip() for line in reversed(_tail(path)))
    others = (line for line in lines if line and not line.startswith(("submitit ", "slurmstepd:", "srun:")))
    return next(others, f"see {path}")


def _tail(path: str) -> list[str]:
    """Return the last lines of a file; none if there is no such file."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.path.getsize(path) - TAIL))
            return file.read().decode(errors="replace").splitlines()
    except FileNotFoundError:
        return []


def overview(
    title: str, look: Callable[[], Sequence[Step]], process: Callable[[], int | None]
) -> tuple[str, bool]:
    """Return the table of all steps as text, and whether any of them waits or runs.

    Args:
        title: the beginning of the first line.
        look: returns the steps as they are now.
        process: returns the process of the job in the background that works on them, or None.
    """
    works, steps = process(), look()
    known = any(step.name in recorded(step.folder) for step in steps)
    jobs = live() if known else {}
    states: dict[str, State] = {}
    for step in look():  # again: a job that has ended before `jobs` were known has done its step
        ready = all(states[name].state == DONE for name in step.after)
        states[step.name] = state_of(step, ready, jobs, works)
    counts = [
        f"{number} {state}"
        for state in (RUNS, WAITS, DONE, FAILED, STOPPED, NOT_BEGUN, UNKNOWN)
        if (number := sum(each.state == state for each in states.values()))
    ]
    lines = [[name, *state] for name, state in states.items()]
    table = tabulate(lines, ["step", "state", "job", "remark"], disable_numparse=True)
    at_work = any(each.state in AT_WORK for each in states.values())
    if works is not None:
        title = f"{title}, in the background as process {works}"
    return f"{title}: {', '.join(counts)}\n\n{table}\n", at_work


def watch(look: Callable[[], tuple[str, bool]], again: str) -> None:
    """Show an overview; on a terminal, refresh it until nothing waits or runs.

    Args:
        look: returns the text, and whether anything waits or runs.
        again: the command that shows the overview again.

    Raises:
        SystemExit: the user pressed Ctrl-C (exit code 130), which ends nothing but the display.
    """
    try:
        text, at_work = look()
        while sys.stdout.isatty() and at_work:
            # The codes move to the top left corner of the terminal and erase what is below.
            print(f"\033[H\033[J{text}", end="", flush=True)
            time.sleep(PAUSE)
            try:
                text, at_work = look()
            except UsageError as error:  # Slurm may answer again at the next look
                print(error, file=sys.stderr)
        print(text, end="", flush=True)
    except KeyboardInterrupt:
        print(f"\nthe jobs go on; this command shows them again: {again}", file=sys.stderr)
        sys.exit(130)
