"""The trials of the greedy protocol that a folder holds, and their table."""

import os
import shlex
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from modular_fairseq.runs.cluster.jobs import Step, share_job, through_srun
from modular_fairseq.runs.cluster.resources import Resources
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evaluations.perplexity import validate_command
from modular_fairseq.runs.greedy.protocol import Model, models
from modular_fairseq.runs.greedy.settings import read_settings, refuse_difference, write_settings
from modular_fairseq.runs.greedy.table import sheet, validation_perplexity
from modular_fairseq.runs.greedy.trial import Result, Trial
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.workers import share_batches
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one
from modular_fairseq_cli.processes import own_program, python_module, say


class Ablation:
    """The trials that a folder holds, finished or not.

    Args:
        folder: the folder.
        settings: what all trials have in common: their "data", "options" and "switches" (see
            `choose_settings`).
        seeds: the seeds with which each model is trained.
        workers: the number of GPUs of each training.
    """

    def __init__(self, folder: str, settings: dict[str, Any], seeds: list[int], workers: int = 1):
        self.folder, self.settings, self.seeds, self.workers = folder, settings, seeds, workers
        self.names = [each.name for each in settings["switches"]]
        self.total = (len(self.names) * (len(self.names) + 1) // 2 + 1) * len(seeds)
        words = ["ablate", "--out", folder, "--seeds", ",".join(map(str, seeds))]
        self.command = shlex.join([own_program(), *words])
        self.program = [*python_module("modular_fairseq_cli"), *words]
        share_batches(settings["options"], workers)  # refuses a number of GPUs that does not fit

    def trials(self, model: Model) -> list[Trial]:
        """Return the trials of a model, one for each seed.

        The folder of a trial is named after its seed and the switches that are on, in the order of the
        settings.
        """
        switches = self.settings["switches"]
        on = "+".join(each.file_name for each in switches if each.name in model) or "baseline"
        words = [word for each in switches for word in (each.on if each.name in model else each.off)]
        # --update-epoch-batch-itr gives a resumed run the batches of an uninterrupted one, so that all runs
        # see the same data in the same order.
        own = ["--update-epoch-batch-itr", "True", "--best-checkpoint-metric", "ppl"]
        words, corpus = [*self.settings["options"], *words, *own], Corpus(self.settings["data"])
        folders = {seed: f"{on}-seed{seed}" for seed in self.seeds}
        folder, workers = os.path.abspath(self.folder), self.workers
        return [
            Trial(model, Run(name, os.path.join(folder, name), corpus, words, seed, workers=workers))
            for seed, name in folders.items()
        ]

    def results(self, model: Model) -> list[Result | None]:
        """Return the results of a model's trials, one for each seed; None for a trial that has not ended."""
        return [trial.result for trial in self.trials(model)]

    def known(self) -> Iterator[Trial]:
        """Yield the trials that are known so far, in their order.

        The models of an iteration are known when all trials of the iteration before it have ended.
        """
        for model in models(self.names, validation_perplexity(self.results)):
            yield from self.trials(model)

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Make the folder, lock it for the length of a `with` block, and save the settings in it.

        Raises:
            UsageError: another process works in the folder, or the folder holds runs with other settings; its
                settings are then left as they are. Or it cannot be written.
        """
        with ExitStack() as stack:
            try:
                os.makedirs(self.folder, exist_ok=True)
                stack.enter_context(only_one(self.folder))
                if saved := read_settings(self.folder):  # another process may have saved them since
                    refuse_difference(self.folder, saved[0], self.settings)
                write_settings(self.folder, self.settings, self.seeds)
            except OSError as error:
                raise UsageError(
                    f"--out {self.folder}: cannot be written ({error}); correct that, or give another folder"
                ) from None
            yield

    def steps(self, resources: Resources) -> list[Step]:
        """Return the steps of the trials that are known so far."""
        return [
            Step(
                f"train and validate {each.run.name}",
                each.run.folder,
                [*self.program, "--trial", each.run.name, *resources.gpus_option, *resources.srun],
                resources,
                done=each.result is not None,
                log=each.run.path("train.log"),
            )
            for each in self.known()
        ]

    def train_one(self, name: str, srun: bool) -> None:
        """Finish the trial of this name, in its job.

        Args:
            name: the name of its run.
            srun: whether srun starts the workers of the training.

        Raises:
            UsageError: the run failed.
        """
        trial = next(each for each in self.known() if each.run.name == name)
        share_job(1 if srun else self.workers)
        trial._replace(run=through_srun(trial.run) if srun else trial.run).finish(say)

    def train(self) -> None:
        """Finish every trial, and report progress on standard error.

        Raises:
            UsageError: a run failed, another process works in the folder, or it cannot be written.
            SystemExit: the user pressed Ctrl-C (exit code 130).
        """
        try:
            with self.begun():
                for number, each in enumerate(self.known(), 1):
                    which = f"[{number} of {self.total}] {each.run.name}"
                    result = each.result
                    if result is None:
                        say(which)
                        result = each.finish(say)
                    say(f"{which}: validation perplexity {result['valid']:.2f}")
        except KeyboardInterrupt:
            print(f"\nstopped; this command continues: {self.command}", file=sys.stderr)
            sys.exit(130)

    def plan(self) -> str:
        """Return shell commands of the trials that are known so far."""
        lines, known = [], list(self.known())
        for each in known:
            lines.append(f"# {each.run.name}: {'to do' if each.result is None else 'done'}")
            commands = [each.run.train_command, validate_command(each.run, "valid,test")]
            lines += [shlex.join(command) for command in commands]
        later = self.total - len(known)
        if later:
            lines.append(f"# {later} more runs depend on the results of these")
        return "\n".join(lines)

    def write_table(self) -> None:
        """Print the table, and write it to the folder.

        Raises:
            UsageError: runs are missing (the table shows the others), or the folder cannot be written.
        """
        seeds = ", ".join(map(str, self.seeds))
        of_seeds = f"seed {seeds}" if len(self.seeds) == 1 else f"seeds {seeds} (mean ± standard deviation)"
        title = (
            f"Perplexity, {of_seeds}. Validation, test: best checkpoint, dropout off. Training: last epoch, "
            "as logged."
        )
        print(sheet(title, self.names, self.results).write(self.folder), end="", flush=True)
        known = list(self.known())
        missing = [each.run.name for each in known if each.result is None]
        if missing:
            later = (
                f", and {self.total - len(known)} more that depend on them" if len(known) < self.total else ""
            )
            raise UsageError(
                f"the table is not complete: missing are {', '.join(missing)}{later}; this command "
                f"continues: {self.command}"
            )
