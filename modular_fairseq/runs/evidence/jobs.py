"""The runs that registered claims need, in the order in which they are made."""

import argparse
import os
from collections.abc import Sequence
from typing import Any, NamedTuple

from modular_fairseq.runs.config import Config
from modular_fairseq.runs.evaluation import Measurement
from modular_fairseq.runs.evidence.claims import Claim, Register, check_differences
from modular_fairseq.runs.evidence.records import how, plain, recorded
from modular_fairseq.runs.papers.row_planner import RowPlanner
from modular_fairseq.runs.papers.table import Row, Table, find_table, read_table
from modular_fairseq.runs.run import Run
from modular_fairseq.runs.sizes import read_scale
from modular_fairseq.training.command_line import parse
from modular_fairseq_cli.errors import UsageError


class Job(NamedTuple):
    """A run that claims need.

    Args:
        run: the run, whose name is also the name of its record.
        seed: its seed.
        measurements: its measurements by the row that they belong to, which is called TABLE/ROW.
        claims: the digest of each claim that needs the run, by name.
        primary: whether a primary claim needs it.
    """

    run: Run
    seed: int
    measurements: dict[str, list[Measurement]]
    claims: dict[str, str]
    primary: bool


class Plan:
    """All jobs of a register, and what has been made of them.

    Args:
        register: the claims.
        data: the folder of the prepared corpora.
        out: the folder for the files of runs. The runs of each commit are in a folder of their own.

    Raises:
        UsageError: a claim or a change names a row that does not exist, or the rows of a claim differ in more
            than it says.
    """

    def __init__(self, register: Register, data: str, out: str):
        self.register = register
        self.tables: dict[str, Table] = {}
        self.planners: dict[str, RowPlanner] = {}
        for name in dict.fromkeys(claim.table for claim in register.claims):
            path = find_table(name)
            arguments = argparse.Namespace(
                table=path,
                out=os.path.join(out, register.commit),
                data=data,
                scale=register.scale,
                pretrained=None,
                options=[],
                user_dir=None,
                workers=1,
            )
            self.tables[name] = table = read_table(path)
            scale = read_scale(path, register.scale)
            if table.search and scale.get("search", True):
                raise UsageError(
                    f"{register.path}: table {name} trains each row with several values (search), and a "
                    f"claim is about one; give {register.scale}.yaml of configs/scales `search: false`"
                )
            self.planners[name] = RowPlanner(arguments, scale, table)
        for claim in register.claims:
            for rows in ((claim.row, claim.baseline), (claim.row_minus, claim.baseline_minus)):
                if all(rows):
                    check_differences(claim, rows, [self.keys(claim, each) for each in rows])
                    self.check_data(claim, *rows)
        self.jobs = self._jobs()
        trained = {row_of(job.run) for job in self.jobs}
        for change in register.changes:
            for name in change.rows:
                if name not in trained:
                    raise UsageError(
                        f"{register.path}: a change names the row {name}, which is not trained for any "
                        f"claim; give some of {', '.join(sorted(trained))}"
                    )

    def check_data(self, claim: Claim, *names: str) -> None:
        """Raise UsageError if two rows are measured on other parts of the data, or trained on other shares.

        A row that is not trained has no share.
        """
        first, second = (self.row(claim, name) for name in names)
        for key in ("percent", "subset"):
            untrained = key == "percent" and (first.pretrained or second.pretrained)
            if not untrained and getattr(first, key) != getattr(second, key):
                raise UsageError(
                    f"claim {claim.name}: row {names[0]} has {key} {getattr(first, key)}, and row {names[1]} "
                    f"has {getattr(second, key)}; compare rows with the same data"
                )

    def row(self, claim: Claim, name: str) -> Row:
        """Return a row of a claim's table."""
        rows = {row.name: row for row in self.tables[claim.table].rows if row.name}
        if name not in rows:
            raise UsageError(
                f"{self.register.path}: claim {claim.name} names the row {name}, which table {claim.table} "
                f"does not have; give one of {', '.join(rows)}"
            )
        return rows[name]

    def keys(self, claim: Claim, name: str) -> dict[str, Any]:
        """Return the keys of a claim's row, written GROUP.KEY, with their values.

        The keys come from the row's file, after scaling, and from the row's overrides. A key of the overrides
        has a list of values, one for each measurement of the row.
        """
        row = self.row(claim, name)
        config = self.planners[claim.table].config(row.config)
        keys = {
            f"{group}.{key}": value
            for group, values in config.values.items()
            for key, value in values.items()
        }
        overridden = {key for values in row.overrides for key in values}
        return keys | {f"model.{key}": [values.get(key) for values in row.overrides] for key in overridden}

    def _jobs(self) -> list[Job]:
        """Return all jobs: primary claims first, and for each kind seed by seed over all rows."""
        jobs: dict[str, Job] = {}
        for kind in ("primary", "secondary"):
            claims = [claim for claim in self.register.claims if claim.kind == kind]
            for seed in sorted({seed for claim in claims for seed in claim.seeds}):
                for claim in claims:
                    if seed in claim.seeds:
                        for name in claim.rows:
                            self._add(jobs, claim, name, seed)
        return list(jobs.values())

    def _add(self, jobs: dict[str, Job], claim: Claim, name: str, seed: int) -> None:
        found = self.planners[claim.table].results(self.row(claim, name), [seed]).measurements
        run = found[0].run
        if isinstance(run.start, Run) and run.start.name not in jobs:
            start = run.start
            jobs[start.name] = Job(start, start.seed, {}, {}, claim.kind == "primary")
        job = jobs.setdefault(run.name, Job(run, seed, {}, {}, claim.kind == "primary"))
        job.measurements.setdefault(f"{claim.table_name}/{name}", found)
        job.claims[claim.name] = claim.digest

    def jobs_of(self, tables: Sequence[str]) -> list[Job]:
        """Return the jobs of some tables, and those that they start from, in their order; () means all.

        Raises:
            UsageError: no run of the claims is of such a table.
        """
        known = list(dict.fromkeys(table_of(job.run) for job in self.jobs))
        if unknown := [table for table in tables if table not in known]:
            raise UsageError(
                f"--only {unknown[0]}: the claims have runs of {', '.join(known)}; give one of them"
            )
        chosen = [job.run for job in self.jobs if not tables or table_of(job.run) in tables]
        starts = [run.start for run in chosen if isinstance(run.start, Run)]
        names = {run.name for run in [*chosen, *starts]}
        return [job for job in self.jobs if job.run.name in names]

    def records(self, results: str) -> dict[str, dict[str, Any]]:
        """Return the records of all jobs that are done, keyed by the names of their runs.

        Raises:
            UsageError: a record does not fit the register (see `check_record`), or was made for a claim that
                was changed or removed since, or two seeds have the same weights.
        """
        made, path = recorded(results), self.register.path
        present = {claim.name: claim.digest for claim in self.register.claims}
        removed = {name for change in self.register.changes for name in change.removed}
        for name, record in made.items():
            for claim, digest in record["claims"].items():
                if claim not in present.keys() | removed:
                    raise UsageError(
                        f"{path}: claim {claim} was removed after the run {name} was made for it; restore "
                        "it, or add a change with its date and reason that lists it as `removed`"
                    )
                if claim in present and present[claim] != digest:
                    self._explain(claim, present[claim], "changed", name)
        found = {
            job.run.name: made[job.run.name]
            for job in self.jobs
            if job.run.name in made and self.check_record(job, made[job.run.name])
        }
        same: dict[tuple[str, str], str] = {}
        for name, record in found.items():
            row = name.rpartition("/seed-")[0]
            if record["weights"] and (other := same.setdefault((row, record["weights"]), name)) != name:
                raise UsageError(
                    f"the records {other} and {name} have the same weights, so they are of one seed; remove "
                    "the wrong one, to make this run again"
                )
            start = record["start"] and found.get(record["start"]["run"])
            if start and not record["diverged"] and start["weights"] != record["start"]["weights"]:
                raise UsageError(
                    f"the record {name} starts from another model than the record {record['start']['run']} "
                    "has; remove the record that is older, to make this run again"
                )
        return found

    def check_record(self, job: Job, record: dict[str, Any]) -> bool:
        """Return whether a record counts.

        It does not if a change has outdated its commit, or if it lacks the measurements of a row and did not
        diverge.

        Raises:
            UsageError: it is of another commit, corpus, row or table than registered, or a claim that needs
                it was added after it was made.
        """
        path, name = self.register.path, job.run.name
        rows = [row_of(job.run)]
        if isinstance(job.run.start, Run):
            rows.append(row_of(job.run.start))
        if not all(record["commit"] in self.register.commits(row) for row in rows):
            if any(record["commit"] in self.register.outdated(row) for row in rows):
                return False
            raise UsageError(
                f"the record {name} was made by commit {record['commit']}, but {path} registers "
                f"{self.register.commit}; make it again, or add a change with its reason to {path}"
            )
        corpus = os.path.basename(job.run.corpus.folder)
        registered = self.register.corpora.get(corpus, {}).get("sums", {})
        if record["corpus"] != registered:
            raise UsageError(
                f"the record {name} is of another corpus {corpus} than {path} registers; prepare the corpus "
                "by the command there, and make the run again"
            )
        present, then = plain(job.run.settings) or {}, record["settings"] or {}
        # A row may name an option since then that had its default.
        for key in (key for key in {**present, **then} if present.get(key) != then.get(key)):
            if key in then or present[key] != default(key, then):
                raise UsageError(
                    f"the record {name} was made with {key} {then.get(key, 'not given')}, but its row has "
                    f"{present.get(key, 'none')} now; restore the row or the scale, or run "
                    "scripts/evidence.sh, which uses the rows of the registered commit"
                )
        for row, measurements in job.measurements.items():
            ways = [each["how"] for each in record["rows"].get(row, [])]
            if row in record["rows"] and not _as_before(ways, [how(each) for each in measurements]):
                raise UsageError(
                    f"the record {name} measured row {row} in another way than its table says now; restore "
                    "the table, or run scripts/evidence.sh, which uses the tables of the registered commit"
                )
        for claim, digest in job.claims.items():
            if claim not in record["claims"]:
                self._explain(claim, digest, "added", name)
        return record["diverged"] or job.measurements.keys() <= record["rows"].keys()

    def _explain(self, claim: str, digest: str, what: str, run: str) -> None:
        """Raise UsageError unless a change gives the reason why a claim is not as a run recorded it."""
        if not any(change.claims.get(claim) == digest for change in self.register.changes):
            raise UsageError(
                f"{self.register.path}: claim {claim} was {what} after the run {run} was made; restore it, "
                f'or add a change with its date and reason, and with `claims: {{{claim}: "{digest}"}}`'
            )


def default(key: str, settings: dict[str, Any]) -> Any:
    """Return the value that a training with these settings has for the key GROUP.KEY, which they do not give.

    Args:
        key: the key.
        settings: the settings of a record.
    """
    values: dict[str, dict[str, Any]] = {}
    for name, value in settings.items():
        group, dot, of_group = name.partition(".")
        if dot:
            values.setdefault(group, {})[of_group] = value
    _, args = parse(Config("", "", values).train_options())
    return plain(getattr(args, key.partition(".")[2], None))


def _as_before(then: list[dict[str, Any]], now: list[dict[str, Any]]) -> bool:
    """Return whether measurements are made in the same ways as then. Ways may have got more keys."""
    return len(then) == len(now) and all(
        each.get(key) == value
        for earlier, each in zip(then, now, strict=True)
        for key, value in earlier.items()
    )


def table_of(run: Run) -> str:
    """Return the name of the table of a run."""
    return run.name.partition("/")[0]


def row_of(run: Run) -> str:
    """Return the name of the row that a run trains, TABLE/ROW."""
    return run.name.rpartition("/seed-")[0]
