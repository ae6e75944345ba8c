"""Give each option of this project values at, below and beyond its limits, and of other types."""

import argparse
import importlib
import os
import random
from collections.abc import Iterator
from dataclasses import MISSING, fields
from enum import Enum
from pathlib import Path
from typing import Any

from modular_fairseq.models.options import FAMILIES, flag
from modular_fairseq.models.registry import CRITERIA, MECHANISMS
from modular_fairseq.optim.torch_adam import TorchAdamConfig
from modular_fairseq_cli.main import COMMANDS
from tests.fake_slurm import write_programs
from tests.places import ROOT
from tests.soak.cases import Case, call, copied, judged, left_over
from tests.soak.materials import Materials

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
SLOW = ("bench", "check-gpu", "score", "toy-corpus")
NOT_CALLED = ("demo", "train-and-score", "prepare")  # they take minutes or a network
WORDS = ["", "x", "1,2", "ü", "../..", "None", "[1]", "{}", "true", "a b", "%s", "\\", "-"]
BENCH = (
    "--rounds 1 --sentences 2 --length 4 --search-sentences 2 --steps 2 --source-types 50 --target-types 50"
)
CHECK = "--device cpu --no-demo --rounds 1 --sentences 2 --length 4 --updates 2"
# The model in which an option may have an effect, by the start of its name.
MODELS = {
    "mae": ["--attention-type", "mae"],
    "dma": ["--attention-type", "dma"],
    "stream": ["--streams", "2", "--encoder-layers", "3"],
    "tim": ["--tim-layers", "all"],
}
PLAIN: list[str] = []
OF_JOBS = ("--gpus", "--hours", "--partition", "--account", "--resources")


def values(kind: Any, default: Any) -> list[str]:
    """Return values for an option of a type."""
    choices = [each.value for each in kind] if isinstance(kind, type) and issubclass(kind, Enum) else []
    near = []
    if isinstance(default, int | float) and not isinstance(default, bool):
        near = [str(default), str(default + 1), str(default - 1), str(-default), str(default * 1000)]
    return [*dict.fromkeys([*choices, *near, *NUMBERS, *WORDS])]


def cases(materials: Materials, seed: int, count: int) -> Iterator[Case]:
    """Yield cases: two thirds are options of trainings, one third options of commands."""
    rng = random.Random(seed)
    trainings, commands = list(_of_training()), list(_of_commands())
    for number in range(count):
        if number % 3:
            name, words = rng.choice(trainings)
            yield _training(materials, f"{number} {name}", words)
        else:
            name, words = rng.choice(commands)
            yield _command(materials, f"{number} {name}", words)


def _of_training() -> Iterator[tuple[str, list[str]]]:
    """Yield a name and the options of each training."""
    for f in fields(FAMILIES["modular_transformer"]):
        ours = [each.name for each in MECHANISMS.values() if f.name in each.option_names]
        if not ours and f.name not in ("attention_type", "compile", "no_residual", "attention_head_dim"):
            continue
        start = next((model for name, model in MODELS.items() if f.name.startswith(name)), PLAIN)
        for model in (start, PLAIN):
            for value in values(f.type, None if f.default is MISSING else f.default):
                yield (
                    f"{flag(f.name)}={value}",
                    ["--arch", "modular_transformer", *model, f"{flag(f.name)}={value}"],
                )
    for criterion, options in CRITERIA.items():
        for f in fields(options):
            for value in values(f.type, None if f.default is MISSING else f.default):
                words = ["--arch", "dma_transformer", "--criterion", criterion, f"{flag(f.name)}={value}"]
                yield f"{criterion} {flag(f.name)}={value}", words
    for f in fields(TorchAdamConfig):
        for value in values(f.type, None if f.default is MISSING else f.default):
            words = ["--arch", "modular_transformer", "--optimizer", "torch_adam", f"{flag(f.name)}={value}"]
            yield f"torch_adam {flag(f.name)}={value}", words


def _of_commands() -> Iterator[tuple[str, list[str]]]:
    """Yield a name and the words of each command of modular-fairseq."""
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
                    yield f"{command} {option}={value}", [command, f"{option}={value}"]


def _training(materials: Materials, name: str, words: list[str]) -> Case:
    def run(folder: Path) -> str:
        short = ["--max-update", "1", "--disable-validation", "--save-dir", folder / "run"]
        ended = call([*materials.train, *words, *short], folder, materials.environment)
        return judged(ended) or _left(folder)

    return Case(name, run)


def _command(materials: Materials, name: str, words: list[str]) -> Case:
    command, option = words

    def run(folder: Path) -> str:
        arguments = {
            "table": [
                *(materials.folder / "configs/mine/table.yaml", "--data", materials.folder / "data"),
                *("--out", folder / "out", "--dry-run"),
            ],
            "analyze": ["gates", materials.folder / "bin", "--path", materials.checkpoint, "--out", "inside"],
            "average": ["--inputs", materials.checkpoint, "--output", "average.pt"],
            "report": [materials.folder / "inside", "--out", "report.html"],
            "curves": ["--system", "a", materials.folder / "train.log", "--out", "curves"],
            "score": ["--reference", materials.folder / "text/test.en", materials.folder / "text/test.de"],
            "subset": [materials.folder / "bin", "--percent", "50", "--out", "subset"],
            "bench": ["modular_transformer_tiny_cpu", *BENCH.split()],
            "check-gpu": ["modular_transformer_tiny_cpu", *CHECK.split()],
            "toy-corpus": ["toy", "--train", "20", "--valid", "5", "--test", "5"],
            "ablate": [materials.folder / "bin", "--out", "ablation", "--dry-run"],
            "evidence": [folder / "results/claims.yaml"],
            "export": [
                *(materials.folder / "bin", "--path", materials.checkpoint, "--out", "exported"),
                *("--to", "ctranslate2", "--gates", "mean"),
            ],
        }.get(command, [])
        environment = dict(materials.environment)
        if command == "evidence":
            copied(ROOT / "results", folder / "results")
            (folder / "configs").symlink_to(ROOT / "configs")
        if command in ("table", "ablate") and option.partition("=")[0] in OF_JOBS:
            write_programs(folder / "programs", folder / "slurm")
            environment["PATH"] = f"{folder / 'programs'}{os.pathsep}{environment['PATH']}"
            arguments[-1:] = ["--run"] if command == "table" else []
            arguments += ["--launcher", "slurm"]
        ended = call([*materials.ours, command, *arguments, option], folder, environment)
        return judged(ended) or _left(folder)

    return Case(name, run)


def _left(folder: Path) -> str:
    """Return a sentence if a command has left files that it was writing."""
    left = left_over(folder)
    return f"leaves {', '.join(left)}" if left else ""
