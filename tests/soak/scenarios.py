"""Commands that are interrupted, started again, and compared with an uninterrupted one."""

import hashlib
import json
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.fairseq_commands import OPTIMIZE, TINY
from tests.soak.cases import last_line, left_over
from tests.soak.materials import Materials

LIMIT = 300.0  # seconds for a command that is not interrupted
LOADED = "Loaded checkpoint"  # what a training logs that goes on
# Values in JSON files of results that depend on the time, the place or the bytes of a checkpoint.
PASSING = ("checkpoint", "path", "seconds", "time", "version", "command")


class Scenario(NamedTuple):
    """A command that is interrupted.

    Args:
        words: its words; the folder {} is replaced by the folder of the case.
        results: patterns of the files that it makes, in the folder of the case.
    """

    words: list[str]
    results: list[str]


def scenarios(materials: Materials) -> dict[str, Scenario]:
    """Return the scenarios by name."""
    place, ours = materials.folder, materials.ours
    data, model = f"{place}/bin", f"{place}/bin --path {materials.checkpoint}"
    sizes = [*TINY, *OPTIMIZE]
    for name in ("--dropout", "--encoder-attention-heads"):  # the mechanisms of two.yaml set them
        del sizes[sizes.index(name) : sizes.index(name) + 2]
    ablated = ["--arch", "modular_transformer", "--max-epoch", "3", *sizes]

    def of(words: str) -> list[str]:
        return [*ours, *words.split()]

    table = f"table {place}/configs/mine/table.yaml --data {place}/data --out {{}}/out"
    experts = "--arch mae_transformer --mae-gate-interval 2 --max-epoch 6 --keep-last-epochs 2"
    languages = "--source-lang de --target-lang en --bpe-merges 50 --workers 1"
    generate = [materials.python, "-m", "fairseq_cli.generate", *model.split(), *materials.train[-2:]]
    return {
        "train": Scenario([*materials.train, *experts.split(), "--save-dir", "{}/run"], ["run/*.pt"]),
        "table": Scenario(
            of(f"{table} --run --only experts --only gates"),
            ["out/**/averaged.pt", "out/**/checkpoint_best.pt", "out/**/t*.json", "out/**/table.tsv"],
        ),
        "ablate": Scenario(
            [*of(f"ablate {data} --out {{}}/out --mechanisms {place}/two.yaml --"), *ablated],
            ["out/*/result.json", "out/table.tsv", "out/**/checkpoint_best.pt"],
        ),
        "generate": Scenario([*generate, "--results-path", "{}/out"], ["out/generate-test.txt"]),
        "analyze": Scenario(of(f"analyze all {model} --gen-subset valid --out {{}}/out"), ["out/**/*.json"]),
        "average": Scenario(
            of(f"average --inputs {place}/mae --num-epoch-checkpoints 3 --output {{}}/average.pt"),
            ["average.pt"],
        ),
        "subset": Scenario(
            of(f"subset {data} --percent 10 50 --out {{}}/out"), ["out/**/*.bin", "out/**/*.idx"]
        ),
        "prepare": Scenario(of(f"prepare raw {place}/text {languages} --out {{}}/out"), ["out/**/*"]),
    }


def start(words: list[str], materials: Materials, **options: Any) -> subprocess.Popen:
    """Start a command in a session of its own; `options` are those of `subprocess.Popen`."""
    nothing = subprocess.DEVNULL
    streams = {"stdin": nothing, "stdout": nothing, "stderr": nothing, "start_new_session": True}
    return subprocess.Popen(words, env=materials.environment, **{**streams, **options})


def words_of(materials: Materials, name: str, folder: Path) -> list[str]:
    """Return the words of a scenario in a folder."""
    return [word.replace("{}", str(folder)) for word in scenarios(materials)[name].words]


def wrong_after(materials: Materials, name: str, folder: Path) -> str:
    """Start an interrupted scenario again, and return what is wrong with its end or its results, or ""."""
    expected, _ = uninterrupted(materials, name)
    goes_on = (folder / "run/checkpoint_last.pt").exists()  # of the scenario train
    status, output = _finish(words_of(materials, name, folder), materials)
    if status:
        return f"fails when it is started again: {last_line(output)}"
    if goes_on and LOADED not in output:  # it would end with the same weights, as it has the same seed
        return "starts from the beginning"
    found = snapshot(folder, scenarios(materials)[name].results)
    if differ := [file for file in {**expected, **found} if expected.get(file) != found.get(file)]:
        return f"{', '.join(differ[:3])} differ"
    return left_over(folder)


def uninterrupted(materials: Materials, name: str) -> tuple[dict[str, str], float]:
    """Return the results of a scenario that is not interrupted, and the seconds that it takes."""
    folder = materials.folder / "uninterrupted" / name
    kept = folder / "expected.json"
    if not kept.exists():
        with made_whole(folder) as part:
            began = time.monotonic()
            status, output = _finish(words_of(materials, name, part), materials)
            assert status == 0, last_line(output)
            found = snapshot(part, scenarios(materials)[name].results)
            assert found, f"{name} makes no results"
            (part / kept.name).write_text(json.dumps([found, time.monotonic() - began]))
    found, seconds = json.loads(kept.read_text())
    return found, seconds


@contextmanager
def made_whole(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that becomes `folder` at the end, so that a kill leaves no part of it."""
    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    yield part
    part.rename(folder)


def snapshot(folder: Path, patterns: list[str]) -> dict[str, str]:
    """Return digests of what files mean: of weights in checkpoints, lasting values in JSON, else of bytes."""
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    kept = {path for path in paths if path.name not in (".lock", "expected.json") and path.suffix != ".log"}
    return {str(path.relative_to(folder)): _digest(path, folder) for path in sorted(kept)}


def _digest(path: Path, folder: Path) -> str:
    if path.suffix == ".pt":
        state = load_checkpoint(path)
        updates = state["optimizer_history"][-1]["num_updates"]
        content = [state["model"], state.get("last_optimizer_state"), updates]
        return hashlib.sha256(_bytes(content)).hexdigest()
    data = path.read_bytes()
    if path.suffix == ".json":
        data = json.dumps(_lasting(json.loads(data)), sort_keys=True).encode()
    return hashlib.sha256(data.replace(str(folder).encode(), b"")).hexdigest()


def _bytes(value: Any) -> bytes:
    """Return bytes that two values share if they are equal bit for bit."""
    if isinstance(value, torch.Tensor):
        numbers = value.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        return repr((value.dtype, value.shape)).encode() + numbers
    if isinstance(value, dict):
        return b"".join(repr(key).encode() + _bytes(each) for key, each in value.items())
    if isinstance(value, list | tuple):
        return b"".join(map(_bytes, value))
    return repr(value).encode()


def _lasting(value: Any) -> Any:
    if isinstance(value, dict):
        return {
            key: _lasting(each) for key, each in value.items() if not any(word in key for word in PASSING)
        }
    return [_lasting(each) for each in value] if isinstance(value, list) else value


def _finish(words: list[str], materials: Materials) -> tuple[int, str]:
    """Run a command to its end, and return its status and its output."""
    try:
        done = subprocess.run(words, env=materials.environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return 1, f"hangs for more than {LIMIT:g} s"
    return done.returncode, done.stdout + done.stderr
