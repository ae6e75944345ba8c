"""Kill commands at random moments, start them again, and compare the result with an uninterrupted one."""

import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

from tests.processes import processes_of
from tests.soak.cases import Case, attempts
from tests.soak.materials import Materials
from tests.soak.scenarios import scenarios, start, uninterrupted, words_of, wrong_after


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield kills: more than half of them of trainings, tables and ablations."""
    rng = random.Random(seed)
    weighted = ["train"] * 5 + ["table"] * 3 + ["ablate"] * 2 + [*scenarios(materials)]
    for number in range(count):
        yield _case(materials, number, weighted[number % len(weighted)], random.Random(rng.random()))


def _case(materials: Materials, number: int, name: str, rng: random.Random) -> Case:
    moments = [rng.random() for _ in range(rng.choice([1, 1, 2, 3]))]
    group = rng.random() < 0.5

    def run(folder: Path) -> str:
        """Kill the command; if it always ends before the kill, begin again with half of the time."""
        _, seconds = uninterrupted(materials, name)
        for attempt in attempts(folder):
            killed = False
            for moment in moments:
                process = start(words_of(materials, name, attempt.folder), materials)
                time.sleep(moment * seconds * attempt.share)
                killed = killed or process.poll() is None
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL) if group else process.kill()
                process.wait()
                if left := processes_of(attempt.folder):
                    return f"a process lives on after the kill: {left[0][:200]}"
            if killed:
                return wrong_after(materials, name, attempt.folder)
        return "the command always ends before it is killed"

    shown = ", ".join(f"{100 * moment:.0f} %" for moment in moments)
    return Case(f"{number} {name} at {shown}{' with its group' if group else ''}", run)
