"""Make the runs of a comparison, each with a record. toolkits.py and speech_evidence.py use this file.

A comparison has rows, such as models, and each row has a run with each seed. A run works in a folder of its
own, where a killed run continues. Its record is a JSON file. A run that has a record is not made again.
"""

import argparse
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from modular_fairseq.runs.evidence.records import made
from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import end_last_line, only_one, read_json, write_json

_children: set[subprocess.Popen] = set()  # the commands that are running, of all threads
_interrupted = threading.Event()  # Ctrl-C was pressed while runs were made

ROOT = Path(__file__).resolve().parent.parent
MACHINE = ("python", "torch", "processor", "preload")  # of `made`: what one record can name only once
PACKAGES = "modular_fairseq", "modular_fairseq_cli", "scripts/recorded_runs.py"


class Comparison(NamedTuple):
    """The runs of a comparison.

    Args:
        results: the folder of the records.
        seeds: the seeds of each row.
        options: what each row is trained with. It is written to the records.
        data: digests of what all rows are trained on.
        code: files and folders of this checkout that a run depends on. Others, such as the records of other
            runs, may change beside it.
    """

    results: Path
    seeds: list[int]
    options: dict[str, str]
    data: dict[str, str]
    code: tuple[str, ...]

    def make(self, work: Path, make: Callable[[Path, str, int], dict[str, Any]], jobs: int = 1) -> None:
        """Make the runs that have no record. All rows are begun with one seed before the next seed.

        Args:
            work: the folder that has a folder for each run. No other process may work in it.
            make: makes a run, for its folder, row and seed, and returns what its record has to say.
            jobs: the number of runs at a time. Each is made in a thread of its own.

        Raises:
            UsageError: see `records` and `begin`; another process works in the folder; or a run failed. Then
                no other run begins, and those that have begun are finished.
            KeyboardInterrupt: Ctrl-C was pressed. Commands that were running are ended, and no run that used
                them gets a record.
        """
        failures: list[Exception] = []

        def one(key: tuple[str, int]) -> None:
            if failures or _interrupted.is_set():
                return
            folder, about = work / "{}-{}".format(*key), self.about(*key)
            try:
                record = about | {"commit": self.begin(folder, about)}
                record |= make(folder, *key)
                self.check_code(folder, record["commit"])  # it may have changed meanwhile
                write_json(self.path(*key), record, compact=True)
            except Exception as error:
                failures.append(error)
                if jobs > 1:
                    print(f"{folder.name} failed: {error}", file=sys.stderr, flush=True)

        with only_one(work, "--work"):
            for key, record in self.records().items():
                self.check_code(self.path(*key), record["commit"])
            keys = [(row, seed) for seed in self.seeds for row in self.options]
            missing = [key for key in keys if self.read(*key) is None]
            try:
                with ThreadPoolExecutor(jobs) as pool:
                    try:
                        list(pool.map(one, missing))
                    except BaseException:  # Ctrl-C reaches this thread alone
                        _interrupted.set()
                        for child in list(_children):
                            child.terminate()
                        raise
            finally:
                _interrupted.clear()  # all threads have ended
        if failures:
            raise failures[0]

    def path(self, row: str, seed: int) -> Path:
        """Return the path of a record."""
        return self.results / f"{row}-{seed}.json"

    def about(self, row: str, seed: int) -> dict[str, Any]:
        """Return what a run is."""
        return {"row": row, "seed": seed, "options": self.options[row], "data": self.data}

    def read(self, row: str, seed: int) -> dict[str, Any] | None:
        """Return the record of a run, or None if there is none.

        Raises:
            UsageError: it cannot be read, or is of another run, or of other data or options.
        """
        path = self.path(row, seed)
        record = read_json(path, "remove the record")
        if record is not None:
            compare(path, record, self.about(row, seed), "remove the record")
        return record

    def records(self) -> dict[tuple[str, int], dict[str, Any]]:
        """Return all records, by row and seed.

        Raises:
            UsageError: see `read`; or two records were made by different code.
        """
        read = {(row, seed): self.read(row, seed) for seed in self.seeds for row in self.options}
        found = {key: record for key, record in read.items() if record is not None}
        paths = {record["commit"]: self.path(*key) for key, record in found.items()}
        first = next(iter(paths), "")
        for commit, path in list(paths.items())[1:]:
            if changed := git("diff", "--name-only", first, commit, "--", *self.code):
                raise UsageError(
                    f"{paths[first]} and {path} were made by different code ({changed.splitlines()[0]}); "
                    "remove one of them"
                )
        return found

    def begin(self, folder: Path, about: dict[str, Any]) -> str:
        """Note in a folder what is made in it, in run.json, and return the commit at which that began.

        Raises:
            UsageError: the folder has something else, or was begun on another machine or with other versions;
                a file of the code differs from the commit or is not committed; or git fails.
        """
        noted = folder / "run.json"
        machine = {"machine": {key: value for key, value in made("cpu").items() if key in MACHINE}}
        found = read_json(noted, "remove the folder")
        if found is not None:
            compare(folder, found, about | (machine if "machine" in found else {}), "remove the folder")
        elif folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} has files of another run, as it has no run.json; remove the folder")
        else:
            found = about | machine | {"commit": git("rev-parse", "HEAD")}
        self.check_code(folder, found["commit"])
        if not noted.exists():
            folder.mkdir(parents=True, exist_ok=True)
            write_json(noted, found)
        return found["commit"]

    def check_code(self, path: Path, commit: str) -> None:
        """Check that the code of this checkout is the same as at a commit.

        Args:
            path: the record or folder that was made at the commit, for the message.
            commit: the commit.

        Raises:
            UsageError: a file of `code` differs from the commit, or is not committed.
        """
        changed = git("diff", "--name-only", commit, "--", *self.code)
        changed = changed or git("ls-files", "--others", "--exclude-standard", "--", *self.code)
        if changed:
            raise UsageError(
                f"{path} is of commit {commit}, and {changed.splitlines()[0]} differs from it; run in a "
                "clone at that commit, or commit what was changed and remove it"
            )


