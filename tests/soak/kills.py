"""Kill commands at random moments, start them again, and compare the result with an uninterrupted one."""

import hashlib
import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.ablations import TWO_YAML
from tests.soak.cases import Case
from tests.soak.materials import Materials

LIMIT = 300.0  # seconds for a command that is not killed
# Values in JSON files of results that depend on the time, the place or the bytes of a checkpoint.
PASSING = ("checkpoint", "path", "seconds", "time", "version", "command")


class Scenario(NamedTuple):
    """A command that is killed.

    Args:
        words: its words; the folder {} is replaced by the folder of the case.
        results: patterns of the files that it makes, in the folder of the case.
    """

    words: list[str]
    results: list[str]


def scenarios(materials: Materials) -> dict[str, Scenario]:
    """Return the scenarios by name."""
    data, ours = str(materials.folder / "bin"), materials.ours
    model = [data, "--path", str(materials.checkpoint)]
    experts = [
        "--arch",
        "mae_transformer",
        "--mae-gate-interval",
        "2",
        "--max-epoch",
        "6",
        "--keep-last-epochs",
        "2",
    ]
    table = [
        "table",
        str(materials.folder / "configs/mine/table.yaml"),
        "--data",
        str(materials.folder / "data"),
    ]
    options = materials.train[materials.train.index(data) + 1 : materials.train.index("--user-dir")]
    sizes = [word for word in options if not word.startswith("--dropout")]
    languages = ["--source-lang", "de", "--target-lang", "en", "--bpe-merges", "50", "--workers", "1"]
    return {
        "train": Scenario([*materials.train, *experts, "--save-dir", "{}/run"], ["run/*.pt"]),
        "table": Scenario(
            [*ours, *table, "--out", "{}/out", "--run", "--only", "experts", "--only", "gates"],
            ["out/**/averaged.pt", "out/**/checkpoint_best.pt", "out/**/t*.json", "out/**/table.tsv"],
        ),
        "ablate": Scenario(
            [
                *(
                    *ours,
                    "ablate",
                    data,
                    "--out",
                    "{}/out",
                    "--mechanisms",
                    str(materials.folder / "two.yaml"),
                    "--",
                ),
                *("--arch", "modular_transformer", "--max-epoch", "3", *_without(sizes, "--dropout")),
            ],
            ["out/*/result.json", "out/table.tsv", "out/**/checkpoint_best.pt"],
        ),
        "generate": Scenario(
            [
                materials.python,
                "-m",
                "fairseq_cli.generate",
                *model,
                *materials.train[-2:],
                "--results-path",
                "{}/out",
            ],
            ["out/generate-test.txt"],
        ),
        "analyze": Scenario(
            [*ours, "analyze", "all", *model, "--gen-subset", "valid", "--out", "{}/out"], ["out/**/*.json"]
        ),
        "average": Scenario(
            [
                *(
                    *ours,
                    "average",
                    "--inputs",
                    str(materials.folder / "mae"),
                    "--num-epoch-checkpoints",
                    "3",
                ),
                *("--output", "{}/average.pt"),
            ],
            ["average.pt"],
        ),
        "subset": Scenario(
            [*ours, "subset", data, "--percent", "10", "50", "--out", "{}/out"],
            ["out/**/*.bin", "out/**/*.idx"],
        ),
        "prepare": Scenario(
            [*ours, "prepare", "raw", str(materials.folder / "text"), *languages, "--out", "{}/out"],
            ["out/**/*"],
        ),
    }


