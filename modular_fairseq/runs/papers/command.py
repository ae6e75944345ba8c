"""The tables of the papers: ours beside theirs, from the result files of runs, which --run makes first.

    modular-fairseq table configs/mae-3/table.yaml --data data --run --seeds 1,2,3    # trains, averages, translates and scores all rows
    modular-fairseq table configs/mae-3/table.yaml --data data --dry-run              # shows the commands of that
    modular-fairseq table configs/mae-3/table.yaml --seeds 1,2,3                      # only makes the table of what is there

A row is a file beside table.yaml, an experiment in the keys of fairseq-hydra-train; configs/manual.yaml
explains them. What follows a -- goes to every fairseq-train, as in `-- --fp16`. DATA holds the prepared
corpora under the names that the rows give (task.data).

Runs are filed in OUT/SCALE/TABLE/ROW/seed-N: checkpoints, train.log, settings.json, training.json, and per
test set the translation (.out), its references (.ref) and scores (.json). What is there is not done again;
killed runs go on where they were. Several rows can be trained at the same time: with --jobs, or by the same
command with --only in other shells or on other machines (give each its GPU by CUDA_VISIBLE_DEVICES).
table.txt, .tsv and .md lie in OUT/SCALE/TABLE, and figure.svg and .png where table.yaml wants a figure.

BLEU is sacrebleu's, of detokenised text, mean and standard deviation over seeds. The difference is from the
row's baseline, seed by seed; its p is that of sacrebleu's paired bootstrap (of the choice of sentences), the
largest of the seeds, and, where there are several, that of Welch's t-test (of training noise). Tokenised and
compound-split BLEU are there to be compared with the paper.
"""

import argparse
import os
import sys
from concurrent.futures import Future, ThreadPoolExecutor

from tabulate import tabulate

