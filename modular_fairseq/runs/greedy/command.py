"""Measure what each mechanism of the Transformer contributes, by a greedy protocol.

    modular-fairseq ablate DATA --out FOLDER -- --arch modular_transformer_tiny_cpu --optimizer torch_adam \\
        --lr 1e-3 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 2048 \\
        --max-update 2000 --no-epoch-checkpoints
    modular-fairseq ablate --out FOLDER           # continues after an interruption
    modular-fairseq ablate --out FOLDER --table   # only makes the table of the finished runs

The protocol comes from "Ensemble Mechanisms in the Transformer" (table 1). It begins with the model without
any mechanism. Each iteration trains the model with each mechanism that it lacks and keeps the best one, even
if the model was better without it. Four mechanisms take 11 runs per seed.

DATA is a folder of fairseq-preprocess with train, valid and test. The OPTIONS after the -- are options of
fairseq-train. The command appends the options of the mechanisms, --user-dir, --seed, --save-dir,
--update-epoch-batch-itr, --best-checkpoint-metric ppl and --log-format json. Each run has a folder in FOLDER
with its checkpoints, train.log, validate.log and, when it has ended, result.json; then it is not run again.
You may also run the training commands that --dry-run shows yourself, several at a time and on other machines.
Then this command only evaluates.

The mechanism with the lowest perplexity on valid is kept: the mean over the seeds if there are several, and
the mechanism that is listed first if two are equal. fairseq-validate computes the perplexities on valid and
test, with two decimals, for the best checkpoint without dropout.

--mechanisms FILE lists other mechanisms, in YAML. The default is the list of the paper for translation:

    - name: residual connections
      off: --no-residual
    - name: attention dropout
      off: --attention-dropout 0
      on: --attention-dropout 0.1
    - name: hidden dropout
      off: --dropout 0
      on: --dropout 0.1
    - name: multihead
      off: --encoder-attention-heads 1 --decoder-attention-heads 1
      on: --encoder-attention-heads 8 --decoder-attention-heads 8
"""

import argparse
import os
import shlex
import sys
from collections.abc import Iterator
from typing import Any

from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evaluations.perplexity import validate_command
from modular_fairseq.runs.greedy.protocol import Model, models
from modular_fairseq.runs.greedy.settings import choose_settings, write_settings
from modular_fairseq.runs.greedy.table import sheet, validation_perplexity
from modular_fairseq.runs.greedy.trial import Result, Trial
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import take_options_after_dashes
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one
from modular_fairseq_cli.processes import say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "modular-fairseq ablate DATA --out FOLDER [--seeds 1,2,3] [--mechanisms FILE] [--dry-run | --table] "
        "-- OPTIONS"
    )
    parser.add_argument(
        "data",
        nargs="?",
        metavar="DATA",
        help="folder of the data; without DATA and OPTIONS, the data and options of the runs in FOLDER",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="folder for the runs, and for table.txt, table.tsv and table.md",
    )
    parser.add_argument(
        "--seeds",
        metavar="N,N",
        help="seeds of the runs of each model (default: 1, or the seeds of the runs in FOLDER)",
    )
    parser.add_argument("--mechanisms", metavar="FILE", help="YAML file of mechanisms, as above")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--dry-run",
        action="store_true",
        help="only show the commands of the runs that are known so far, and write nothing",
    )
    what.add_argument(
        "--table",
        action="store_true",
        help="only make the table of the runs that have ended, and train nothing",
    )

    take_options_after_dashes(parser)


def run(args: argparse.Namespace) -> None:
    ablation = Ablation(args.out, *choose_settings(args))
    if args.dry_run:
        print(ablation.plan())
        return
    if not args.table:
        ablation.train()
    ablation.write_table()


class Ablation:
    """The trials that a folder holds, finished or not.

    Args:
        folder: the folder.
        settings: what all trials have in common: their "data", "options" and "switches" (see
            `choose_settings`).
        seeds: the seeds with which each model is trained.
    """

    def __init__(self, folder: str, settings: dict[str, Any], seeds: list[int]):
        self.folder, self.settings, self.seeds = folder, settings, seeds
        self.names = [each.name for each in settings["switches"]]
        self.total = (len(self.names) * (len(self.names) + 1) // 2 + 1) * len(seeds)
        self.command = shlex.join(
            ["modular-fairseq", "ablate", "--out", folder, "--seeds", ",".join(map(str, seeds))]
        )

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
        return [
            Trial(model, Run(name, os.path.join(os.path.abspath(self.folder), name), corpus, words, seed))
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

    def train(self) -> None:
        """Finish every trial, and report progress on standard error.

        Raises:
            UsageError: a run failed, another process works in the folder, or it cannot be written.
            SystemExit: the user pressed Ctrl-C (exit code 130).
        """
        try:
            os.makedirs(self.folder, exist_ok=True)
            write_settings(self.folder, self.settings, self.seeds)
        except OSError as error:
            raise UsageError(
                f"--out {self.folder}: cannot be written ({error}); correct that, or give another folder"
            ) from None
        try:
            with only_one(self.folder):
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