def _without(words: list[str], option: str) -> list[str]:
    """Return words of a command line without an option and its value."""
    place = words.index(option) if option in words else len(words)
    return [*words[:place], *words[place + 2 :]]


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield kills: half of them of trainings and tables."""
    (materials.folder / "two.yaml").write_text(TWO_YAML)
    data = materials.folder / "data/toy.de-en"
    if not data.exists():
        data.mkdir(parents=True)
        (data / "bin").symlink_to(materials.folder / "bin")
        (data / "raw").symlink_to(materials.folder / "text")
    rng = random.Random(seed)
    known = scenarios(materials)
    weighted = ["train"] * 5 + ["table"] * 3 + ["ablate"] * 2 + [*known]
    for number in range(count):
        name = weighted[number % len(weighted)]
        yield _case(materials, number, name, known[name], random.Random(rng.random()))


def _case(materials: Materials, number: int, name: str, scenario: Scenario, rng: random.Random) -> Case:
    moments = [rng.random() for _ in range(rng.choice([1, 1, 2, 3]))]
    group = rng.random() < 0.5

    def run(folder: Path) -> str:
        expected, seconds = uninterrupted(materials, name)
        words = [word.replace("{}", str(folder)) for word in scenario.words]
        for moment in moments:
            process = _start(words, materials)
            time.sleep(moment * seconds)
            os.killpg(process.pid, signal.SIGKILL) if group else process.kill()
            process.wait()
            if left := _alive(folder):
                return f"a process lives on after the kill: {left[:200]}"
        ended, said = _finish(words, materials)
        if ended:
            return f"fails after {len(moments)} kills: {said}"
        found = snapshot(folder, scenario.results)
        differ = [file for file in {**expected, **found} if expected.get(file) != found.get(file)]
        left = [file.name for file in folder.rglob("*") if ".tmp" in file.name or ".part" in file.name]
        if differ:
            return f"{', '.join(differ[:3])} differ after {len(moments)} kills"
        return f"leaves {', '.join(left[:3])}" if left else ""

    shown = ", ".join(f"{100 * moment:.0f} %" for moment in moments)
    return Case(f"{number} {name} at {shown}{' with its group' if group else ''}", run)


def uninterrupted(materials: Materials, name: str) -> tuple[dict[str, str], float]:
    """Return the results of a scenario that is not killed, and the seconds that it takes."""
    folder = materials.folder / "uninterrupted" / name
    kept = folder / "expected.json"
    if not kept.exists():
        scenario = scenarios(materials)[name]
        folder.mkdir(parents=True, exist_ok=True)
        began = time.monotonic()
        status, said = _finish([word.replace("{}", str(folder)) for word in scenario.words], materials)
        assert status == 0, said
        found = snapshot(folder, scenario.results)
        assert found, f"{name} makes no results"
        kept.write_text(json.dumps([found, time.monotonic() - began]))
    found, seconds = json.loads(kept.read_text())
    return found, seconds


def snapshot(folder: Path, patterns: list[str]) -> dict[str, str]:
    """Return digests of what files mean: of weights in checkpoints, lasting values in JSON, else of bytes."""
    paths = {path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}
    kept = {path for path in paths if path.name not in (".lock", "expected.json") and path.suffix != ".log"}
    return {str(path.relative_to(folder)): _digest(path, folder) for path in sorted(kept)}


def _digest(path: Path, folder: Path) -> str:
    if path.suffix == ".pt":
        state = load_checkpoint(path)
        found: list[Any] = [
            state["model"],
            state.get("last_optimizer_state"),
            state["optimizer_history"][-1]["num_updates"],
        ]
        return hashlib.sha256(_bytes(found)).hexdigest()
    data = path.read_bytes()
    if path.suffix == ".json":
        data = json.dumps(_lasting(json.loads(data)), sort_keys=True).encode()
    return hashlib.sha256(data.replace(str(folder).encode(), b"")).hexdigest()


def _bytes(value: Any) -> bytes:
    """Return bytes that two values share if they are equal bit for bit."""
    if isinstance(value, torch.Tensor):
        return (
            repr((value.dtype, value.shape)).encode() + value.contiguous().view(torch.uint8).numpy().tobytes()
            if value.dim()
            else repr(value.item()).encode()
        )
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


def _start(words: list[str], materials: Materials) -> subprocess.Popen:
    nothing = subprocess.DEVNULL
    return subprocess.Popen(
        words,
        env=materials.environment,
        stdin=nothing,
        stdout=nothing,
        stderr=nothing,
        start_new_session=True,
    )


def _finish(words: list[str], materials: Materials) -> tuple[int, str]:
    """Run a command to its end, and return its status and its last line."""
    try:
        done = subprocess.run(words, env=materials.environment, capture_output=True, text=True, timeout=LIMIT)
    except subprocess.TimeoutExpired:
        return 1, f"hangs for more than {LIMIT:g} s"
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    return done.returncode, lines[-1][:300] if lines else ""


def _alive(folder: Path) -> str:
    """Return the command line of a process that works in a folder two seconds from now, or ""."""
    end = time.monotonic() + 2
    while True:
        shown = subprocess.run(["ps", "-eww", "-o", "pid=,args="], capture_output=True, text=True).stdout
        found = next(
            (line for line in shown.splitlines() if str(folder) in line and "ps -eww" not in line), ""
        )
        if not found or time.monotonic() > end:
            return found
        time.sleep(0.1)
