"""From a table and a command line to runs and evaluations, before anything is run."""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from modular_fairseq.runs.config import Config, on_subset, read_config, scaled, why
from modular_fairseq.runs.evaluations.bleu import Evaluation
from modular_fairseq.runs.papers.table import Results, Row, Table
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import by_option, read_seeds
from modular_fairseq_cli.errors import UsageError

# What runs are filed, ended, continued and counted by; the rest of fairseq-train's options may follow a --.
OWN_OPTIONS = re.findall(
    r"\S+",
    "--arch -a --task --source-lang -s --target-lang -t --seed --save-dir --user-dir --log-format --log-file "
    "--max-update --max-epoch --stop-time-hours --patience --disable-validation "
    "--keep-last-epochs --no-epoch-checkpoints --no-save --no-last-checkpoints --no-best-checkpoints "
    "--no-save-optimizer-state "
    "--restore-file --checkpoint-suffix --finetune-from-model "
    "--attention-type --mae-training --mae-gating --mae-finetune",
)


def plan(table: Table, args: argparse.Namespace) -> dict[str, Results]:
    """What the rows are made of, by their names.

    Raises:
        UsageError: options or files that no table can be made of.
    """
    seeds = read_seeds(args.seeds)
    names = [row.name for row in table.rows if row.name]
    for name in args.only:
        if name not in names:
            raise UsageError(f"--only {name}: is no row of {args.table}; there are {', '.join(names)}")
    if args.samples < 1 or (args.jobs is not None and args.jobs < 1):
        raise UsageError("--jobs and --samples must be at least 1")
    if args.jobs is not None and not args.run:
        raise UsageError("--jobs has no effect without --run; leave it out")
    for option in by_option(args.options):
        if option in OWN_OPTIONS:
            raise UsageError(
                f"{option} after --: the table sets it, or needs what the rows say; change the rows, or use "
                "--seeds and --scale"
            )
    rows = Rows(args, read_scale(args.table, args.scale))
    results = {row.name: rows.results(row, seeds, "LR" in table.columns) for row in table.rows if row.name}
    refuse_equal_rows(results, args.scale)
    if args.pretrained and not any(
        each.run.start for found in results.values() for each in found.evaluations
    ):
        raise UsageError(
            f"--pretrained has no effect on {args.table}, of which no row is fine-tuned; leave it out"
        )
    return results


def refuse_equal_rows(results: dict[str, Results], scale: str) -> None:
    """Two rows that differ only in what a scale sets would look like a finding."""
    seen: dict[Any, str] = {}
    for name, found in results.items():
        (each, *_) = found.evaluations
        key = (
            *each.run.config.train_options(),
            *each.generate_command[1:],
            str(each.run.start),
            each.run.trains,
            each.run.config.data,
        )
        key = tuple(word for word in key if not str(word).startswith(each.run.path()))
        if seen.setdefault(key, name) != name:
            where = "" if scale == "paper" else f" at --scale {scale}, which sets what they differ in"
            raise UsageError(
                f"rows {seen[key]} and {name} are the same{where}; change one of them, or take another scale"
            )


def read_scale(table: str, name: str) -> dict:
    """configs/scales/NAME.yaml, beside the folder of the table; paper: as the rows have it."""
    if name == "paper":
        return {}
    folder = Path(table).resolve().parent.parent / "scales"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise UsageError(
            f"--scale {name}: there is no {folder / name}.yaml; give one of {', '.join([*known, 'paper'])}"
        )
    try:
        return yaml.safe_load((folder / f"{name}.yaml").read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{folder / name}.yaml: cannot be read ({why(error)}); see configs/scales/smoke.yaml"
        ) from None


class Rows:
    """Runs and evaluations of rows, for one command line."""

    def __init__(self, args: argparse.Namespace, scale: dict):
        self.args, self.scale = args, scale
        self.folder = os.path.join(os.path.abspath(args.out), args.scale)

    def config(self, path: str) -> Config:
        return scaled(read_config(path), self.scale)

    def run(self, config: Config, seed: int) -> Run:
        start = config.get("checkpoint.finetune_from_model")
        if start is not None and self.args.pretrained:
            start = os.path.abspath(self.args.pretrained)
        elif start is not None:  # a row; of its seeds the first
            start = self.run(self.config(os.path.join(os.path.dirname(config.path), start)), 1)
        values = {group: dict(keys) for group, keys in config.values.items()}
        values.get("checkpoint", {}).pop("finetune_from_model", None)
        values.get("common", {}).pop("seed", None)
        data = os.path.abspath(self.args.data)
        return Run(config._replace(values=values), seed, self.folder, data, tuple(self.args.options), start)

    def results(self, row: Row, seeds: list[int], redundancy: bool) -> Results:
        config = on_subset(self.config(row.config), row.percent)
        runs = [
            self.run(config, seed)._replace(trains=not row.pretrained)
            for seed in seeds[: 1 if row.pretrained else None]
        ]
        return Results(
            row,
            [
                Evaluation(each, row.subset, tuple(values.items()), redundancy)
                for each in runs
                for values in row.overrides
            ],
        )


def needed(results: dict[str, Results], only: list[str]) -> list[tuple[Run, list[Evaluation]]]:
    """The runs, and of each what is to be translated, in an order in which a run comes after the one that it
    fine-tunes.
    """
    wanted: dict[str, tuple[Run, list[Evaluation]]] = {}

    def add(each: Run) -> list[Evaluation]:
        if isinstance(each.start, Run):
            add(each.start)
        return wanted.setdefault(each.path(), (each, []))[1]

    for name, found in results.items():
        if not only or name in only:
            for evaluation in found.evaluations:
                add(evaluation.run).append(evaluation)
    return list(wanted.values())


def show_commands(results: dict[str, Results], only: list[str]) -> str:
    """The commands of all runs, for a shell."""
    lines = []
    for each, evaluations in needed(results, only):
        done = "" if each.training is None else "# done: "
        lines.append(f"# {each.name}")
        if each.subset_command:  # does nothing where it has been done
            lines.append(done + shlex.join(each.subset_command))
        if each.trains:
            lines += [
                done + shlex.join(each.train_command),
                *([done + shlex.join(each.average_command)] if each.config.averaged else []),
            ]
        for evaluation in evaluations:
            done = "" if evaluation.result is None else "# done: "
            lines += [
                f"{done}{shlex.join(evaluation.generate_command)} >{shlex.quote(evaluation.path('out'))}"
            ]
            lines += [f"{done}cp {shlex.quote(evaluation.reference)} {shlex.quote(evaluation.ref)}"]
            lines += [done + shlex.join(evaluation.score_command)]
            lines += [done + shlex.join(evaluation.redundancy_command)] if evaluation.redundancy else []
    return "\n".join(lines)
