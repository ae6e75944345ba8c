"""One experiment and one seed: training and averaging, in a folder of its own.

A run may be killed at any moment and started again: it ends as it would have ended.
"""

import glob
import hashlib
import json
import os
import re
import shlex
import sys
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import modular_fairseq
from modular_fairseq.runs import subsets
from modular_fairseq.runs.config import DECODING, Config
from modular_fairseq.training.checkpoints import load_checkpoint, training_ended
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import LOGGED, progress
from modular_fairseq_cli.files import only_one, write_file
from modular_fairseq_cli.processes import call

PLUGIN = os.path.dirname(os.path.abspath(modular_fairseq.__file__))
MODULES = {
    "fairseq-train": "fairseq_cli.train",
    "fairseq-generate": "fairseq_cli.generate",
    "modular-fairseq": "modular_fairseq_cli",
}
COUNTS = re.compile(r"num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
Say = Callable[[str], None]


class Run(NamedTuple):
    """A config and a seed.

    `results` is the folder of all runs and `data` that of all prepared corpora; `extra` are words for every
    fairseq-train, as the user gave them; `start` is the checkpoint that fine-tuning starts from, a run whose
    result it is, or None; without `trains` it is used as it is.
    """

    config: Config
    seed: int
    results: str
    data: str
    extra: tuple[str, ...] = ()
    start: "Run | str | None" = None
    trains: bool = True

    @property
    def name(self) -> str:
        return f"{self.config.name}/seed-{self.seed}"

    def path(self, file: str = "") -> str:
        return os.path.join(self.results, self.name, file)

    def corpus(self, *parts: str) -> str:
        """A file of the prepared corpus that the config names."""
        return os.path.join(self.data, self.config.data, *parts)

    @property
    def binarized(self) -> str:
        return os.path.join(self.data, self.config.get("task.data"))

    @property
    def whole(self) -> str:
        """`binarized`, or what it is a subset of."""
        return os.path.join(self.data, self.config.whole)

    @property
    def subset_command(self) -> list[str]:
        """For people who want to repeat it, as `check` does it without a process of its own; empty: the whole
        corpus is trained on.
        """
        return (
            ["modular-fairseq", "subset", self.whole, "--percent", str(self.config.percent)]
            if self.config.percent < 100
            else []
        )

    @property
    def checkpoint(self) -> str:
        """What is translated with."""
        if not self.trains:
            return self.start_checkpoint
        return self.path("averaged.pt" if self.config.averaged else "checkpoint_best.pt")

    @property
    def start_checkpoint(self) -> str | None:
        return self.start.checkpoint if isinstance(self.start, Run) else self.start

    @property
    def train_command(self) -> list[str]:
        start = ["--finetune-from-model", self.start_checkpoint] if self.start else []
        own = [
            "--user-dir",
            PLUGIN,
            "--save-dir",
            self.path(),
            "--seed",
            str(self.seed),
            "--log-format",
            "json",
        ]
        return ["fairseq-train", self.binarized, *self.config.train_options(), *start, *self.extra, *own]

    @property
    def average_command(self) -> list[str]:
        number = str(self.config.averaged)
        return [
            "modular-fairseq",
            "average",
            "--inputs",
            self.path(),
            "--num-epoch-checkpoints",
            number,
            "--output",
            self.checkpoint,
        ]

    @property
    def training(self) -> dict[str, Any] | None:
        """Parameters, updates and best validation perplexity; None before training has ended."""
        return read_json(self.path("training.json"))

    def check(self) -> None:
        """Refuses a corpus that is missing, and another one than that of the run that is here or of the one
        that is fine-tuned.

        A subset of it is drawn where it is missing.

        Raises:
            UsageError: one sentence that names the folder and what would be right.
        """
        for lang in self.config.languages:
            if not os.path.isfile(os.path.join(self.whole, f"dict.{lang}.txt")):
                missing = os.path.join(self.config.whole, f"dict.{lang}.txt")
                raise UsageError(
                    f"--data {self.data}: has no {missing}, which {self.config.path} needs; give the --data "
                    "that has it, "
                    f"or prepare it as the table's script says, with --out {self.corpus()}"
                )
        if self.config.percent < 100:
            subsets.draw(self.whole, self.config.percent)
        self.refuse_another(self._corpus())
        if isinstance(self.start, Run):
            theirs = read_json(self.start.path("settings.json")) or {}
            for key, value in self._corpus().items():
                if key.startswith("dictionary ") and theirs.get(key, value) != value:
                    raise UsageError(
                        f"{self.binarized}/dict.{key.split()[-1]}.txt: is another dictionary than that of "
                        f"{self.start.path()}, which is "
                        f"fine-tuned; prepare the corpus again with --like {self.start.corpus()}"
                    )

    def refuse_another(self, corpus: dict[str, str] | None = None) -> None:
        """Refuses a folder in which something else was trained: another config, or, if it is given, on
        another corpus.

        Raises:
            UsageError: it names what differs.
        """
        if not os.path.isdir(self.path()) or not any(
            name.endswith(".pt") or name == "training.json" for name in os.listdir(self.path())
        ):
            return  # nothing was trained yet
        saved, settings = read_json(self.path("settings.json")), self._settings()
        if saved is None:
            raise UsageError(
                f"{self.path()}: holds an unknown run (no settings.json); remove it, or give another --out"
            )
        keys = [key for key in {**saved, **settings} if not key.startswith(("dictionary ", "train "))]
        settings |= corpus or {}
        keys += corpus or []
        differences = [
            f"{key} {saved.get(key, 'not given')} (now {settings.get(key, 'not given')})"
            for key in keys
            if saved.get(key) != settings.get(key)
        ]
        if differences:
            raise UsageError(
                f"{self.path()}: holds a run with {', '.join(differences[:3])}; go back to that, remove it, "
                "or give another --out"
            )

    def _settings(self) -> dict[str, Any]:
        """What the weights depend on, beside the corpus, as JSON holds it."""
        values = {
            f"{group}.{key}": value
            for group, keys in self.config.values.items()
            if group not in DECODING
            for key, value in keys.items()
        }
        values.pop("common.log_interval", None)
        start = self.start.name if isinstance(self.start, Run) else self.start
        return json.loads(
            json.dumps(
                {
                    **values,
                    "common.seed": self.seed,
                    "options": shlex.join(self.extra) or "none",
                    "starts from": start,
                }
            )
        )

    def _corpus(self) -> dict[str, str]:
        """Sums that tell the corpus from others: of its dictionaries, and of the lengths of its training
        sentences.
        """
        sums = {}
        for lang in self.config.languages:
            sums[f"dictionary {lang}"] = digest(os.path.join(self.binarized, f"dict.{lang}.txt"))
            lengths = sorted(glob.glob(os.path.join(glob.escape(self.binarized), f"train.*.{lang}.idx")))
            sums[f"train {lang}"] = " ".join(map(digest, lengths))
        return sums

    def train(self, say: Say) -> None:
        """Trains what is left to train, averages, and writes training.json.

        Raises:
            UsageError: see `check`; another process trains here; a command failed, and the message names its
                log.
        """
        if self.training is not None:
            return
        os.makedirs(self.path(), exist_ok=True)
        with only_one(self.path()):
            self.check()  # again: another process may have been here
            if self.training is not None:
                return
            write_file(
                self.path("settings.json"), json.dumps(self._settings() | self._corpus(), indent=1) + "\n"
            )
            if not os.path.exists(self.path("checkpoint_last.pt")):  # what an earlier try said is of no run
                with suppress(FileNotFoundError):
                    os.remove(self.path("train.log"))
            if self.trains and not self._is_trained():
                if os.path.exists(self.path("checkpoint_last.pt")):
                    say(f"{self.name}: continues from its last checkpoint")
                self.execute(self.train_command, "train.log", say)
            if self.trains and self.config.averaged:
                self.execute(self.average_command, "average.log", say)
            write_file(self.path("training.json"), json.dumps(self._statistics(), indent=1) + "\n")

    def _is_trained(self) -> bool:
        path = self.path("checkpoint_last.pt")
        limits = (self.config.get(f"optimization.{name}") or 0 for name in ("max_update", "max_epoch"))
        return os.path.exists(path) and training_ended(load_checkpoint(path), *limits)

    def _statistics(self) -> dict[str, Any]:
        if not self.trains:
            theirs = self.start.training if isinstance(self.start, Run) else {}
            return {
                "checkpoint": digest(self.checkpoint),
                **(theirs or {}),
                "trained_parameters": 0,
                "updates": 0,
            }
        try:
            with open(self.path("train.log"), encoding="utf-8", errors="replace") as file:
                lines = file.readlines()
        except FileNotFoundError:
            lines = []
        counts = next((found for line in lines if (found := COUNTS.search(line))), None)
        logged = [
            _loads(found[2])
            for line in lines
            if (found := LOGGED.search(line.rstrip("\n"))) and found[1] == "valid"
        ]
        if counts is None or not logged:
            raise UsageError(
                f"{self.path('train.log')}: does not show parameters and validation; restore it, or remove "
                "the folder to train anew"
            )
        best = load_checkpoint(self.checkpoint)
        return {
            "checkpoint": digest(self.checkpoint),
            "parameters": int(counts[1].replace(",", "")),
            "trained_parameters": int(counts[2].replace(",", ""))
            + _gate_parameters(best["model"], self.config),
            "updates": best["optimizer_history"][-1]["num_updates"],
            "valid_perplexity": min(float(each["valid_ppl"]) for each in logged if "valid_ppl" in each),
        }

    def execute(self, command: list[str], log: str, say: Say) -> None:
        """Runs one of the commands; all it says goes to `log`.

        Raises:
            UsageError: it failed.
        """
        with open(self.path(log), "a", encoding="utf-8") as file:
            file.write(f"$ {shlex.join(command)}\n")
        say(f"{self.name}: {command[0]} (its command and all it says: {self.path(log)})")
        program = [sys.executable, "-m", MODULES[command[0]], *command[1:]]
        status, tail = call(
            program, self.path(log), lambda line: (text := progress(line)) and say(f"{self.name}{text}")
        )
        if status != 0:
            last = next((line.strip()[:300] for line in reversed(tail) if line.strip()), "no word")
            raise UsageError(
                f"{self.name}: {command[0]} failed with status {status} ({last}); see {self.path(log)}; "
                "nothing is lost"
            )


def _gate_parameters(weights: dict[str, Any], config: Config) -> int:
    """How many parameters G steps train that fairseq-train does not count, as they are not in its
    optimizer.
    """
    if config.get("model.mae_training") == "joint" or config.get("model.mae_finetune") == "gates":
        return 0
    buffers = ("running_mean", "running_var", "num_batches_tracked")
    return sum(
        value.numel()
        for name, value in weights.items()
        if ".gate.gate_network." in name and not name.endswith(buffers)
    )


def digest(path: str) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _loads(text: str) -> dict[str, Any]:
    try:
        return json.loads(text)
    except ValueError:
        return {}  # a line that was cut by a kill


def read_json(path: str) -> dict[str, Any] | None:
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise UsageError(
            f"{path}: cannot be read ({error}); remove it to have that step done again"
        ) from None
