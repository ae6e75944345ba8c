"""One run: a training with one seed, in a folder of its own, from its command to its statistics.

What is trained is said by words of fairseq-train, so a run may be of any task, model and plugin. It may be
killed at any moment and started again: it ends as an uninterrupted one.
"""

import json
import os
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

import modular_fairseq
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.training.checkpoints import load_checkpoint, training_ended
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.fairseq_log import parse, progress
from modular_fairseq_cli.files import digest, only_one, read_json, write_file
from modular_fairseq_cli.processes import call

PLUGIN = os.path.dirname(os.path.abspath(modular_fairseq.__file__))
MODULES = {
    "fairseq-preprocess": "fairseq_cli.preprocess",
    "fairseq-train": "fairseq_cli.train",
    "fairseq-validate": "fairseq_cli.validate",
    "fairseq-generate": "fairseq_cli.generate",
    "modular-fairseq": "modular_fairseq_cli",
}
LIMITS = ("--max-update", "--max-epoch")
COUNTS = re.compile(r"num\. shared model params: ([\d,]+) \(num\. trained: ([\d,]+)\)")
OUTSIDE = re.compile(r"num\. params trained outside the main optimizer: ([\d,]+)")  # which the plugin logs
DIVERGED = re.compile(r"FloatingPointError: (gradients are Nan/Inf|.*Minimum loss scale reached)")
Say = Callable[[str], Any]


