"""Plan a table before anything is run, and refuse options and rows that cannot work together."""

import argparse
import shlex
from typing import Any

from modular_fairseq.runs.config import DECODING, SELECTORS
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.fixed_options import refuse_fixed
from modular_fairseq.runs.papers.results import Results
from modular_fairseq.runs.papers.row_planner import RowPlanner
from modular_fairseq.runs.papers.table import Table
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.sizes import read_scale
from modular_fairseq.runs.workers import share_batches
from modular_fairseq.training.command_line import parse
from modular_fairseq_cli.arguments import by_option, read_seeds
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import check_data_folder, check_run_folder

# Options that the rows or this command set. Users may give all others after a --.
OWN_OPTIONS = [
    "--arch",
    "-a",
    "--task",
    "--source-lang",
    "-s",
    "--target-lang",
    "-t",
    "--seed",
    "--max-update",
    "--max-epoch",
    "--keep-last-epochs",
    "--no-epoch-checkpoints",
    "--finetune-from-model",
    "--distributed-world-size",
]


def plan(table: Table, args: argparse.Namespace) -> dict[str, Results]:
    """Plan the runs and measurements of all rows.

    Args:
        table: the table.
        args: the arguments of `modular-fairseq table`.

    Returns:
        For each row that is trained, its measurements, keyed by the row's name.

    Raises:
        UsageError: an option or a file is wrong.
    """
    seeds = read_seeds(args.seeds)
    names = [row.name for row in table.rows if row.name]
    for name in args.only:
        if name not in names:
            raise UsageError(f"--only {name}: {args.table} has no such row; give one of {', '.join(names)}")
    for name in ("samples", "jobs"):
        if (value := getattr(args, name)) is not None and value < 1:
            raise UsageError(f"--{name} must be at least 1, not {value}")
    if args.jobs is not None and not args.run:
        raise UsageError("--jobs has no effect without --run; leave it out")
    check_data_folder(args.data, "--data")
    check_run_folder(args.out, "--out")
    scale = read_scale(args.table, args.scale)
    planner = RowPlanner(args, scale, table)
    results = {row.name: planner.results(row, seeds) for row in table.rows if row.name}
    given = by_option(args.options)
    if given[""]:
        raise UsageError(f"{given[''][0]}: after the -- come options of fairseq-train, such as --fp16")
    if "--user-dir" in given:
        raise UsageError("--user-dir cannot be given after the --; give it before")
    refuse_fixed(args.options, "after the --")
    for option in given:
        if option in OWN_OPTIONS or option in differences(results):
            raise UsageError(
                f"{option} cannot be given after the --, because the table sets it or its rows differ in it; "
                "change the rows, or use --seeds, --scale and --gpus"
            )
    if args.options:
        first = next(iter(results.values()))  # a table has at least one row that is trained
        parse(first.measurements[0].run.words)  # refuses options that fairseq-train would refuse
    refuse_equal_rows(results, args.scale)
    refuse_shared_files(results)
    for run, _ in needed(results, args.only):
        share_batches(run.words, run.workers)  # refuses a number of GPUs that does not fit
    if args.pretrained and not any(run.start for run, _ in needed(results, [])):
        raise UsageError(
            f"--pretrained has no effect on {args.table}, because no row is fine-tuned; leave it out"
        )
    return results


def differences(results: dict[str, Results]) -> set[str]:
    """Return the options in which the trainings of rows differ, and which so cannot be set for all rows."""
    rows = [found.config.values for found in results.values()]
    groups = {group for row in rows for group in row if group not in DECODING}
    searched = {
        tuple(key.split(".")) for found in results.values() for each in found.trials for key in each.values
    }
    differ = searched | {
        (group, key)
        for group in groups
        for key in {key for row in rows for key in row.get(group, {})}
        if len({str(row.get(group, {}).get(key)) for row in rows}) > 1
    }
    return {SELECTORS[group] if key == "_name" else "--" + key.replace("_", "-") for group, key in differ}


def refuse_equal_rows(results: dict[str, Results], scale: str) -> None:
    """Refuse two rows that are equal, because their equal results would look like a finding.

    Rows may become equal because a scale sets what they differ in.

    Raises:
        UsageError: two rows are equal.
    """
    seen: dict[Any, str] = {}
    for name, found in results.items():
        run, first = found.measurements[0].run, found.measurements[0]
        ways = tuple(each.overrides for each in found.measurements if each.run == run)
        key = (run.corpus, run.words, run.trains, str(run.start), first.subset, first.decoding, ways)
        if seen.setdefault(key, name) != name:
            where = "" if scale == "paper" else f" at --scale {scale}, which sets what they differ in"
            raise UsageError(
                f"rows {seen[key]} and {name} are the same{where}; change one of them, or use another scale"
            )


def refuse_shared_files(results: dict[str, Results]) -> None:
    """Refuse two runs, or two measurements of one, that differ but would write the same files.

    Raises:
        UsageError: there are two such measurements or runs.
    """
    seen: dict[tuple[str, str], tuple[str, list[str]]] = {}
    runs: dict[str, tuple[str, Run]] = {}
    for name, found in results.items():
        for each in found.measurements:
            for run in each.run.with_starts():
                first, other_run = runs.setdefault(run.folder, (name, run))
                if run.trains != other_run.trains:
                    raise UsageError(
                        f"rows {first} and {name} have the same file, but only one of them is pretrained; "
                        "give one of the rows a copy of the file under another name"
                    )
                if run != other_run:
                    raise UsageError(
                        f"rows {first} and {name} train differently in one folder, {run.folder}; give the "
                        "file of one of the rows another name, or put it into a folder of another name"
                    )
            other, settings = seen.setdefault((each.run.folder, each.name), (name, each.settings))
            if settings != each.settings:
                raise UsageError(
                    f"rows {other} and {name} measure the same training with different options, but the "
                    f"results of both would be called {each.name}; give one of the rows a copy of its file "
                    "under another name"
                )


def needed(results: dict[str, Results], only: list[str]) -> list[tuple[Run, list[Measurement]]]:
    """Return the runs with their measurements, ordered so that a run comes after the one that it fine-tunes.

    Args:
        results: the plan of the table.
        only: names of the rows to include; empty: all rows.
    """
    wanted: dict[str, tuple[Run, list[Measurement]]] = {}

    def add(run: Run) -> list[Measurement]:
        if isinstance(run.start, Run):
            add(run.start)
        return wanted.setdefault(run.folder, (run, []))[1]

    for name, found in results.items():
        if not only or name in only:
            for each in found.measurements:
                add(each.run).append(each)
    return list(wanted.values())


def show_commands(results: dict[str, Results], only: list[str]) -> str:
    """Return shell commands of all runs and measurements; those that are done already are comments."""
    lines = []
    for run, measurements in needed(results, only):
        lines.append(f"# {run.name}")
        commands = [run.corpus.subset_command, *run.commands]
        lines += [_done(run.training) + shlex.join(command) for command in commands if command]
        for each in measurements:
            lines += [_done(each.result) + line for way in each.evaluations for line in way.commands(each)]
    return "\n".join(lines)


def _done(result: dict[str, Any] | None) -> str:
    """Return the beginning of a command whose result this is."""
    return "" if result is None else "# done: "
