"""The rows of the tables that claims compare: their records, and the means over seeds in Markdown."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from modular_fairseq.runs.evidence.jobs import Plan
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.records import is_of_cpu
from modular_fairseq.runs.papers.table import COLUMNS, Row, Table
from modular_fairseq_cli.scoring.spread import shown

Records = dict[str, dict[str, Any]]  # by the names of their runs


def lines_of(plan: Plan, table: Table, records: Records) -> list[str]:
    """Return the lines of a table of all rows that have a record, with means over seeds."""
    heads = ["", *(COLUMNS[name].heading for name in table.columns), "seeds", "core-hours each, on a CPU"]
    lines = []
    for row in table.rows:
        found = of_row(plan, table, row, records)
        if not found:
            continue
        cells = [label(row)]
        for column in table.columns:
            values = [value_of(record, table, row, column) for record in found]
            cells.append(shown([value for value in values if value is not None], COLUMNS[column].pattern))
        on_cpu = [record for record in found if is_of_cpu(record)]
        hours = f"{hours_of(on_cpu) / len(on_cpu):.1f}" if on_cpu else ""
        lines.append([*cells, str(len(found)), hours])
    if not lines:
        return []
    kept = [number for number in range(len(heads)) if any(line[number] for line in lines)]
    table_lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return [f"| {' | '.join(line[number] for number in kept)} |" for line in table_lines]


def label(row: Row) -> str:
    """Return the label of a row, with the share of the training data that it is trained on."""
    return row.label if row.percent == 100 else f"{row.label}, {row.percent} % of the data"


def corpora_of(plan: Plan, table: Table) -> str:
    """Return the names of the corpora of a table's runs, and what they consist of."""
    mine = [job for job in plan.jobs if any(row.startswith(f"{table.name}/") for row in job.measurements)]
    names = dict.fromkeys(Path(job.run.corpus.folder).name for job in mine)
    about = {name: plan.register.corpora.get(name, {}).get("about") for name in names}
    return ", ".join(f"`{name}`" + (f" ({text})" if text else "") for name, text in about.items())


def of_row(plan: Plan, table: Table, row: Row, records: Records) -> list[dict[str, Any]]:
    """Return the records that have measurements of a row, seed by seed."""
    found = {
        job.seed: records[job.run.name]
        for job in plan.jobs
        if job.run.name in records and f"{table.name}/{row.name}" in records[job.run.name]["rows"]
    }
    return [found[seed] for seed in sorted(found)]


def value_of(record: dict[str, Any], table: Table, row: Row, column: str) -> float | None:
    """Return the number that a record has for a row and a column of a table, or None."""
    return QUANTITIES[column].of(record, f"{table.name}/{row.name}")


def hours_of(records: Iterable[dict[str, Any]]) -> float:
    """Return the core-hours of runs, whatever their device."""
    return sum(record["core_minutes"] for record in records) / 60


def time_spent(records: Iterable[dict[str, Any]]) -> str:
    """Return the time of processors that runs took: "1.4 core-hours", or, if some of them had a GPU, "1.4
    core-hours of runs on CPUs and 0.2 of runs on a GPU".
    """
    every = list(records)
    on_cpu = [record for record in every if is_of_cpu(record)]
    with_gpu = [record for record in every if not is_of_cpu(record)]
    if not with_gpu:
        return f"{hours_of(on_cpu):,.1f} core-hours"
    if not on_cpu:
        return f"{hours_of(with_gpu):,.1f} core-hours of runs on a GPU"
    of_cpu, of_gpu = (f"{hours_of(each):,.1f}" for each in (on_cpu, with_gpu))
    return f"{of_cpu} core-hours of runs on CPUs and {of_gpu} of runs on a GPU"
