"""Several workers train one model: they stay the same, lose one of them, and have no data for some."""

import random
import time
from collections.abc import Iterator
from pathlib import Path

from tests.gloo_workers import Workers
from tests.soak.cases import SECONDS, Case, Ended, judged
from tests.soak.materials import Materials
from tests.soak.scenarios import LOADED, made_whole, snapshot
from tests.watched_trainer import COMBINED, WITH_MASKS

UPDATES, EVERY = 1000, 50
LIMIT = 1800.0  # seconds for a training that nothing happens to
EXPERTS = ["--user-dir", "modular_fairseq", "--arch", "mae_transformer"]
GATES = ["--mae-gate-interval", "2"]
# With c10d and four workers, a continued training is equal with this option only.
EXACT = ["--ddp-backend", "c10d", "--find-unused-parameters"]
MODELS = {
    "experts": [*GATES, *EXACT],
    "experts, legacy_ddp, --update-freq 2": [*GATES, "--ddp-backend", "legacy_ddp", "--update-freq", "2"],
    "experts, streams and TIM": [*GATES, "--ddp-backend", "c10d", *COMBINED.split()],
    "experts and masks": [*GATES, "--ddp-backend", "c10d", *WITH_MASKS.split()],
    "experts, joint training": ["--mae-training", "joint", "--ddp-backend", "c10d"],
}


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield `count` cases: long trainings, workers without data and lost workers, in turn."""
    rng = random.Random(seed)
    made = zip(_losses(materials, rng), _alternating(materials), strict=False)
    for number, case in zip(range(count), (case for pair in made for case in pair), strict=False):
        yield case._replace(name=f"{number} {case.name}")


def _alternating(materials: Materials) -> Iterator[Case]:
    """Yield trainings of 2 and 4 workers of each model, and trainings in which workers have few batches."""
    for name, options in MODELS.items():
        for number in (2, 4):
            long = [*options, "--max-update", str(UPDATES), "--no-epoch-checkpoints"]
            yield _equal(materials, f"{number} workers, {UPDATES} updates of {name}", number, long, EVERY)
            for batch in (7, 24, 60):
                few = [*options, "--max-epoch", "10", "--no-save", "--max-tokens", "1000"]
                few += ["--batch-size", str(batch), "--required-batch-size-multiple", "1"]
                title = f"{number} workers, 60 sentences in batches of {batch}, {name}"
                yield _equal(materials, title, number, few, 1)


def _equal(materials: Materials, title: str, number: int, options: list[str], every: int) -> Case:
    """Return a training after whose updates all workers must have the same parameters and buffers."""

    def run(folder: Path) -> str:
        words = [*EXPERTS, *options, "--disable-validation"]
        workers = Workers(materials.folder / "bin", folder, *words, number=number, every=every)
        statuses, found = workers.finish(LIMIT), workers.states()
        if any(statuses):
            return f"the workers end with {statuses}: {workers.outputs()[0][-300:]}"
        if not found[0] or len(set(found[0])) != len(found[0]):
            return "the model does not change"
        return "" if all(each == found[0] for each in found) else "the workers' models differ"

    return Case(title, run)


def _losses(materials: Materials, rng: random.Random) -> Iterator[Case]:
    """Yield trainings that lose a worker, without an end."""
    while True:
        for name in ("experts", "experts, legacy_ddp, --update-freq 2"):
            for number in (2, 4):
                lost, moment = rng.randrange(number), rng.uniform(0, 0.95)
                yield _loss(materials, name, number, lost, moment)


def _loss(materials: Materials, name: str, number: int, lost: int, moment: float) -> Case:
    """Return a training in which one worker is killed. All others must end, and the training continue."""

    def train(folder: Path) -> Workers:
        words = [*EXPERTS, *MODELS[name], "--max-epoch", "12", "--keep-last-epochs", "2"]
        return Workers(materials.folder / "bin", folder, *words, number=number)

    def run(folder: Path) -> str:
        expected = materials.folder / "uninterrupted" / f"{number} workers, {name}"
        kept = expected / "updates"
        if not kept.exists():
            with made_whole(expected) as part:
                workers = train(part)
                assert not any(workers.finish(LIMIT)), workers.outputs()[0][-300:]
                (part / kept.name).write_text(str(len(workers.states()[0])))
        last = moment * int(kept.read_text())
        workers = train(folder)
        while len(workers.states()[lost]) < last and workers.processes[lost].poll() is None:
            time.sleep(0.01)
        workers.processes[lost].kill()
        began = time.monotonic()
        statuses = workers.finish(LIMIT)
        if (seconds := time.monotonic() - began) > SECONDS:
            return f"the others end after {seconds:.0f} s"
        for rank, (status, output) in enumerate(zip(statuses, workers.outputs(), strict=True)):
            if rank != lost and (wrong := judged(Ended(status, "", output))):
                return f"worker {rank} {wrong}"
        goes_on = (folder / "checkpoint_last.pt").exists()
        workers = train(folder)
        if any(workers.finish(LIMIT)):
            return f"does not continue: {workers.outputs()[0][-300:]}"
        if goes_on and LOADED not in workers.outputs()[0]:
            return "starts from the beginning"
        same = snapshot(folder, ["*.pt"]) == snapshot(expected, ["*.pt"])
        return "" if same else "the checkpoints differ"

    return Case(f"{number} workers of {name}, worker {lost} is killed at {100 * moment:.0f} %", run)
