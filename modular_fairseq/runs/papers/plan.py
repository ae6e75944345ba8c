"""Plan the runs and measurements of a table, before anything is run."""

import argparse
import os
import shlex
from itertools import product
from pathlib import Path
from typing import Any

from modular_fairseq.runs.config import DECODING, SELECTORS, Config, read_config
from modular_fairseq.runs.evaluation import EVALUATIONS, Measurement
from modular_fairseq.runs.fixed_options import refuse_fewer_checkpoints, refuse_fixed
from modular_fairseq.runs.papers.results import Results, Trial
from modular_fairseq.runs.papers.table import Row, Table
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.sizes import check_scale, on_subset, scaled, with_values
from modular_fairseq.runs.workers import share_batches
from modular_fairseq.runs.yaml_files import read_yaml
from modular_fairseq.training.command_line import parse
from modular_fairseq.user_dir import PLUGIN
from modular_fairseq_cli.arguments import by_option, read_seeds
from modular_fairseq_cli.errors import UsageError

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
    runs: dict[str, tuple[str, bool]] = {}
    for name, found in results.items():
        for each in found.measurements:
            first, trains = runs.setdefault(each.run.folder, (name, each.run.trains))
            if trains != each.run.trains:
                raise UsageError(
                    f"rows {first} and {name} have the same file, but only one of them is pretrained; give "
                    "one of the rows a copy of the file under another name"
                )
            other, settings = seen.setdefault((each.run.folder, each.name), (name, each.settings))
            if settings != each.settings:
                raise UsageError(
                    f"rows {other} and {name} measure the same training with different options, but the "
                    f"results of both would be called {each.name}; give one of the rows a copy of its file "
                    "under another name"
                )


def read_scale(table: str, name: str) -> dict:
    """Read the file of a scale.

    Args:
        table: path of the table.yaml. The file is scales/NAME.yaml beside the folder of the table.
        name: name of the scale; "paper" is the empty scale, which changes nothing.

    Returns:
        The scale, as for `scaled`.

    Raises:
        UsageError: there is no such scale, or its file cannot be read or has other parts.
    """
    if name == "paper":
        return {}
    folder = Path(table).resolve().parent.parent / "scales"
    known = sorted(path.stem for path in folder.glob("*.yaml"))
    if name not in known:
        raise UsageError(
            f"--scale {name}: there is no {folder / name}.yaml; give one of {', '.join([*known, 'paper'])}"
        )
    path = folder / f"{name}.yaml"
    scale = read_yaml(path, "see configs/scales/smoke.yaml")
    check_scale(scale, str(path))
    return scale


