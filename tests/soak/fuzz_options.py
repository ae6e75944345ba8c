"""Give each option of this project values at, below and beyond its limits, and of other types."""

import argparse
import importlib
import os
import random
import shutil
from collections.abc import Callable, Hashable, Iterator
from dataclasses import MISSING, Field, fields
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

from modular_fairseq.models.options import FAMILIES, flag
from modular_fairseq.models.registry import CRITERIA, MECHANISMS
from modular_fairseq.optim.torch_adam import TorchAdamConfig
from modular_fairseq_cli.main import COMMANDS
from tests.ablations import BASE
from tests.fake_slurm import write_programs
from tests.places import ROOT
from tests.soak.cases import Case, Ended, call, copied, judged, last_line, left_over
from tests.soak.materials import PICTURES, Materials

NUMBERS = [
    "-1",
    "0",
    "1",
    "2",
    "3",
    "0.5",
    "1.5",
    "-0.5",
    "1e9",
    "-1e9",
    "nan",
    "inf",
    "1e-30",
    "99999999999999",
]
SMALL = ["-1", "0", "1", "2", "0.5", "-0.5", "nan", "inf"]  # for commands that would work for hours at others
SLOW = ("bench", "score", "toy-corpus")
NOT_CALLED = ("check-gpu", "demo", "train-and-score", "prepare")  # they take minutes or a network
WORDS = ["", "x", "1,2", "ü", "../..", "None", "[1]", "{}", "true", "a b", "%s", "\\", "-"]
BENCH = (
    "--rounds 1 --sentences 2 --length 4 --search-sentences 2 --steps 2 --source-types 50 --target-types 50"
)
NOISE = "no ratio is reported"  # what bench says if the machine has other work
# Trainings by name. An option that starts with one of these names is tried in the training of that name.
MODELS = {
    "mae": ["--arch", "modular_transformer", "--attention-type", "mae"],
    "dma": ["--arch", "dma_transformer", "--criterion", "modular_cross_entropy"],
    "stream": ["--arch", "modular_transformer", "--streams", "2", "--encoder-layers", "4"],
    "tim": ["--arch", "modular_transformer", "--tim-layers", "all"],
    "plain": ["--arch", "modular_transformer"],
    "torch_adam": ["--arch", "modular_transformer", "--optimizer", "torch_adam"],
    "modular_cross_entropy": ["--arch", "dma_transformer", "--criterion", "modular_cross_entropy"],
    "modular_masked_lm": ["--arch", "dma_roberta", "--criterion", "modular_masked_lm"],
}
OF_JOBS = ("--gpus", "--hours", "--partition", "--account", "--resources")


