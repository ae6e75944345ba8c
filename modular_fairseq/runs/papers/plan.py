"""From a table and a command line to runs and measurements, before anything is run."""

import argparse
import os
import re
import shlex
from pathlib import Path
from typing import Any

import yaml

from modular_fairseq.runs.config import DECODING, Config, on_subset, read_config, scaled, why
from modular_fairseq.runs.evaluation import EVALUATIONS, Evaluation, Measurement
from modular_fairseq.runs.papers.results import Results
from modular_fairseq.runs.papers.table import Row, Table
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.arguments import by_option, read_seeds
from modular_fairseq_cli.errors import UsageError

# What runs are filed, ended, continued and counted by; the rest of fairseq-train's options may follow a --.
OWN_OPTIONS = re.findall(
    r"\S+",
    "--arch -a --task --source-lang -s --target-lang -t --seed --save-dir --user-dir --log-format --log-file "
    "--max-update --max-epoch --stop-time-hours --patience --disable-validation --keep-last-epochs "
    "--no-epoch-checkpoints --no-save --no-last-checkpoints --no-best-checkpoints --no-save-optimizer-state "
    "--restore-file --checkpoint-suffix --finetune-from-model",
)


def plan(table: Table, args: argparse.Namespace) -> dict[str, Results]:
    """Return what the rows are made of, by their names.

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
    rows = Rows(args, read_scale(args.table, args.scale), table.evaluations)
    results = {row.name: rows.results(row, seeds) for row in table.rows if row.name}
    for option in by_option(args.options):
        if option in OWN_OPTIONS or option in differences(results):
            raise UsageError(
                f"{option} after --: the table sets it, or needs what the rows say; change the rows, or use "
                "--seeds and --scale"
            )
    refuse_equal_rows(results, args.scale)
    if args.pretrained and not any(run.start for run, _ in needed(results, [])):
        raise UsageError(
            f"--pretrained has no effect on {args.table}, of which no row is fine-tuned; leave it out"
        )
    return results


def differences(results: dict[str, Results]) -> set[str]:
    """Return the options of models in which the rows differ, so that they cannot be the same for all."""
    models = [found.config.values["model"] for found in results.values()]
    keys = {key for model in models for key in model}
    differ = {key for key in keys if len({str(model.get(key)) for model in models}) > 1}
    return {"--" + key.replace("_", "-") for key in differ}


def refuse_equal_rows(results: dict[str, Results], scale: str) -> None:
    """Refuse two rows that differ only in what a scale sets: they would look like a finding."""
    seen: dict[Any, str] = {}
    for name, (_, _, (each, *_)) in results.items():
        run = each.run
        key = (run.corpus, run.words, run.trains, str(run.start), each.subset, each.decoding, each.overrides)
        if seen.setdefault(key, name) != name:
            where = "" if scale == "paper" else f" at --scale {scale}, which sets what they differ in"
            raise UsageError(
                f"rows {seen[key]} and {name} are the same{where}; change one of them, or take another scale"
            )


def read_scale(table: str, name: str) -> dict:
    """Read configs/scales/NAME.yaml, beside the folder of the table; paper: nothing is changed."""
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
    """Runs and measurements of rows, for one command line."""

    def __init__(self, args: argparse.Namespace, scale: dict, evaluations: tuple[Evaluation, ...]):
        self.args, self.scale, self.evaluations = args, scale, evaluations
        self.folder = os.path.join(os.path.abspath(args.out), args.scale)
        self.data = os.path.abspath(args.data)

    def config(self, path: str) -> Config:
        return scaled(read_config(path), self.scale)

    def run(self, config: Config, seed: int, trains: bool = True) -> Run:
        """Return the run of a row. It is fine-tuned from a row's run of seed 1, or from --pretrained."""
        start = config.get("checkpoint.finetune_from_model")
        if start is not None and self.args.pretrained:
            start = os.path.abspath(self.args.pretrained)
        elif start is not None:
            start = self.run(self.config(os.path.join(os.path.dirname(config.path), start)), 1)
        values = {group: dict(keys) for group, keys in config.values.items()}
        values.get("checkpoint", {}).pop("finetune_from_model", None)
        values.get("common", {}).pop("seed", None)
        name = f"{config.name}/seed-{seed}"
        return Run(
            name,
            os.path.join(self.folder, name),
            config.corpus(self.data),
            (*config._replace(values=values).train_options(), *self.args.options),
            seed,
            self.settings(values, seed, start),
            start,
            config.averaged,
            trains,
        )

    def settings(
        self, values: dict[str, dict[str, Any]], seed: int, start: Run | str | None
    ) -> dict[str, Any]:
        """Return what the weights of a run depend on beside the corpus."""
        settings = {
            f"{group}.{key}": value
            for group, keys in values.items()
            if group not in DECODING
            for key, value in keys.items()
        }
        settings.pop("common.log_interval", None)
        options = shlex.join(self.args.options) or "none"
        start = start.name if isinstance(start, Run) else start
        return {**settings, "common.seed": seed, "options": options, "starts from": start}

    def results(self, row: Row, seeds: list[int]) -> Results:
        config = on_subset(self.config(row.config), row.percent)
        decoding = tuple(config.generate_options())
        runs = [self.run(config, seed, not row.pretrained) for seed in seeds[: 1 if row.pretrained else None]]
        for evaluation in self.evaluations:
            if not evaluation.fits(runs[0]):
                others = [name for each in EVALUATIONS if each.fits(runs[0]) for name in each.columns]
                raise UsageError(
                    f"{config.path}: column {evaluation.key} cannot be measured for task "
                    f"{config.get('task._name')}; use {', '.join(others)} in the columns of {self.args.table}"
                )
        return Results(
            row,
            config,
            [
                Measurement(run, self.evaluations, row.subset, tuple(values.items()), decoding)
                for run in runs
                for values in row.overrides
            ],
        )


def needed(results: dict[str, Results], only: list[str]) -> list[tuple[Run, list[Measurement]]]:
    """Return the runs, each with what is to be measured, in an order in which a run comes after the one that
    it fine-tunes.
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
    """Return the commands of all runs, for a shell."""
    lines = []
    for run, measurements in needed(results, only):
        lines.append(f"# {run.name}")
        commands = [run.corpus.subset_command, *run.commands]
        lines += [_done(run.training) + shlex.join(command) for command in commands if command]
        for each in measurements:
            lines += [_done(each.result) + line for way in each.evaluations for line in way.commands(each)]
    return "\n".join(lines)


def _done(result: dict[str, Any] | None) -> str:
    return "" if result is None else "# done: "