class Run(NamedTuple):
    """A training with one seed.

    Args:
        name: what messages call it.
        folder: for all that it writes.
        words: of fairseq-train, without the data and what `train_command` adds.
        settings: what the weights depend on beside the corpus, as JSON. It is kept in settings.json, and a
            folder with other settings is refused. None: whoever made the run sees to that.
        start: the checkpoint that fine-tuning starts from, or the run whose checkpoint it is.
        averaged: how many of the last epochs' checkpoints are averaged; 0: the best checkpoint is taken.
        trains: False: the checkpoint that it starts from is used as it is.
        checkpoints: the folder in `folder` for fairseq's checkpoints; "": `folder` itself.
    """

    name: str
    folder: str
    corpus: Corpus
    words: Sequence[str]
    seed: int
    settings: dict[str, Any] | None = None
    start: "Run | str | None" = None
    averaged: int = 0
    trains: bool = True
    checkpoints: str = ""

    def path(self, *parts: str) -> str:
        return os.path.join(self.folder, *(parts or [""]))

    @property
    def save_dir(self) -> str:
        """The folder of fairseq's checkpoints, with a slash at its end."""
        return os.path.join(self.path(self.checkpoints), "")

    @property
    def last(self) -> str:
        """Path of the checkpoint that a training continues from."""
        return f"{self.save_dir}checkpoint_last.pt"

    @property
    def checkpoint(self) -> str | None:
        """Path of the checkpoint that is evaluated: the average if one is made, else the best checkpoint."""
        if not self.trains:
            return self.start_checkpoint
        return self.path("averaged.pt") if self.averaged else f"{self.save_dir}checkpoint_best.pt"

    @property
    def start_checkpoint(self) -> str | None:
        return self.start.checkpoint if isinstance(self.start, Run) else self.start

    @property
    def train_command(self) -> list[str]:
        start = ["--finetune-from-model", self.start_checkpoint] if self.start else []
        own = ["--user-dir", PLUGIN, "--save-dir", self.save_dir, "--seed", str(self.seed)]
        return ["fairseq-train", self.corpus.binarized, *self.words, *start, *own, "--log-format", "json"]

    @property
    def average_command(self) -> list[str]:
        inputs = ["--inputs", self.save_dir, "--num-epoch-checkpoints", str(self.averaged)]
        return ["modular-fairseq", "average", *inputs, "--output", self.checkpoint]

    @property
    def commands(self) -> list[list[str]]:
        """The commands of the run, for people who want to repeat it."""
        if not self.trains:
            return []
        return [self.train_command, *([self.average_command] if self.averaged else [])]

    @property
    def training(self) -> dict[str, Any] | None:
        """The run's statistics; None before it has ended."""
        return read_json(self.path("training.json"))

    def check(self) -> None:
        """Refuse a corpus that is missing, or another one than that of the run that is here or is fine-tuned.

        Raises:
            UsageError: one sentence that names the folder and what would be right.
        """
        self.corpus.check(self.name)
        sums = self.corpus.sums()
        self.refuse_another(sums)
        theirs = {}
        if isinstance(self.start, Run):
            theirs = read_json(self.start.path("settings.json")) or {}
        for key, value in sums.items():
            if key.startswith("dictionary ") and theirs.get(key, value) != value:
                raise UsageError(
                    f"{self.corpus.binarized}: its {key} is another dictionary than that of "
                    f"{self.start.path()}, which is fine-tuned; prepare the corpus again with --like "
                    f"{self.start.corpus.folder}"
                )

    def refuse_another(self, sums: dict[str, str] | None = None) -> None:
        """Refuse a folder in which something else was trained: other settings, or another corpus.

        Args:
            sums: of the corpus; None: the corpus is not compared.

        Raises:
            UsageError: it names what differs.
        """
        there = os.listdir(self.folder) if os.path.isdir(self.folder) else []
        if self.settings is None or not any(
            name.endswith(".pt") or name == "training.json" for name in there
        ):
            return  # nothing was trained here
        saved, settings = read_json(self.path("settings.json")), dict(self.settings)
        if saved is None:
            raise UsageError(
                f"{self.path()}: holds an unknown run (no settings.json); remove it, or give another --out"
            )
        keys = [key for key in {**saved, **settings} if not key.startswith(("dictionary ", "train "))]
        settings |= sums or {}
        differences = [
            f"{key} {saved.get(key, 'not given')} (now {settings.get(key, 'not given')})"
            for key in [*keys, *(sums or [])]
            if saved.get(key) != settings.get(key)
        ]
        if differences:
            raise UsageError(
                f"{self.path()}: holds a run with {', '.join(differences[:3])}; go back to that, remove it, "
                "or give another --out"
            )

    def train(self, say: Say) -> None:
        """Finish the run: train what is left, average, and write settings.json and training.json.

        Raises:
            UsageError: see `check`; another process trains here; a command failed, and the message names its
                log.
        """
        if self.training is not None:
            return
        os.makedirs(self.folder, exist_ok=True)
        with only_one(self.folder):
            self.check()  # again: another process may have been here
            if self.training is not None:
                return
            self._write("settings.json", self.settings | self.corpus.sums())
            if not os.path.exists(self.last):  # what an earlier try said is of no run
                with suppress(FileNotFoundError):
                    os.remove(self.path("train.log"))
            self.fit(say)
            self._write("training.json", self.statistics())

    def fit(self, say: Say, show: Say | None = None, may_diverge: bool = False) -> bool:
        """Train what is left to train, and average.

        Args:
            say: gets a sentence about each command, and its progress.
            show: gets each line of the log of fairseq-train instead of `say` getting its progress.
            may_diverge: a training that diverges has ended; else it has failed.

        Returns:
            Whether the training diverged.

        Raises:
            UsageError: a command failed; the message names its log.
        """
        diverged = False
        if self.trains and not self._is_trained():
            if os.path.exists(self.last):
                say(f"{self.name}: continues from its last checkpoint")
            tail = self.execute(self.train_command, "train.log", say, show, may_diverge)
            diverged = any(map(DIVERGED.search, tail))
        if self.trains and self.averaged:
            self.execute(self.average_command, "average.log", say)
        return diverged

    def last_checkpoint(self) -> dict[str, Any] | None:
        """Return the content of checkpoint_last.pt; None if there is none."""
        return load_checkpoint(self.last) if os.path.exists(self.last) else None

    def statistics(self) -> dict[str, Any]:
        """Return the digest of the checkpoint, how many parameters there are and are trained, updates, and
        the best validation perplexity if the task has one.

        Raises:
            UsageError: train.log does not show them.
        """
        of = {"checkpoint": digest(self.checkpoint)[:16]}
        if not self.trains:
            theirs = self.start.training if isinstance(self.start, Run) else None
            return {**of, **(theirs or {}), "trained_parameters": 0, "updates": 0}
        lines = []
        with (
            suppress(FileNotFoundError),
            open(self.path("train.log"), encoding="utf-8", errors="replace") as file,
        ):
            lines = file.read().splitlines()
        counts = next((found for line in lines if (found := COUNTS.search(line))), None)
        outside = next((found for line in lines if (found := OUTSIDE.search(line))), None)
        valid = [numbers for split, numbers in map(parse, lines) if split == "valid"]
        if counts is None or not valid:
            raise UsageError(
                f"{self.path('train.log')}: does not show parameters and validation; restore it, or remove "
                "the folder to train anew"
            )
        perplexities = [numbers["ppl"] for numbers in valid if "ppl" in numbers]
        return {
            **of,
            "parameters": _number(counts[1]),
            "trained_parameters": _number(counts[2]) + (_number(outside[1]) if outside else 0),
            "updates": load_checkpoint(self.checkpoint)["optimizer_history"][-1]["num_updates"],
            **({"valid_perplexity": min(perplexities)} if perplexities else {}),
        }

    def execute(
        self,
        command: list[str],
        log: str,
        say: Say,
        show: Say | None = None,
        may_diverge: bool = False,
    ) -> list[str]:
        """Run a command, and add it and all it says to the file `log`; the other arguments are as for `fit`.

        Returns:
            The last lines that it said.

        Raises:
            UsageError: it failed.
        """
        os.makedirs(self.folder, exist_ok=True)
        with open(self.path(log), "a", encoding="utf-8") as file:
            file.write(f"$ {shlex.join(command)}\n")
        say(f"{self.name}: {command[0]} (its command and all it says: {self.path(log)})")

        def say_progress(line: str) -> None:
            if text := progress(line):
                say(f"{self.name}{text}")

        program = [sys.executable, "-m", MODULES[command[0]], *command[1:]]
        status, tail = call(program, self.path(log), show or say_progress)
        if status != 0 and not (may_diverge and any(map(DIVERGED.search, tail))):
            last = next((line.strip()[:300] for line in reversed(tail) if line.strip()), "no word")
            raise UsageError(
                f"{self.name}: {command[0]} failed with status {status} ({last}); see {self.path(log)}; "
                "nothing is lost"
            )
        return tail

    def _is_trained(self) -> bool:
        given, state = by_option(list(self.words)), self.last_checkpoint()
        limits = [int((given.get(name) or ["0"])[0]) for name in LIMITS]
        return state is not None and training_ended(state, *limits)

    def _write(self, file: str, content: dict[str, Any]) -> None:
        write_file(self.path(file), json.dumps(content, indent=1) + "\n")


def _number(text: str) -> int:
    return int(text.replace(",", ""))
