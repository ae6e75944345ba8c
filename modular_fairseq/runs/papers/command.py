"""Train and evaluate the rows of a paper's table, and show our numbers beside the paper's.

    modular-fairseq table mae-3 --data data --run --seeds 1,2,3  # trains and measures all rows
    modular-fairseq table mae-3 --data data --dry-run            # shows the commands that --run would execute
    modular-fairseq table mae-3 --seeds 1,2,3                    # only makes the table of existing results
    modular-fairseq table configs/mine/table.yaml --run          # makes your own table
    modular-fairseq table mine.yaml --user-dir examples/distance --run    # with the mechanism of a plugin
    modular-fairseq table mae-3 --scale smoke --run              # narrow models on a toy corpus, in minutes
    modular-fairseq table mae-3 --data data --run --launcher slurm   # a job for each training and evaluation
    modular-fairseq table mae-3 --status                         # shows what each run does

Each row is a file beside table.yaml: an experiment in the keys of fairseq-hydra-train, which
configs/manual.yaml explains. The OPTIONS after a -- go to every fairseq-train, as in `-- --fp16`. The folder
--data holds the prepared corpora under the names that the rows give (task.data). With --scale smoke and
without --data, --run makes toy corpora in place of the papers' corpora.

The files of a run are in OUT/SCALE/TABLE/ROW/seed-N: checkpoints, train.log, settings.json, training.json,
and for each test set the results (.json), the translation (.out) and its references (.ref). Finished work is
not repeated, and killed runs continue from their last checkpoint. Several rows can be trained at the same
time: with --jobs, or by the same command with --only in other shells or on other machines. Give each its GPU
by CUDA_VISIBLE_DEVICES. The table is written to table.txt, .tsv and .md in OUT/SCALE/TABLE, and to figure.svg
and .png if table.yaml has a key `figure`.

The columns of a table decide what is measured. BLEU is sacrebleu's, of detokenised text. The perplexity of
language models (lm_perplexity) is fairseq-eval-lm's, and that of other models (perplexity) is
fairseq-validate's. LR and HR are the layer and head redundancy of attention, by one of two definitions and of
the attention maps that the heading names. The table shows mean and standard deviation over seeds. The
difference is between the row and its baseline, seed by seed. With several seeds it has a 95 % interval and
the p-value of this interval. For BLEU, both account for training noise and for the choice of sentences, and
for language models for the choice of documents. The next p-value comes from the paired bootstrap over
sentences or documents, and is the largest over the seeds. It accounts for their choice alone. The last one
comes from Welch's t-test. It accounts for training noise alone. Tokenised and compound-split BLEU serve for
comparison with the paper only.
"""

import argparse
import functools
import os
import shlex

from modular_fairseq.runs.cluster import options
from modular_fairseq.runs.cluster.jobs import background, describe, submit, submit_to_background
from modular_fairseq.runs.cluster.resources import Resources
from modular_fairseq.runs.cluster.status import overview, watch
from modular_fairseq.runs.corpora import make_toys
from modular_fairseq.runs.evaluation import Evaluation
from modular_fairseq.runs.papers.figure import draw, write_figure
from modular_fairseq.runs.papers.making import Work, check, make, make_step, steps
from modular_fairseq.runs.papers.plan import needed, plan, show_commands
from modular_fairseq.runs.papers.results import Results, sheet
from modular_fairseq.runs.papers.table import Table, find_table, read_table
from modular_fairseq.user_dir import add_user_dir, import_user_dir
from modular_fairseq_cli.arguments import take_options_after_dashes
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import own_program, python_module


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "modular-fairseq table TABLE [--data DIR] [--out DIR] [--run | --dry-run] [options] "
        "[-- OPTIONS of fairseq-train]"
    )
    parser.add_argument(
        "table", metavar="TABLE", help="path of a table.yaml, or name of a table, such as mae-3"
    )
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="folder of the prepared corpora (default: data; with --scale smoke, toy corpora are made)",
    )
    parser.add_argument("--out", metavar="DIR", help="folder for runs and tables (default: results)")
    parser.add_argument(
        "--home",
        default="",
        metavar="DIR",
        help="folder in which the defaults of --data and --out are (default: .)",
    )
    parser.add_argument(
        "--seeds", default="1", metavar="N,N", help="seeds of the runs of each row (default: 1)"
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW",
        help="name of a row in table.yaml; only this row is made; may be given several times",
    )
    parser.add_argument(
        "--scale",
        default="paper",
        metavar="NAME",
        help="size of the experiment: paper (default), small, cpu, smoke, or another file of configs/scales",
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="number of runs at a time (default: 1; with toy corpora 2)"
    )
    parser.add_argument(
        "--samples",
        type=int,
        default=1000,
        metavar="N",
        help="number of samples of the paired bootstrap (default: 1000)",
    )
    parser.add_argument(
        "--pretrained",
        metavar="FILE",
        help="checkpoint that fine-tuning starts from, in place of a run of this project",
    )
    add_user_dir(parser)
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--run", action="store_true", help="first train, average and measure whatever is missing"
    )
    what.add_argument(
        "--dry-run",
        action="store_true",
        help="only show the commands of --run, or with --launcher slurm the jobs, and write nothing",
    )
    options.add_arguments(parser, what)
    # The command of a job gets these.
    what.add_argument("--train-run", metavar="RUN", help=argparse.SUPPRESS)
    what.add_argument("--measure-run", metavar="RUN", help=argparse.SUPPRESS)
    parser.add_argument("--srun", action="store_true", help=argparse.SUPPRESS)
    take_options_after_dashes(parser)


