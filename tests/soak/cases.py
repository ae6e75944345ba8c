"""Run cases, and keep their outcomes in a file, so that a soak may be killed and continued."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

SECONDS = 60.0  # after which a command hangs
UNKNOWN, CHANGED = "unknown", "+"  # the commit without git, and the end of a commit if files differ from it


class Case(NamedTuple):
    """One accident to test.

    Args:
        name: its name, which tells what is done; it is unique in its part.
        run: makes the accident happen in an empty folder, and returns a sentence about what is wrong, or "".
    """

    name: str
    run: Callable[[Path], str]


class Attempt(NamedTuple):
    """An attempt to make an accident happen: an empty folder, and the share of the planned time or space."""

    folder: Path
    share: float


def attempts(folder: Path) -> Iterator[Attempt]:
    """Yield attempts until one of them makes the accident happen, each with half of the share before it.

    A command may end before its accident, as machines are not equally fast at all times.
    """
    for number in range(7):
        each = folder / f"attempt-{number}"
        each.mkdir()
        yield Attempt(each, 0.5**number)


class Outcome(NamedTuple):
    """What a case found.

    Args:
        part, name: the case.
        wrong: what is wrong, or "".
        seconds: how long it took.
        commit: the commit of the code.
    """

    part: str
    name: str
    wrong: str
    seconds: float
    commit: str = UNKNOWN


def run_cases(
    part: str, cases: Iterable[Case], kept: Path, commit: str = UNKNOWN, same_commit: bool = True
) -> Iterator[Outcome]:
    """Run the cases, and yield their outcomes. A case that was right at this commit is not run again.

    A commit with changes ("+") and an unknown one do not tell what the code is, so all cases are run again.

    Args:
        part: the name of the part.
        cases: its cases.
        kept: the file of all outcomes.
        commit: the commit of the code.
        same_commit: whether a case that was right at another commit is run again.
    """
    known = commit != UNKNOWN and not commit.endswith(CHANGED)
    done = {
        (each.part, each.name): each
        for each in outcomes(kept)
        if not each.wrong and ((known and each.commit == commit) or not same_commit)
    }
    for case in cases:
        if (part, case.name) not in done:
            began = time.monotonic()
            with tempfile.TemporaryDirectory(prefix="soak-") as folder:
                try:
                    wrong = case.run(Path(folder))
                except Exception as error:
                    wrong = f"the case itself failed: {type(error).__name__}: {error}"
            found = Outcome(part, case.name, wrong, round(time.monotonic() - began, 2), commit)
            with open(kept, "a", encoding="utf-8") as file:
                file.write(json.dumps(found._asdict()) + "\n")
            yield found
        else:
            yield done[part, case.name]


def outcomes(kept: Path) -> list[Outcome]:
    """Return the outcomes of a file. A line that was cut short by a kill does not count."""
    found = []
    for line in kept.read_text(encoding="utf-8").splitlines() if kept.exists() else []:
        try:
            found.append(Outcome(**json.loads(line)))
        except ValueError:
            continue
    return found


class Ended(NamedTuple):
    """A command that has ended: its exit status, or None if it hung; and its output."""

    status: int | None
    out: str
    err: str


def call(words: Sequence[object], folder: Path, environment: dict[str, str] | None = None) -> Ended:
    """Run a command in a folder, and end it and all its processes after `SECONDS`."""
    process = subprocess.Popen(
        [str(word) for word in words],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        start_new_session=True,
    )
    return wait_for(process)


def wait_for(process: subprocess.Popen) -> Ended:
    """Wait for a command that leads its own session, and end it and all its processes after `SECONDS`."""
    try:
        out, err = process.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        return Ended(None, out or "", err or "")
    return Ended(process.returncode, out or "", err or "")


def judged(ended: Ended) -> str:
    """Return what is wrong with the end of a command, or "".

    A command may succeed. If it fails, its last line on standard error is a sentence, and there is no
    traceback.
    """
    last = last_line(ended.err)
    if ended.status is None:
        return f"hangs for more than {SECONDS:g} s ({last})"
    if ended.status < 0:
        return f"was ended by signal {-ended.status} ({last})"
    if "Traceback (most recent call last)" in ended.err + ended.out:
        return f"shows a traceback ({last})"
    if ended.status and ": error: " not in last:
        return f"fails with status {ended.status} and without a sentence ({last})"
    return ""


def content(folder: Path) -> dict[str, bytes]:
    """Return the content of all files below a folder, without locks and logs."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.name != ".lock" and path.suffix != ".log"
    }


def last_line(output: str) -> str:
    """Return the beginning of the last line that is not empty."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return lines[-1][:300] if lines else "no message"


def left_over(folder: Path) -> str:
    """Return a sentence if a folder has files that were being written when a command ended, or ""."""
    paths = (path for path in folder.rglob("*") if ".tmp" in path.name or ".part" in path.name)
    names = [str(path.relative_to(folder)) for path in paths]
    return f"leaves {', '.join(names[:3])}" if names else ""


def copied(source: Path, target: Path) -> Path:
    """Copy a file or folder, and return the copy."""
    if source.is_dir():
        shutil.copytree(source, target, symlinks=True)
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
    return target
