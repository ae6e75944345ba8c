"""Turn the rows of a table into runs and measurements, before anything is run."""

import argparse
import os
import shlex
from itertools import product
from typing import Any

from modular_fairseq.runs.config import DECODING, Config, read_config
from modular_fairseq.runs.evaluation import EVALUATIONS, Measurement
from modular_fairseq.runs.fixed_options import refuse_fewer_checkpoints
from modular_fairseq.runs.papers.results import Results, Trial
from modular_fairseq.runs.papers.table import Row, Table
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.sizes import on_subset, scaled, with_values
from modular_fairseq.training.command_line import parse
from modular_fairseq.user_dir import PLUGIN
from modular_fairseq_cli.errors import UsageError


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