def values(kind: Any, default: Any) -> list[str]:
    """Return values for an option of a type."""
    choices = [each.value for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    near = []
    if isinstance(default, int | float) and not isinstance(default, bool):
        near = [str(default), str(default + 1), str(default - 1), str(-default), str(default * 1000)]
    return [*dict.fromkeys([*choices, *near, *NUMBERS, *WORDS])]


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield cases: two thirds are options of trainings, one third options of commands.

    An option is added to a training or a command that succeeds without it. One that fails without the option
    would fail with every value, and `judged` accepts a failure that has a sentence.
    """
    rng = random.Random(seed)
    trainings, commands = list(_of_training()), list(_of_commands())
    for number in range(count):
        base, value = rng.choice(trainings if number % 3 else commands)
        make, option = _training if number % 3 else _command, value.partition("=")[0]
        key = (make, base, option in OF_JOBS)
        yield _case(f"{number} {base} {value}", key, partial(make, materials, base, option), value)


def _of_training() -> Iterator[tuple[str, str]]:
    """Yield the name of a training in `MODELS`, and an option with its value."""
    for f in fields(FAMILIES["modular_transformer"]):
        ours = [each.name for each in MECHANISMS.values() if f.name in each.option_names]
        if not ours and f.name not in ("attention_type", "compile", "no_residual", "attention_head_dim"):
            continue
        start = next((model for model in MODELS if f.name.startswith(model)), "plain")
        for model in (start, "plain"):
            yield from ((model, option) for option in _options_of(f))
    for name, options in (*CRITERIA.items(), ("torch_adam", TorchAdamConfig)):
        yield from ((name, option) for f in fields(options) for option in _options_of(f))


def _options_of(f: Field) -> Iterator[str]:
    """Yield the option of a field with each of its values."""
    for value in values(f.type, None if f.default is MISSING else f.default):
        yield f"{flag(f.name)}={value}"


def _of_commands() -> Iterator[tuple[str, str]]:
    """Yield the name of a command of modular-fairseq, and an option with its value."""
    for command, (module, _) in COMMANDS.items():
        if command in NOT_CALLED:
            continue
        parser = argparse.ArgumentParser(prog=command)
        importlib.import_module(module).add_arguments(parser)
        for action in parser._actions:
            for option in action.option_strings[:1]:
                if option in ("-h", "--launcher", "--run"):
                    continue
                for value in [*(SMALL if command in SLOW else NUMBERS), *WORDS]:
                    yield command, f"{option}={value}"


_succeeds: dict[Hashable, str] = {}  # for each call without an option, what is wrong with it, or ""


def _case(name: str, key: Hashable, call_with: Callable[[Path, list[str]], Ended], option: str) -> Case:
    """Make the case that adds an option to a call.

    Args:
        name: its name.
        key: identifies the call without the option, which is made once in this process.
        call_with: makes the call in an empty folder, with further options.
        option: the option.
    """

    def run(folder: Path) -> str:
        if key not in _succeeds:
            (folder / "without").mkdir()
            ended = call_with(folder / "without", [])
            last = last_line(ended.err)
            fails = ended.status and NOISE not in last
            _succeeds[key] = f"has status {ended.status} without the option ({last})" if fails else ""
            shutil.rmtree(folder / "without")
        (folder / "with").mkdir()
        return _succeeds[key] or judged(call_with(folder / "with", [option])) or left_over(folder)

    return Case(name, run)


def _training(materials: Materials, model: str, _: str, folder: Path, options: list[str]) -> Ended:
    """Train a model of `MODELS` for an update."""
    words = materials.train_masked if model == "modular_masked_lm" else materials.train
    short = ["--max-update", "1", "--disable-validation", "--save-dir", folder / "run"]
    return call([*words, *MODELS[model], *options, *short], folder, materials.environment)


def _command(materials: Materials, command: str, option: str, folder: Path, options: list[str]) -> Ended:
    """Call a command of modular-fairseq, with a pretended Slurm if `option` is about jobs."""
    jobs = command in ("table", "ablate") and option in OF_JOBS
    start = ["--launcher", "slurm"] if jobs else ["--dry-run"]
    arguments: list[object] = {
        "table": [
            *(materials.folder / "configs/mine/table.yaml", "--data", materials.folder / "data"),
            *("--out", folder / "out", *(["--run"] if jobs else []), *start),
        ],
        "analyze": ["gates", materials.folder / "bin", "--path", materials.checkpoint, "--out", "inside"],
        "average": ["--inputs", materials.checkpoint, "--output", "average.pt"],
        "report": [materials.folder / "inside", "--out", "report.html"],
        "curves": ["--system", "a", materials.folder / "train.log", "--out", "curves"],
        "score": ["--reference", materials.folder / "text/test.en", materials.folder / "text/test.de"],
        "subset": [materials.folder / "bin", "--percent", "50", "--out", "subset"],
        "bench": ["modular_transformer_tiny_cpu", *BENCH.split()],
        "toy-corpus": ["toy", "--train", "20", "--valid", "5", "--test", "5"],
        "ablate": [materials.folder / "bin", "--out", "ablation", *start],
        "evidence": [folder / "results/claims.yaml"],
        "export": [
            *(materials.folder / "bin", "--path", materials.checkpoint, "--out", "exported"),
            *("--to", "ctranslate2", "--gates", "mean"),
        ],
        "draw": [
            *(materials.folder / "pixels/bin", "--path", materials.folder / "pixels-lm/checkpoint_last.pt"),
            *("--out", "drawn.png", "--count", "2"),
        ],
        "predict": [
            *(materials.folder / "masked", "--path", materials.folder / "masked-lm/checkpoint_last.pt"),
            *("--out", "predicted"),
        ],
        "prepare-pixels": [materials.folder / "pictures.npz", "--out", "pixels", *PICTURES],
        "patches": [],
        "user-dir": [],
    }[command]
    after = ["--", *BASE] if command == "ablate" else []
    environment = dict(materials.environment)
    if command == "evidence":
        copied(ROOT / "results", folder / "results")
        (folder / "configs").symlink_to(ROOT / "configs")
    if jobs:
        write_programs(folder / "programs", folder / "slurm")
        environment["PATH"] = f"{folder / 'programs'}{os.pathsep}{environment['PATH']}"
    return call([*materials.ours, command, *arguments, *options, *after], folder, environment)
