"""The tables of the papers: ours beside theirs, from the result files of runs, which --run makes first.

    modular-fairseq table mae-3 --data data --run --seeds 1,2,3  # trains and measures all rows
    modular-fairseq table mae-3 --data data --dry-run            # shows the commands of that
    modular-fairseq table mae-3 --seeds 1,2,3                    # only makes the table of what is there
    modular-fairseq table configs/mine/table.yaml --run          # your own
    modular-fairseq table mae-3 --scale smoke --run              # narrow models on a toy corpus, in minutes

A row is a file beside table.yaml, an experiment in the keys of fairseq-hydra-train; configs/manual.yaml
explains them. What follows a -- goes to every fairseq-train, as in `-- --fp16`. The folder --data holds the
prepared corpora under the names that the rows give (task.data); at scale smoke --run makes small stand-ins
for those of the papers if no --data is given.

Runs are filed in OUT/SCALE/TABLE/ROW/seed-N: checkpoints, train.log, settings.json, training.json, and per
test set what was measured (.json), the translation (.out) and its references (.ref). What is there is not
done again; killed runs go on where they were. Several rows can be trained at the same time: with --jobs, or
by the same command with --only in other shells or on other machines (give each its GPU by
CUDA_VISIBLE_DEVICES). table.txt, .tsv and .md lie in OUT/SCALE/TABLE, and figure.svg and .png where
table.yaml wants a figure.

The columns of a table decide what is measured: BLEU is sacrebleu's, of detokenised text; perplexity is
fairseq-validate's; LR and HR are the redundancy of attention. Shown are mean and standard deviation over
seeds. The difference is from the row's baseline, seed by seed; its p is that of sacrebleu's paired bootstrap
(of the choice of sentences), the largest of the seeds, and, if there are several, that of Welch's t-test (of
training noise). Tokenised and compound-split BLEU are there to be compared with the paper.
"""

import argparse
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor

from modular_fairseq.runs.corpora import make_toys
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.papers.figure import draw, write_figure
from modular_fairseq.runs.papers.plan import needed, plan, show_commands
from modular_fairseq.runs.papers.results import Results, sheet
from modular_fairseq.runs.papers.table import Table, read_table
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import take_options_after_dashes
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import processors, say
from modular_fairseq_cli.shipped import configs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "modular-fairseq table TABLE [--data DIR] [--out DIR] [--run | --dry-run] [options] "
        "[-- OPTIONS of fairseq-train]"
    )
    parser.add_argument("table", metavar="TABLE", help="a table.yaml, or the name of a table, such as mae-3")
    parser.add_argument(
        "--data",
        metavar="DIR",
        help="the prepared corpora, each in a folder of its own (default: data; at scale smoke toys)",
    )
    parser.add_argument("--out", metavar="DIR", help="for runs and tables (default: results)")
    parser.add_argument(
        "--home",
        default="",
        metavar="DIR",
        help="folder of data and results, unless --data and --out name them (default: .)",
    )
    parser.add_argument("--seeds", default="1", metavar="N,N", help="of every row's runs (default: 1)")
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="ROW",
        help="by name, as in table.yaml; may be given again",
    )
    parser.add_argument(
        "--scale", default="paper", metavar="NAME", help="paper, or a file of configs/scales: smoke, small"
    )
    parser.add_argument(
        "--jobs", type=int, metavar="N", help="runs at a time (default: 1; 2 on the corpora of scale smoke)"
    )
    parser.add_argument(
        "--samples", type=int, default=1000, metavar="N", help="of the paired bootstrap (default: 1000)"
    )
    parser.add_argument(
        "--pretrained", metavar="FILE", help="what fine-tuning starts from, instead of a run of this project"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", action="store_true", help="first train, average and measure what is missing")
    what.add_argument(
        "--dry-run", action="store_true", help="only show the commands of --run; writes nothing"
    )
    take_options_after_dashes(parser)


def run(args: argparse.Namespace) -> None:
    args.table = find_table(args.table)
    args.out = args.out or os.path.join(args.home, "results")
    toys = args.scale == "smoke" and not args.data
    args.data = args.data or (
        os.path.join(args.out, "smoke", "data") if toys else os.path.join(args.home, "data")
    )
    table = read_table(args.table)
    results = plan(table, args)
    for found in results.values():
        for each in found.measurements:
            each.run.refuse_another()
    if args.dry_run:
        print(show_commands(results, args.only))
        return
    failures = []
    if args.run:
        work = needed(results, args.only)
        if toys:
            folders = dict.fromkeys(each.corpus.folder for each, _ in work)
            make_toys(args.data, [os.path.relpath(folder, args.data) for folder in folders])
        failures = make(work, args.jobs or (2 if toys else 1))
    if any(each.found for each in results.values()):
        made = sheet(table, results, args.samples, [*table.notes, *footnotes(table, results, args)])
        print(made.write(folder_of(table, args)), end="", flush=True)
    missing = [
        name
        for name, each in results.items()
        if not each.is_complete and (not args.only or name in args.only)
    ]
    if missing and not failures:
        failures.append(
            f"the table is not complete: {', '.join(missing)} missing for seeds {args.seeds}; add --run to "
            "have them trained"
        )
    if table.figure and any(each.found for each in results.values()):
        try:
            write_figure(draw(table, results, args.scale), folder_of(table, args))
        except UsageError as error:
            failures.append(str(error))
    if failures:
        raise UsageError("; ".join(failures))


def find_table(name: str) -> str:
    """Return the path of a table.yaml: `name` itself, or that of a table of the papers.

    Raises:
        UsageError: `name` is the name of no table.
    """
    if os.sep in name or os.path.isfile(name):
        return name
    known = sorted(path.parent.name for path in configs().glob("*/table.yaml"))
    if name not in known:
        raise UsageError(f"TABLE {name}: is no table; give a table.yaml, or one of {', '.join(known)}")
    return str(configs() / name / "table.yaml")


def make(work: list[tuple[Run, list[Measurement]]], jobs: int) -> list[str]:
    """Finish runs, some at a time, and tell on standard error what is done.

    Returns:
        What went wrong, a sentence a run; the others are finished all the same.

    Raises:
        UsageError: before anything runs: a corpus is missing, or a folder holds a run on another one.
        SystemExit: the user pressed Ctrl-C.
    """
    for each, _ in work:
        each.check()
    done: dict[str, Future] = {}

    def finish(number: int, each: Run, measurements: list[Measurement]) -> str | None:
        try:
            if isinstance(each.start, Run) and done[each.start.folder].result():
                return f"{each.name}: cannot be fine-tuned from {each.start.name}"
            each.train(say)
            for measurement in measurements:
                measurement.finish(say)
                for way in measurement.evaluations:
                    column, value = way.columns[way.key], measurement.result[way.key]
                    found = f"{measurement.subset} {column.heading} {column.pattern.format(value)}"
                    say(f"[{number} of {len(work)}] {each.name}: {found}")
        except (UsageError, OSError) as error:
            say(f"{each.name}: {error}")
            return f"{each.name}: {error}"
        except BaseException:
            # A fault of this program: what is queued would run into it, too.
            pool.shutdown(wait=False, cancel_futures=True)
            raise

    # Else each command takes all processors.
    os.environ.setdefault("OMP_NUM_THREADS", str(max(1, processors() // jobs)))
    pool = ThreadPoolExecutor(jobs)
    try:
        for number, (each, measurements) in enumerate(work, 1):
            done[each.folder] = pool.submit(finish, number, each, measurements)
        return [failure for future in done.values() if (failure := future.result())]
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr, flush=True)
        os._exit(130)  # and with this process what it started; to leave otherwise would be to wait for that


def folder_of(table: Table, args: argparse.Namespace) -> str:
    return os.path.join(args.out, args.scale, table.name)


def footnotes(table: Table, results: dict[str, Results], args: argparse.Namespace) -> list[str]:
    """Return sentences on what the numbers are."""
    scale = (
        ""
        if args.scale == "paper"
        else f"Scale {args.scale}: other sizes than the paper's, so its figures are no target. "
    )
    if args.scale == "smoke":
        scale = (
            "Scale smoke: tiny models, hardly trained, to see that everything runs; neither figures nor "
            "order of the rows say anything. "
        )
    notes = [f"{scale}Seeds {args.seeds}{', mean ± standard deviation' if ',' in args.seeds else ''}."]
    known = [each.result for found in results.values() for each in found.found]
    notes += [note for way in table.evaluations for note in way.notes(known)]
    for way in table.evaluations[:1]:
        note = f"Difference from the baseline in {way.columns[way.key].heading}"
        welch = "that of Welch's t-test over seeds" if "," in args.seeds else ""
        if way.test:
            note += f", with the p of {way.test} ({args.samples} samples)"
            note += f"; of several the largest; then {welch}" if welch else ""
        elif welch:
            note += f"; its p is {welch}"
        notes.append(f"{note}.")
    return notes
