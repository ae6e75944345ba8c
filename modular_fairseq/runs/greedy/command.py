"""What each mechanism of the Transformer is worth: train it without any of them, then add the best one, again
and again.

    modular-fairseq ablate DATA --out FOLDER -- --arch modular_transformer_tiny_cpu --optimizer adam \\
        --lr 1e-3 --criterion label_smoothed_cross_entropy --label-smoothing 0.1 --max-tokens 2048 \\
        --max-update 2000 --no-epoch-checkpoints
    modular-fairseq ablate --out FOLDER           # goes on where it was stopped
    modular-fairseq ablate --out FOLDER --table   # the table of what is there

The protocol is that of "Ensemble Mechanisms in the Transformer" (table 1): evaluate the model without
mechanisms; in each iteration train it with each mechanism that it lacks, and keep the best one, even if the
model was better without it. Four take 11 runs per seed.

DATA is what fairseq-preprocess wrote, with train, valid and test. What follows the -- goes to fairseq-train,
and after it the options of the mechanisms, --user-dir, --seed, --save-dir, --update-epoch-batch-itr,
--best-checkpoint-metric ppl and --log-format json. Each run has a folder in FOLDER: checkpoints, train.log,
validate.log, and, when it has ended, result.json; then it is not run again. The training commands that
--dry-run shows may as well be given elsewhere, several at a time: only evaluation is then left to do here.
Perplexities on validation, which selects, and on test are fairseq's, of two decimals, of the best checkpoint,
without dropout. Of equal ones the mechanism that is listed first is kept; of several seeds, means select.

--mechanisms FILE names others, in YAML. The default is the paper's for translation:

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
        help="a folder; without it and OPTIONS, those of the runs in FOLDER",
    )
    parser.add_argument(
        "--out",
        required=True,
        metavar="FOLDER",
        help="for a folder per run and table.txt, table.tsv and table.md",
    )
    parser.add_argument(
        "--seeds", metavar="N,N", help="of each model's runs; default: 1, or those of the runs in FOLDER"
    )
    parser.add_argument("--mechanisms", metavar="FILE", help="YAML, as above")
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--dry-run",
        action="store_true",
        help="only show the commands of the runs that are known so far; writes nothing",
    )
    what.add_argument("--table", action="store_true", help="only make the table of the runs that have ended")

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
    """The trials of a folder: their data, options and switches (`settings`), and the seeds of each model."""

    def __init__(self, folder: str, settings: dict[str, Any], seeds: list[int]):
        self.folder, self.settings, self.seeds = folder, settings, seeds
        self.names = [each.name for each in settings["switches"]]
        self.total = (len(self.names) * (len(self.names) + 1) // 2 + 1) * len(seeds)
        self.command = shlex.join(
            ["modular-fairseq", "ablate", "--out", folder, "--seeds", ",".join(map(str, seeds))]
        )

    def trials(self, model: Model) -> list[Trial]:
        """Return the model's trials, one a seed. A trial is filed under the switches that are on, in the
        order of the settings, and its seed.
        """
        switches = self.settings["switches"]
        on = "+".join(each.file_name for each in switches if each.name in model) or "baseline"
        words = [word for each in switches for word in (each.on if each.name in model else each.off)]
        # Updating the iterator gives a resumed run the batches of an uninterrupted one: all runs see the same
        # data in the same order.
        own = ["--update-epoch-batch-itr", "True", "--best-checkpoint-metric", "ppl"]
        words, corpus = [*self.settings["options"], *words, *own], Corpus(self.settings["data"])
        folders = {seed: f"{on}-seed{seed}" for seed in self.seeds}
        return [
            Trial(model, Run(name, os.path.join(os.path.abspath(self.folder), name), corpus, words, seed))
            for seed, name in folders.items()
        ]

    def results(self, model: Model) -> list[Result | None]:
        return [trial.result for trial in self.trials(model)]

    def known(self) -> Iterator[Trial]:
        """Yield all trials in their order, as far as it is known: the models of an iteration depend on the
        results of the one before.
        """
        for model in models(self.names, validation_perplexity(self.results)):
            yield from self.trials(model)

    def train(self) -> None:
        """Finish every trial, and say how on standard error.

        Raises:
            UsageError: a run failed; another process trains here; the folder cannot be written.
            SystemExit: the user pressed Ctrl-C.
        """
        try:
            os.makedirs(self.folder, exist_ok=True)
            write_settings(self.folder, self.settings, self.seeds)
        except OSError as error:
            raise UsageError(
                f"--out {self.folder}: cannot be written ({error}); mend that, or give another folder"
            ) from None
        try:
            with only_one(self.folder):
                for number, each in enumerate(self.known(), 1):
                    which = f"[{number} of {self.total}] {each.run.name}"
                    if each.result is None:
                        say(which)
                        each.finish(say)
                    say(f"{which}: validation perplexity {each.result['valid']:.2f}")
        except KeyboardInterrupt:
            print(f"\nstopped; this goes on: {self.command}", file=sys.stderr)
            sys.exit(130)

    def plan(self) -> str:
        """Return the commands of the trials that are known, for a shell."""
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
        """Print the table and write it to the folder.

        Raises:
            UsageError: runs are missing, or the folder cannot be written.
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
                f"the table is not complete: missing are {', '.join(missing)}{later}; to finish: "
                f"{self.command}"
            )
