"""A run executes one training with one seed, in a folder of its own, and collects its statistics.

Words of fairseq-train's command line define what is trained, so a run may have any task, model and plugin. It
may be killed at any moment and started again: its result equals that of an uninterrupted run.
"""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple

from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.execution import DIVERGED, Say, execute
from modular_fairseq.runs.logged_numbers import numbers_of
from modular_fairseq.runs.settings import (
    refuse_another_run,
    refuse_other_dictionaries,
    save_settings,
    start_digest,
)
from modular_fairseq.runs.workers import share_batches
from modular_fairseq.training.checkpoints import load_checkpoint, training_ended
from modular_fairseq.user_dir import PLUGIN
from modular_fairseq_cli.arguments import by_option
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import (
    digest,
    is_locked,
    only_one,
    read_json,
    write_file,
    write_json,
)

LIMITS = ("--max-update", "--max-epoch")
FAILURE = "failure.txt"  # in the folder of a run: why the last attempt to finish it failed


class Run(NamedTuple):
    """A training with one seed, which writes into a folder of its own.

    Args:
        name: the name of the run in messages.
        folder: folder for all files that the run writes.
        corpus: the data.
        words: words of fairseq-train's command line, without the data and what `train_command` adds.
        seed: seed of the training.
        settings: everything but the corpus that the weights depend on, as JSON. It is saved in settings.json,
            and a folder with other settings is refused. None: the caller ensures that the folder fits.
        start: the checkpoint that fine-tuning starts from, or the run that makes this checkpoint. None: the
            training starts from random weights.
        averaged: the number of last epochs whose checkpoints are averaged. 0: the best checkpoint is used.
        trains: whether the run trains. If not, the checkpoint of `start` is evaluated as it is.
        checkpoints: the folder for fairseq's checkpoints inside `folder`; "": `folder` itself.
        workers: the number of processes that train together, each on a GPU. The batches of an update are
            divided among them. None: fairseq starts one for each GPU that it sees, and each takes all of
            --update-freq.
        launcher: words before the training command, such as srun, which starts all workers. Without it the
            command starts them itself.
        plugin: the folder for --user-dir. Another plugin than this one imports this one.
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
    workers: int | None = None
    launcher: Sequence[str] = ()
    plugin: str = PLUGIN

    def path(self, *parts: str) -> str:
        """Return the path of a file in the run's folder; without arguments, the path FOLDER/ itself."""
        return os.path.join(self.folder, *(parts or [""]))

    @property
    def save_dir(self) -> str:
        """Path of the folder that holds fairseq's checkpoints; it ends with a slash."""
        return os.path.join(self.path(self.checkpoints), "")

    @property
    def last(self) -> str:
        """Path of the checkpoint that a training continues from."""
        return f"{self.save_dir}checkpoint_last.pt"

    @property
    def checkpoint(self) -> str:
        """Path of the checkpoint that is evaluated.

        It is the average if one is made, else the best checkpoint. If the run does not train, it is the
        checkpoint of `start`.
        """
        if not self.trains:
            assert self.start_checkpoint is not None  # a run that does not train needs `start`
            return self.start_checkpoint
        return self.path("averaged.pt") if self.averaged else f"{self.save_dir}checkpoint_best.pt"

    @property
    def start_checkpoint(self) -> str | None:
        """Path of the checkpoint that fine-tuning starts from, or None."""
        return self.start.checkpoint if isinstance(self.start, Run) else self.start

    @property
    def train_command(self) -> list[str]:
        """The words of the command that trains the run, or continues it from its last checkpoint."""
        start = ["--finetune-from-model", checkpoint] if (checkpoint := self.start_checkpoint) else []
        own = ["--user-dir", self.plugin, "--save-dir", self.save_dir, "--seed", str(self.seed)]
        shares = share_batches(self.words, self.workers)
        words = [*self.words, *shares, *start, *own, "--log-format", "json"]
        return ["fairseq-train", self.corpus.binarized, *words]

    @property
    def plugin_option(self) -> list[str]:
        """The option of `modular-fairseq` commands that imports another plugin; without one, no words."""
        return [] if self.plugin == PLUGIN else ["--user-dir", self.plugin]

    @property
    def average_command(self) -> list[str]:
        """The words of the command that averages the checkpoints of the last epochs."""
        inputs = ["--inputs", self.save_dir, "--num-epoch-checkpoints", str(self.averaged)]
        return ["modular-fairseq", "average", *inputs, "--output", self.checkpoint]

    @property
    def commands(self) -> list[list[str]]:
        """The commands that the run executes; users may repeat them."""
        if not self.trains:
            return []
        return [self.train_command, *([self.average_command] if self.averaged else [])]

    @property
    def training(self) -> dict[str, Any] | None:
        """The statistics of the run (see `statistics`), or None if it has not ended."""
        return read_json(self.path("training.json"))

    def check(self) -> None:
        """Check that the corpus exists and fits the run's folder and the run that is fine-tuned.

        Raises:
            UsageError: the corpus is missing, the folder holds another run, or the run that is fine-tuned has
                other dictionaries.
        """
        self.corpus.check(self.name)
        self.refuse_another(self._digests())
        if isinstance(self.start, Run):
            refuse_other_dictionaries(self.corpus, self.start.folder, self.start.corpus)

    def refuse_another(self, digests: dict[str, str] | None = None) -> None:
        """Refuse the folder if a run with other settings was trained in it (see `refuse_another_run`).

        Args:
            digests: the digests of the corpus and of the starting weights. None: they are not compared.

        Raises:
            UsageError: the folder holds another run.
        """
        if self.settings is not None:
            refuse_another_run(self.folder, self.settings, digests or {})
        training = self.training or {}
        if "updates" in training and (training["updates"] > 0) != self.trains:
            there, here = ("not trained", "trained") if self.trains else ("trained", "not trained")
            raise UsageError(
                f"{os.path.join(self.folder, '')} has a model that was {there}, and this row's is {here} "
                f"(pretrained: {str(not self.trains).lower()}); give another --out, or a copy of the row's "
                "file under another name"
            )

    def with_starts(self) -> "Iterator[Run]":
        """Yield this run, the run that it starts from, and so on."""
        yield self
        if isinstance(self.start, Run):
            yield from self.start.with_starts()

    def train(self, say: Say) -> None:
        """Finish the run: complete its training, average, and write settings.json and training.json.

        A run that has ended is left as it is, if the weights that it started from have not changed. The run
        must have `settings`.

        Args:
            say: is called with a sentence about each command, and with its progress.

        Raises:
            Diverged: the training diverged.
            UsageError: `check` refuses the run, another process works in its folder, or a command failed; the
                message then names its log.
        """
        assert self.settings is not None
        if self.training is not None:
            self.refuse_another(start_digest(self.start_checkpoint))
            return
        os.makedirs(self.folder, exist_ok=True)
        with only_one(self.folder):
            self.check()  # here, because another process may have worked in the folder until now
            if self.training is not None:
                return
            save_settings(self.folder, self.settings, self._digests())
            if not os.path.exists(self.last):  # the log stems from an attempt that left no checkpoint
                with suppress(FileNotFoundError):
                    os.remove(self.path("train.log"))
            self.fit(say)
            write_json(self.path("training.json"), self.statistics())

    def _digests(self) -> dict[str, str]:
        """Return the digests of the corpus and of the weights that the run starts from."""
        return self.corpus.sums() | start_digest(self.start_checkpoint)

    @contextmanager
    def noting_failure(self) -> Iterator[None]:
        """Leave the message of an error that ends the block in the run's folder, where --status reads it."""
        self.forget_failure()
        try:
            yield
        except (UsageError, OSError) as error:
            # The error may be that another process works in the folder.
            if os.path.isdir(self.folder) and not is_locked(self.path(".lock")):
                with suppress(OSError):  # such as a full disk, which the error itself tells
                    write_file(self.path(FAILURE), f"{error}\n")
            raise

    def forget_failure(self) -> None:
        """Remove what an earlier attempt has left about its failure."""
        with suppress(FileNotFoundError):
            os.remove(self.path(FAILURE))

    def fit(self, say: Say, show: Say | None = None, may_diverge: bool = False) -> bool:
        """Complete the training, and average the checkpoints.

        Args:
            say: is called with a sentence about each command, and with its progress.
            show: is called with each line of the log of fairseq-train; then `say` is not called with its
                progress.
            may_diverge: whether a training that diverges counts as ended. If not, it counts as failed.

        Returns:
            Whether the training diverged.

        Raises:
            Diverged: the training diverged, and `may_diverge` is false.
            UsageError: a command failed; the message names its log.
        """
        diverged = False
        if self.trains and not self._is_trained():
            if os.path.exists(self.last):
                say(f"{self.name}: continues from its last checkpoint")
            log = self.path("train.log")
            tail = execute(self.name, log, self.train_command, say, show, may_diverge, self.launcher)
            diverged = any(map(DIVERGED.search, tail))
        if self.trains and self.averaged:
            self.execute(self.average_command, "average.log", say)
        return diverged

    def last_checkpoint(self) -> dict[str, Any] | None:
        """Return the content of checkpoint_last.pt, or None if the file does not exist."""
        return load_checkpoint(self.last) if os.path.exists(self.last) else None

    def statistics(self) -> dict[str, Any]:
        """Return the statistics of a training that has ended.

        The keys are "checkpoint" (its digest), "parameters", "trained_parameters", "updates" and, if the task
        has a perplexity, "valid_perplexity" (of the best epoch).

        Raises:
            UsageError: train.log does not show them, or the checkpoint does not exist.
        """
        if not os.path.exists(self.checkpoint):
            if not self.trains:
                raise UsageError(f"{self.name}: {self.checkpoint}, which is to be evaluated, does not exist")
            raise UsageError(
                f"{self.name}: the training has ended without {self.checkpoint}; remove {self.folder}, and "
                "train again with options that let it validate and save"
            )
        own: dict[str, Any] = {"checkpoint": digest(self.checkpoint)[:16]}
        if not self.trains:
            theirs = self.start.training if isinstance(self.start, Run) else None
            return {**own, **(theirs or {}), "trained_parameters": 0, "updates": 0}
        logged = numbers_of(self.path("train.log"))
        updates = load_checkpoint(self.checkpoint)["optimizer_history"][-1]["num_updates"]
        return {**own, **logged, "updates": updates}

    def execute(self, command: list[str], log: str, say: Say, show: Say | None = None) -> list[str]:
        """Call `execution.execute` for a command of this run; `log` is the name of a file in its folder."""
        return execute(self.name, self.path(log), command, say, show)

    def _is_trained(self) -> bool:
        """Return whether the last checkpoint has reached --max-update, --max-epoch or --patience."""
        given, state = by_option(list(self.words)), self.last_checkpoint()
        limits = []
        for name in (*LIMITS, "--patience"):
            value = (given.get(name) or ["0"])[0]
            if not re.fullmatch(r"-?\d+", value):
                raise UsageError(f"{name} {value}: give a whole number")
            limits.append(int(value))
        return state is not None and training_ended(state, *limits)