def run(args: argparse.Namespace) -> None:
    import_user_dir(args)
    args.table = find_table(args.table)
    args.out = args.out or os.path.join(args.home, "results")
    toys = args.scale == "smoke" and not args.data
    args.data = args.data or (
        os.path.join(args.out, "smoke", "data") if toys else os.path.join(args.home, "data")
    )
    trains = args.run or args.dry_run or bool(args.train_run)
    resources = options.check(args, args.run, trains, shows=args.dry_run)
    if args.launcher == "slurm" and args.jobs is not None:
        raise UsageError(
            "--jobs has no effect with --launcher slurm, where each run has its jobs; leave it out"
        )
    if args.run and args.pretrained and not os.path.isfile(args.pretrained):
        raise UsageError(f"--pretrained {args.pretrained} is no file; give a checkpoint")
    args.workers = resources[0].workers
    table = read_table(args.table)
    results = plan(table, args)
    for found in results.values():
        for each in found.measurements:
            each.run.refuse_another()
    work = needed(results, args.only)
    if args.dry_run and args.launcher:
        print(describe(steps(work, functools.partial(command, args), table.name, resources)))
        return
    if args.dry_run:
        print(show_commands(results, args.only))
        return
    if args.train_run or args.measure_run:
        make_step(work, args)
    elif args.status:
        show_status(work, table, args, resources)
    else:
        if args.run and toys:
            folders = dict.fromkeys(each.corpus.folder for each, _ in work)
            make_toys(args.data, [os.path.relpath(folder, args.data) for folder in folders])
        jobs = args.jobs or (2 if toys else 1)
        if args.launcher:
            launch(work, table, args, resources, jobs)
        else:
            failures = make(work, jobs) if args.run else []
            write_table(table, results, args, failures)


def write_table(
    table: Table, results: dict[str, Results], args: argparse.Namespace, failures: list[str]
) -> None:
    """Write and print the table of what has been measured, and its figure.

    Args:
        table: the table.
        results: the measurements of its rows, keyed by row.
        args: the arguments of the command.
        failures: what went wrong before.

    Raises:
        UsageError: something went wrong before, the table is not complete, or the figure cannot be drawn.
    """
    found = any(each.found for each in results.values())
    if found:
        size = "" if args.scale == "paper" else f" (scale {args.scale})"
        notes = [*table.notes, *footnotes(table, results, args)]
        made = sheet(table._replace(title=f"{table.title}{size}"), results, args.samples, notes)
        print(made.write(folder_of(table, args)), end="", flush=True)
    missing = [
        name
        for name, each in results.items()
        if not each.is_complete and (not args.only or name in args.only)
    ]
    if missing and not failures:
        failures = [
            f"the table is not complete: {', '.join(missing)} missing for seeds {args.seeds}; add --run to "
            "train and measure what is missing"
        ]
    if table.figure and found:
        try:
            write_figure(draw(table, results, args.scale), folder_of(table, args))
        except UsageError as error:
            failures = [*failures, str(error)]
    if failures:
        raise UsageError("; ".join(failures))


def show_status(
    work: Work, table: Table, args: argparse.Namespace, resources: tuple[Resources, Resources]
) -> None:
    """Show what each run does, until all have ended or the user leaves."""

    def look() -> tuple[str, bool]:
        return overview(
            f"Table {table.name}",
            lambda: steps(work, functools.partial(command, args), table.name, resources),
            lambda: background(logs_of(table, args)),
        )

    watch(look, shlex.join([own_program(), *command(args, "--status")[3:]]))