def add_jobs(command: argparse.ArgumentParser) -> None:
    """Add the option --jobs, the number of runs at a time."""
    command.add_argument(
        "--jobs", type=at_least_one, default=1, metavar="N", help="runs at a time (default: %(default)s)"
    )


def at_least_one(text: str) -> int:
    """Return the number that an option names."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be a whole number of at least 1, not {text}")
    return int(text)


def compare(path: Path, found: dict[str, Any], wanted: dict[str, Any], remedy: str) -> None:
    """Raise UsageError unless `found` has what is wanted."""
    if wrong := [name for name, value in wanted.items() if found.get(name) != value]:
        raise UsageError(f"{path}: {', '.join(wrong)} is not what this comparison has; {remedy}")


def git(*words: str) -> str:
    """Return what a git command prints about this checkout. Raises UsageError if it fails."""
    done = subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True)
    if done.returncode:
        raise UsageError(f"git {words[0]} failed ({done.stderr.strip()}); run in a clone that has the commit")
    return done.stdout.strip()


def call(words: list[object], log: Path, own: bool = True) -> float:
    """Run a command on one thread in the root of this checkout, and return its wall-clock time in seconds.

    Args:
        words: the command.
        log: the file that its output is appended to.
        own: whether its Python imports the code of this checkout. If not, it imports nothing from here,
            though it runs here (PYTHONSAFEPATH, for Python 3.11 and newer).

    Raises:
        UsageError: it fails, or the runs were interrupted before it ended.
    """
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    environment |= {"OMP_NUM_THREADS": "1"}
    environment |= {"PYTHONPATH": str(ROOT)} if own else {"PYTHONSAFEPATH": "1"}
    command = [str(word) for word in words]
    log.parent.mkdir(parents=True, exist_ok=True)
    end_last_line(log)
    began = time.monotonic()
    with open(log, "a") as output:
        child = subprocess.Popen(
            command,
            cwd=ROOT,
            env=environment,
            stdout=output,
            stderr=output,
            preexec_fn=lifetime.before_exec(),  # if it went on, it would disturb a run that is made again
        )
        _children.add(child)
        try:
            if _interrupted.is_set():
                child.terminate()
            status = child.wait()
        except BaseException:  # Ctrl-C, if this is the main thread
            child.kill()
            child.wait()
            raise
        finally:
            _children.discard(child)
    if _interrupted.is_set():  # some programs end with status 0 when they are interrupted
        raise UsageError(f"{' '.join(command[:4])} was interrupted; see {log}")
    if status:
        raise UsageError(f"{' '.join(command[:4])} failed with status {status}; see {log}")
    return time.monotonic() - began
