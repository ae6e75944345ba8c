"""Train and translate for a long time: the resident memory must not grow after the beginning."""

import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.fairseq_commands import OPTIMIZE, QUIET, TINY, binarize, write_reversal_corpus
from tests.soak.cases import Case
from tests.soak.materials import PLUGIN, Materials
from tests.watched_trainer import COMBINED, WITH_MASKS

NUMBER, FIRST, GROWTH = 5000, 500, 0.02  # updates and sentences; the beginning; the share that may be added
BATCH = 10  # sentences that are translated together
LIMIT = 3600.0  # seconds
# Runs a command of fairseq, and tells its memory in KiB after every fiftieth call of a function.
WATCHED = """
import pkgutil, re, sys
import modular_fairseq
command, target = sys.argv[1:3]
del sys.argv[1:3]
owner, _, name = target.rpartition(".")
owner, calls = pkgutil.resolve_name(owner), 0
plain = getattr(owner, name)
def watched(*args, **kwargs):
    global calls
    result = plain(*args, **kwargs)
    calls += 1
    if calls % 50 == 0:
        status = open("/proc/self/status", encoding="utf-8").read()
        print("MEMORY", calls, re.search(r"VmRSS:\\s+(\\d+)", status)[1], file=sys.stderr, flush=True)
    return result
setattr(owner, name, watched)
pkgutil.resolve_name(command)()
"""
MODELS = {
    "modular_transformer": "--arch modular_transformer",
    "mae_transformer": "--arch mae_transformer --mae-gate-interval 5",
    "dma_transformer": "--arch dma_transformer --criterion modular_cross_entropy",
    "tim_transformer": "--arch tim_transformer --tim-layers all",
    "experts, streams and TIM": f"--arch mae_transformer --mae-gate-interval 5 {COMBINED}",
    "experts and masks": f"--arch mae_transformer --mae-gate-interval 5 {WITH_MASKS}",
}


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield trainings, each of which is followed by a translation with its model."""
    names = [*MODELS]
    for number in range(count):
        name = names[number // 2 % len(names)]
        if number % 2 == 0:
            yield Case(f"{number} {NUMBER} updates of {name}", _training(materials, name))
        else:
            yield Case(f"{number} {NUMBER} translations by {name}", _translation(materials, name))


def _training(materials: Materials, name: str):
    def run(folder: Path) -> str:
        place = _corpus(materials)
        shutil.rmtree(place / name, ignore_errors=True)
        options = [*TINY, *OPTIMIZE, *QUIET, *PLUGIN, *MODELS[name].split()]
        options += ["--max-update", NUMBER, "--max-epoch", "1000", "--no-epoch-checkpoints"]
        options += ["--save-interval", "10", "--save-dir", place / name]
        return _grows(
            materials, ["fairseq_cli.train.cli_main", "fairseq.trainer.Trainer.train_step"], 1, options, place
        )

    return run


def _translation(materials: Materials, name: str):
    def run(folder: Path) -> str:
        place = _corpus(materials)
        step = "fairseq.tasks.fairseq_task.FairseqTask.inference_step"
        # fairseq-generate sorts all sentences by their length, so its memory would grow with the length.
        options = ["--input", place / "text/train.de", "--buffer-size", BATCH, "--batch-size", BATCH]
        options += ["--path", place / name / "checkpoint_last.pt", "--beam", "4", *PLUGIN]
        return _grows(materials, ["fairseq_cli.interactive.cli_main", step], BATCH, options, place)

    return run


def _corpus(materials: Materials) -> Path:
    """Return the folder of a corpus of `NUMBER` sentences, which is made if it is not there."""
    place = materials.folder / "memory"
    if not (place / "bin/dict.de.txt").exists():
        (place / "text").mkdir(parents=True, exist_ok=True)
        write_reversal_corpus(place / "text", train_pairs=NUMBER)
        binarize(place / "text", place / "bin")
    return place


def _grows(materials: Materials, watched: list[str], each: int, options: list, place: Path) -> str:
    """Run a command, and return by how much its memory grows after the beginning if this is too much.

    Args:
        materials: for the environment and the interpreter.
        watched: the dotted names of the command and of the function whose calls are counted.
        each: how many updates or sentences a call stands for.
        options: of the command, after the folder of data.
        place: the folder with the data.
    """
    words = [materials.python, "-c", WATCHED, *watched, place / "bin", *options]
    done = subprocess.run(
        list(map(str, words)), env=materials.environment, capture_output=True, text=True, timeout=LIMIT
    )
    if done.returncode:
        return f"ends with status {done.returncode}: {done.stderr[-300:]}"
    found = {int(calls) * each: int(size) for calls, size in re.findall(r"MEMORY (\d+) (\d+)", done.stderr)}
    if max(found, default=0) < NUMBER:
        return f"ends after {max(found, default=0)}"
    growth = found[max(found)] / found[FIRST] - 1
    print(
        f"{found[FIRST] / 1024:.0f} MiB after {FIRST}, {100 * growth:+.2f} % after {max(found)}", flush=True
    )
    return f"grows by {100 * growth:.1f} % after {FIRST}" if growth > GROWTH else ""