def command(args: argparse.Namespace, *more: str) -> list[str]:
    """Return the words of a command for the same table, with `more` options in place of what `args` does."""
    words = [os.path.abspath(args.table)]
    words += ["--data", os.path.abspath(args.data), "--out", os.path.abspath(args.out)]
    words += ["--seeds", args.seeds, "--scale", args.scale, "--samples", str(args.samples)]
    for row in args.only:
        words += ["--only", row]
    if args.user_dir:
        words += ["--user-dir", os.path.abspath(args.user_dir)]
    if args.pretrained:
        words += ["--pretrained", os.path.abspath(args.pretrained)]
    options_of_train = ["--", *args.options] if args.options else []
    return [*python_module("modular_fairseq_cli"), "table", *words, *more, *options_of_train]


def launch(
    work: Work,
    table: Table,
    args: argparse.Namespace,
    resources: tuple[Resources, Resources],
    jobs: int,
) -> None:
    """Make the runs as jobs, and say how to go on.

    Args:
        work: the runs.
        table: the table.
        args: the arguments of the command.
        resources: what trainings and evaluations ask for.
        jobs: the number of runs at a time, in the background.

    Raises:
        UsageError: the jobs cannot be submitted.
    """
    check(work)
    logs = logs_of(table, args)
    if args.launcher == "local":
        submit_to_background(command(args, "--run", "--jobs", str(jobs), *resources[0].gpus_option), logs)
    else:
        submit(lambda: steps(work, functools.partial(command, args), table.name, resources), logs)
    shown, made = (shlex.join([own_program(), *command(args, *words)[3:]]) for words in (["--status"], []))
    print(f"what they do: {shown}\nthe table:    {made}")


def folder_of(table: Table, args: argparse.Namespace) -> str:
    """Return the folder for the table."""
    return os.path.join(args.out, args.scale, table.name)


def logs_of(table: Table, args: argparse.Namespace) -> str:
    """Return the folder for the logs of jobs."""
    return os.path.join(folder_of(table, args), "jobs")


def footnotes(table: Table, results: dict[str, Results], args: argparse.Namespace) -> list[str]:
    """Return sentences that explain the numbers, for the notes below the table."""
    scale = (
        ""
        if args.scale == "paper"
        else f"Scale {args.scale} changes the sizes that the files of the rows give. "
    )
    if scale and any(row.paper for row in table.rows):
        scale += "So the paper's numbers are no target. "
    if args.scale == "smoke":
        scale = (
            "Scale smoke: tiny models with little training, which only show that everything runs; neither "
            "the numbers nor the order of the rows mean anything. "
        )
    several = f", {table.average} ± standard deviation" if "," in args.seeds else ""
    notes = [f"{scale}Seeds {args.seeds}{several}."]
    known = [each.finished_result() for found in results.values() for each in found.found]
    notes += [note for evaluation in table.evaluations for note in evaluation.notes(known)]
    if any(row.baseline not in ("", row.name) for row in table.rows):
        notes += [explain_tests(each, args, table.average) for each in table.evaluations[:1]]
    for name in dict.fromkeys(found.row.baseline for found in results.values()):
        if "," in args.seeds and name in results and len(results[name].seeds) == 1:
            notes.append(
                f"There is one model of the row {results[name].row.label.strip()}. Intervals of differences "
                "from it account for the training noise of the other row alone."
            )
    tried = {row: found.chosen.values for row, found in results.items() if len(found.trials) > 1}
    if tried:
        shown = "; ".join(
            f"{row}: {', '.join(f'{key} {value}' for key, value in values.items())}"
            for row, values in tried.items()
            if results[row].is_complete
        )
        notes.append(f"Values with the best median, which are shown: {shown or 'not known yet'}.")
    return notes


def explain_tests(evaluation: Evaluation, args: argparse.Namespace, average: str = "mean") -> str:
    """Return the sentences that say what the interval and the p-values of the differences account for.

    Args:
        evaluation: the evaluation whose first column is compared.
        args: the options of the command.
        average: "mean" or "median", which the table shows of several seeds. A difference is always one of
            means.
    """
    of_means = " of the means" if average != "mean" and "," in args.seeds else ""
    what = f"Difference{of_means} from the baseline in {evaluation.columns[evaluation.key].heading}"
    single = evaluation.test and f"{evaluation.test} ({args.samples} samples)"
    choice = f"the choice of {evaluation.units}"
    if "," not in args.seeds:
        tested = f", with the p of {single}, which accounts for {choice} alone"
        return f"{what}{tested if single else ''}."
    causes, over = (f" and for {choice}", f"seeds and {evaluation.units}") if single else ("", "seeds")
    of_test = f"the largest p over the seeds of {single}, which accounts for {choice} alone; "
    return (
        f"{what} [95 % interval over {over}]. In parentheses are the p of the interval, which accounts for "
        f"training noise{causes}; {of_test if single else ''}and the p of Welch's t-test over seeds, which "
        "accounts for training noise alone."
    )