from modular_fairseq.runs.evaluations.bleu import Evaluation
from modular_fairseq.runs.papers.figure import draw, write_figure
from modular_fairseq.runs.papers.plan import needed, plan, show_commands
from modular_fairseq.runs.papers.table import Results, Table, cells, read_table
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import take_options_after_dashes
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.processes import processors, say


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "modular-fairseq table TABLE [--data DIR] [--out DIR] [--run | --dry-run] [options] [-- OPTIONS of fairseq-train]"
    parser.add_argument("table", metavar="TABLE", help="a table.yaml")
    parser.add_argument(
        "--data",
        default="data",
        metavar="DIR",
        help="the prepared corpora, each in a folder of its own (default: data)",
    )
    parser.add_argument(
        "--out", default="results", metavar="DIR", help="for runs and tables (default: results)"
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
    parser.add_argument("--jobs", type=int, metavar="N", help="runs at a time (default: 1)")
    parser.add_argument(
        "--samples", type=int, default=1000, metavar="N", help="of the paired bootstrap (default: 1000)"
    )
    parser.add_argument(
        "--pretrained", metavar="FILE", help="what fine-tuning starts from, instead of a run of this project"
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument(
        "--run", action="store_true", help="first train, average, translate and score what is missing"
    )
    what.add_argument("--dry-run", action="store_true", help="only show the commands of that; writes nothing")
    take_options_after_dashes(parser)


def run(args: argparse.Namespace) -> None:
    table = read_table(args.table)
    results = plan(table, args)
    for found in results.values():
        for each in found.evaluations:
            each.run.refuse_another()
    if args.dry_run:
        print(show_commands(results, args.only))
        return
    failures = make(results, args.only, args.jobs or 1) if args.run else []
    if any(each.found for each in results.values()):
        write_table(table, results, args)
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


def make(results: dict[str, Results], only: list[str], jobs: int) -> list[str]:
    """Finishes every run that is needed, some at a time, and tells on standard error what it does.

    Returns:
        What went wrong, a sentence per run; the others are finished all the same.

    Raises:
        UsageError: before anything runs: a corpus is missing, or a folder holds a run on another one.
        SystemExit: the user pressed Ctrl-C.
    """
    work = needed(results, only)
    for each, _ in work:
        each.check()
    done: dict[str, Future] = {}

    def finish(number: int, each: Run, evaluations: list[Evaluation]) -> str | None:
        try:
            if isinstance(each.start, Run) and done[each.start.path()].result():
                return f"{each.name}: cannot be fine-tuned from {each.start.name}"
            each.train(say)
            for evaluation in evaluations:
                evaluation.finish(say)
                say(
                    f"[{number} of {len(work)}] {each.name}: {evaluation.subset} BLEU "
                    f"{evaluation.result['bleu']:.2f}"
                )
        except (UsageError, OSError) as error:
            say(f"{each.name}: {error}")
            return f"{each.name}: {error}"
        except BaseException:
            pool.shutdown(
                wait=False, cancel_futures=True
            )  # a fault of this program: what is queued would run into it too
            raise

    os.environ.setdefault(
        "OMP_NUM_THREADS", str(max(1, processors() // jobs))
    )  # else each command takes all processors
    pool = ThreadPoolExecutor(jobs)
    try:
        for number, (each, evaluations) in enumerate(work, 1):
            done[each.path()] = pool.submit(finish, number, each, evaluations)
        return [failure for future in done.values() if (failure := future.result())]
    except KeyboardInterrupt:
        print("\nstopped; the same command goes on from here", file=sys.stderr, flush=True)
        os._exit(130)  # and with this process what it started; to leave otherwise would be to wait for that


def write_table(table: Table, results: dict[str, Results], args: argparse.Namespace) -> None:
    """Prints the table and writes it beside its runs.

    Raises:
        UsageError: the folder cannot be written.
    """
    heads, shown, numbers = cells(table, results, args.samples)
    notes = [*table.notes, *footnotes(results, args)]
    right = {"colalign": ("left", *["right"] * (len(heads) - 1)), "disable_numparse": True}
    text = "\n".join([table.title, "", tabulate(shown, heads, "simple", **right), "", *notes]) + "\n"
    markdown = (
        "\n".join(
            [
                f"**{table.title}**",
                "",
                tabulate(shown, heads, "pipe", **right),
                "",
                *(f"- {note}" for note in notes),
            ]
        )
        + "\n"
    )
    files = {
        "txt": text,
        "md": markdown,
        "tsv": "".join("\t".join(map(str, line)) + "\n" for line in numbers),
    }
    folder = folder_of(table, args)
    try:
        os.makedirs(folder, exist_ok=True)
        for kind, content in files.items():
            write_file(os.path.join(folder, f"table.{kind}"), content)
    except OSError as error:
        raise UsageError(
            f"--out {args.out}: the table cannot be written ({error.strerror}); mend that"
        ) from None
    print(text, end="", flush=True)


def folder_of(table: Table, args: argparse.Namespace) -> str:
    return os.path.join(args.out, args.scale, table.name)


def footnotes(results: dict[str, Results], args: argparse.Namespace) -> list[str]:
    """What the numbers are."""
    known = [each.result for found in results.values() for each in found.evaluations if each.result]
    scale = (
        ""
        if args.scale == "paper"
        else f"Scale {args.scale}: other sizes than the paper's, so its figures are no target. "
    )
    if args.scale == "smoke":
        scale = "Scale smoke: tiny models, hardly trained, to see that everything runs; neither figures nor order of the rows say anything. "
    notes = [f"{scale}Seeds {args.seeds}{', mean ± standard deviation' if ',' in args.seeds else ''}."]
    notes += [f"BLEU: {signature}" for signature in sorted({result["bleu_signature"] for result in known})]
    if any("tokenized_bleu" in result for result in known):
        notes.append("Tokenised and compound-split BLEU are for comparison with the paper only.")
    several = "; of several the largest; then that of Welch's t-test over seeds" if "," in args.seeds else ""
    notes.append(
        f"Difference from the baseline in BLEU, with the p of the paired bootstrap ({args.samples} "
        f"samples){several}."
    )
    return notes
