"""The program of a job on a cluster: it runs a command, and lets the job go on after its time limit.

submitit pickles a `Task`, and calls it in the job. This module is light, because the process waits beside the
command for as long as the job runs.
"""

import os
import shlex
import subprocess
import sys
import time
from contextlib import nullcontext
from typing import Any

from modular_fairseq_cli import lifetime
from modular_fairseq_cli.files import lock


class Task:
    """A command that continues where it stopped if it is given again.

    Args:
        command: the words of the command.
        folder: the folder in which it runs.
        results: the folder in which the command saves its progress.
        hours: the time limit of the job.
        lock: a file whose lock is held while the command runs, and into which the id of this process is
            written; None: there is none.
    """

    def __init__(self, command: list[str], folder: str, results: str, hours: float, lock: str | None = None):
        self.command, self.folder, self.results, self.hours = command, folder, results, hours
        self.lock = lock

    def __call__(self) -> None:
        """Run the command, and end this process with its exit status if it is not 0."""
        self.began, self.before = time.time(), self.saved()
        print(f"$ {shlex.join(self.command)}", flush=True)
        # A process that only looks whether the file is locked (`is_locked`) is waited for.
        with nullcontext() if self.lock is None else lock(self.lock, f"{self.lock} is locked", seconds=1):
            if self.lock is not None:
                with open(self.lock, "w", encoding="utf-8") as file:
                    file.write(str(os.getpid()))
            done = subprocess.run(self.command, cwd=self.folder, preexec_fn=lifetime.before_exec())
        if done.returncode:
            sys.exit(max(done.returncode, 1))

    def checkpoint(self) -> Any:
        """Tell submitit what the job does after a pre-emption or its time limit: the same again.

        Returns:
            submitit's description of this task; or None, so that the job fails, if it has used its whole time
            and saved nothing, because it would never end.
        """
        from submitit.helpers import DelayedSubmission

        if time.time() - self.began > 0.8 * 3600 * self.hours - 60 and self.saved() == self.before:
            message = (
                f"the job has saved nothing in its {self.hours:g} hours, so it is not started again; give "
                "more --hours, so that an epoch fits in"
            )
            print(f"modular-fairseq: error: {message}", file=sys.stderr, flush=True)
            return None
        return DelayedSubmission(self)

    def saved(self) -> float:
        """Return the time at which the newest checkpoint or result was saved; 0 if there is none."""
        times = [0.0]
        if os.path.isdir(self.results):
            with os.scandir(self.results) as entries:
                times += [entry.stat().st_mtime for entry in entries if entry.name.endswith((".pt", ".json"))]
        return max(times)