class RowPlanner:
    """Plans the runs and measurements of rows, for one command line.

    Args:
        args: the arguments of `modular-fairseq table`.
        scale: changes of all rows, as for `scaled`.
        table: the table.
    """

    def __init__(self, args: argparse.Namespace, scale: dict, table: Table):
        self.args, self.scale, self.evaluations = args, scale, table.evaluations
        self.same_start = table.same_start or table.name in scale.get("start_seed", {})
        tried = table.search if scale.get("search", True) else {}
        self.trials = [dict(zip(tried, values, strict=True)) for values in product(*tried.values())]
        self.folder = os.path.join(os.path.abspath(args.out), args.scale)
        self.data = os.path.abspath(args.data)
        self._configs: dict[str, Config] = {}

    def config(self, path: str) -> Config:
        """Return the content of the file of a row, after scaling.

        A planner reads each file once, so callers must not change what they get.
        """
        if path not in self._configs:
            self._configs[path] = scaled(read_config(path), self.scale)
        return self._configs[path]

    def run(self, config: Config, seed: int, trains: bool = True, after: tuple[str, ...] = ()) -> Run:
        """Return the run of a row with one seed.

        A row that is fine-tuned starts from --pretrained, or from a run of the row that it names: the one
        with seed 1, or with the same seed if the table or the scale says so.

        Args:
            config: the row, scaled.
            seed: the seed.
            trains: whether the run trains. If not, the checkpoint that it starts from is evaluated.
            after: files of the rows that are fine-tuned after this one.

        Raises:
            UsageError: a row is fine-tuned after itself.
        """
        start = config.get("checkpoint.finetune_from_model")
        if start is not None and self.args.pretrained:
            start = os.path.abspath(self.args.pretrained)
        elif start is not None:
            path = os.path.join(os.path.dirname(config.path), start)
            after = (*after, os.path.realpath(config.path))
            if os.path.realpath(path) in after:
                raise UsageError(
                    f"{config.path}: checkpoint.finetune_from_model is {start}, which is fine-tuned after "
                    "this file itself; name the file of a row that is trained before"
                )
            start = self.run(self.config(path), seed if self.same_start else 1, after=after)
        values = {group: dict(keys) for group, keys in config.values.items()}
        values.get("checkpoint", {}).pop("finetune_from_model", None)
        values.get("common", {}).pop("seed", None)
        name = f"{config.name}/seed-{seed}"
        words = *config._replace(values=values).train_options(), *self.args.options
        if config.averaged:
            refuse_fewer_checkpoints([*words], f"for {config.path}")
        return Run(
            name,
            os.path.join(self.folder, name),
            config.corpus(self.data),
            words,
            seed,
            self.settings(values, seed, start),
            start,
            config.averaged,
            trains,
            workers=self.args.workers,
            plugin=os.path.abspath(self.args.user_dir) if self.args.user_dir else PLUGIN,
        )

    def settings(
        self, values: dict[str, dict[str, Any]], seed: int, start: Run | str | None
    ) -> dict[str, Any]:
        """Return everything but the corpus that the weights of a run depend on, keyed by "group.key"."""
        settings = {
            f"{group}.{key}": value
            for group, keys in values.items()
            if group not in DECODING
            for key, value in keys.items()
        }
        settings.pop("common.log_interval", None)
        options = shlex.join(self.args.options) or "none"
        start = start.name if isinstance(start, Run) else start
        plugin = (
            {"plugin": os.path.basename(os.path.abspath(self.args.user_dir))} if self.args.user_dir else {}
        )
        return {**settings, **plugin, "common.seed": seed, "options": options, "starts from": start}

    def results(self, row: Row, seeds: list[int]) -> Results:
        """Return the measurements of a row: one for each searched value, seed and set of overrides.

        Raises:
            UsageError: the row's file is wrong, a pretrained row has no checkpoint to start from, or an
                evaluation does not apply to the row's task.
        """
        config = on_subset(self.config(row.config), row.percent)
        trials = [] if row.pretrained else self.trials  # a checkpoint that is evaluated as it is has none
        return Results(
            row,
            config,
            [
                Trial(values, self.measurements(row, with_values(config, values), seeds))
                for values in trials or [{}]
            ],
        )

    def measurements(self, row: Row, config: Config, seeds: list[int]) -> list[Measurement]:
        """Return the measurements of a row with one set of values; see `results`."""
        decoding = tuple(config.decoding_options())
        alike = row.pretrained and not self.same_start  # all seeds would evaluate the same checkpoint
        runs = [self.run(config, seed, not row.pretrained) for seed in seeds[: 1 if alike else None]]
        if row.pretrained and runs[0].start is None:
            raise UsageError(
                f"{self.args.table}: row {row.name} is pretrained, but {config.path} names no checkpoint "
                "(checkpoint.finetune_from_model); add it there, or leave out pretrained"
            )
        for evaluation in self.evaluations:
            if not evaluation.fits(runs[0]):
                others = [name for each in EVALUATIONS if each.fits(runs[0]) for name in each.columns]
                raise UsageError(
                    f"{config.path}: column {evaluation.key} cannot be measured for task "
                    f"{config.get('task._name')}; use {', '.join(others)} in the columns of "
                    f"{self.args.table}"
                )
        for overrides in row.overrides:
            self.check_overrides(row, config, overrides)
        return [
            Measurement(run, self.evaluations, row.subset, tuple(values.items()), decoding)
            for run in runs
            for values in row.overrides
        ]

    def check_overrides(self, row: Row, config: Config, overrides: dict[str, Any]) -> None:
        """Raise UsageError if overrides of a row are no options of its model, or have a wrong value."""
        model = {**config.values.get("model", {}), **overrides}
        try:
            parse(config._replace(values={**config.values, "model": model}).train_options())
        except UsageError as error:
            has = f" has overrides {overrides}" if overrides else f" ({config.path})"
            raise UsageError(f"{self.args.table}: row {row.name}{has}: {error}") from None


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
