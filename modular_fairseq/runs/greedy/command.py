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
--distributed-world-size, --update-epoch-batch-itr, --best-checkpoint-metric ppl and --log-format json. Each
run has a folder in FOLDER with its checkpoints, train.log, validate.log and, when it has ended, result.json;
then it is not run again. You may also run the training commands that --dry-run shows yourself, several at a
time and on other machines. Then this command only evaluates. --launcher slurm makes a job of each run
(docs/clusters.md).

The mechanism with the lowest perplexity on valid is kept: the mean over the seeds if there are several, and
the mechanism that is listed first if two are equal. fairseq-validate computes the perplexities on valid and
test, with two decimals, for the best checkpoint without dropout.

--mechanisms FILE lists other mechanisms, in YAML. The default is the list of the paper. Of the last one, a
model without an encoder or a decoder has one option only:

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
from dataclasses import replace

from modular_fairseq.runs.cluster import options
from modular_fairseq.runs.cluster.jobs import (
    Step,
    background,
    failed,
    recorded,
    submit,
    submit_to_background,
)
from modular_fairseq.runs.cluster.resources import Resources, of_evaluations
from modular_fairseq.runs.cluster.status import overview, watch
from modular_fairseq.runs.greedy.ablation import Ablation
from modular_fairseq.runs.greedy.settings import choose_settings
from modular_fairseq_cli.arguments import take_options_after_dashes
from modular_fairseq_cli.errors import UsageError

GO_ON = "submit the next iteration"  # the step that follows the trials of an iteration


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
    options.add_arguments(parser, what)
    # The command of a job gets these.
    what.add_argument("--trial", metavar="NAME", help=argparse.SUPPRESS)
    what.add_argument("--go-on", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--srun", action="store_true", help=argparse.SUPPRESS)
    take_options_after_dashes(parser)


def run(args: argparse.Namespace) -> None:
    makes = not (args.dry_run or args.table or args.status or args.trial)
    trains = makes or args.dry_run or bool(args.trial)
    training, _ = resources = options.check(args, makes, trains)
    ablation = Ablation(args.out, *choose_settings(args), training.workers)
    logs = os.path.join(args.out, "jobs")
    if args.dry_run:
        print(ablation.plan())
    elif args.trial:
        ablation.train_one(args.trial, args.srun)
    elif args.status:

        def steps() -> list[Step]:
            found = ablation.steps(training)
            if GO_ON in recorded(args.out):
                ended = len(found) == ablation.total and all(step.done for step in found)
                found.append(Step(GO_ON, args.out, [], training, [step.name for step in found], ended))
            return found

        def look() -> tuple[str, bool]:
            return overview(f"Ablation in {args.out}", steps, lambda: background(logs))

        watch(look, f"{ablation.command} --status")
    elif args.launcher:
        launch(ablation, args, resources, logs)
    else:
        if not args.table:
            ablation.train()
        ablation.write_table()


def launch(
    ablation: Ablation, args: argparse.Namespace, resources: tuple[Resources, Resources], logs: str
) -> None:
    """Make the runs as jobs, and say how to go on.

    The models of an iteration are known when the iteration before it has ended. So the jobs of an iteration
    are followed by a short job, which submits the next iteration, or makes the table.

    Args:
        ablation: the ablation.
        args: the arguments of the command.
        resources: what trainings and evaluations ask for.
        logs: the folder for the logs of jobs.

    Raises:
        UsageError: the jobs cannot be submitted; or this is the short job, and runs have failed.
    """
    training, evaluation = resources
    unused = [
        name
        for name in ("gpus", "nodes", "cpus", "hours")
        if getattr(evaluation, name) != getattr(of_evaluations(training), name)
    ]
    if unused:
        raise UsageError(
            f"--resources {args.resources}: {', '.join(unused)} of evaluation have no effect on an ablation, "
            "whose jobs train and evaluate; leave them out"
        )
    with ablation.begun():
        pass  # the settings are saved
    if args.launcher == "local":
        submit_to_background([*ablation.program, *training.gpus_option], logs)
    else:
        steps = ablation.steps(training)
        if args.go_on and (names := failed(steps)):
            raise UsageError(f"{', '.join(names)} failed; --status says why, and the same command goes on")
        if all(step.done for step in steps):
            ablation.write_table()
            return
        given = [
            word
            for name in ("resources", "gpus", "hours", "partition", "account")
            if (value := getattr(args, name)) is not None
            for word in (f"--{name}", os.path.abspath(value) if name == "resources" else str(value))
        ]
        command = [*ablation.program, "--launcher", "slurm", "--go-on", *given]
        alone = replace(evaluation, gpus=0, nodes=1, cpus=1, hours=1.0)
        names = [step.name for step in steps]
        follow = Step(GO_ON, args.out, command, alone, names, also_after_failure=True)
        submit(lambda: [*ablation.steps(training), follow], logs)
    print(f"what they do: {ablation.command} --status\nthe table:    {ablation.command} --table")
