"""The figures on the page of results: learning curves with bands, and redundancy of heads against BLEU."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from modular_fairseq.runs.evidence.jobs import Plan, row_of
from modular_fairseq.runs.evidence.rows import Records, label, of_row, value_of
from modular_fairseq.runs.papers.table import COLUMNS, Table
from modular_fairseq_cli.curves import Point, average, draw, save

DIVERGENCES = ("LR_divergence_encoder", "HR_divergence_encoder")
# The curves that are drawn for each table: the key in the records, and what the alternative text says.
CURVES = {"ppl": "Validation perplexity", "gate_entropy": "Entropy of the gates"}


def figures(plan: Plan, records: Records) -> dict[str, Callable[[Path], None]]:
    """Return functions that draw the figures, by the names of their files: TABLE.KIND.svg."""
    found: dict[str, Callable[[Path], None]] = {}
    for table in plan.tables.values():
        for key in CURVES:
            if systems := _curves(plan, table, records, key):
                title = f"validation, table {table.name}"
                found[f"{table.name}.{key}.svg"] = partial(draw, systems, key, title)
        points = _redundancy(plan, table, records)
        if len(points) > 1:
            found[f"{table.name}.redundancy.svg"] = partial(_draw_redundancy, points)
    return found


def _curves(plan: Plan, table: Table, records: Records, key: str) -> dict[str, list[Point]]:
    """Return the curve of each row that has one in all of its records, averaged over seeds."""
    systems = {}
    for row in table.rows:
        names = [job.run.name for job in plan.jobs if row_of(job.run) == f"{table.name}/{row.name}"]
        made = [records[name] for name in names if name in records and not records[name]["diverged"]]
        curves = [record["curves"].get("valid", {}).get(key) for record in made]
        if curves and all(curves) and (points := average([dict(curve) for curve in curves if curve])):
            systems[label(row)] = points
    return systems


def alternative(name: str) -> str:
    """Return the alternative text of a figure, by the name of its file."""
    table, kind, _ = name.split(".")
    return f"{CURVES.get(kind, 'Redundancy of heads and BLEU')} of table {table}"


def _redundancy(plan: Plan, table: Table, records: Records) -> dict[str, list[list[float]]]:
    """Return for each row the redundancies and the BLEU of its seeds, if they are columns of the table."""
    columns = [*DIVERGENCES, "bleu"]
    points: dict[str, list[list[float]]] = {}
    for row in table.rows if set(columns) <= set(table.columns) else []:
        for record in of_row(plan, table, row, records):
            values = [value_of(record, table, row, column) for column in columns]
            found = [value for value in values if value is not None]
            if len(found) == len(columns):
                points.setdefault(label(row), []).append(found)
    return points


def _draw_redundancy(points: dict[str, list[list[float]]], path: Path) -> None:
    """Draw BLEU over each redundancy, a point for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots(1, len(DIVERGENCES), sharey=True)
    for number, (ax, column) in enumerate(zip(axes, DIVERGENCES, strict=True)):
        for name, values in points.items():
            ax.scatter([each[number] for each in values], [each[-1] for each in values], s=14, label=name)
        ax.set(xlabel=COLUMNS[column].heading)
        ax.grid(alpha=0.3)
    axes[0].set(ylabel=COLUMNS["bleu"].heading)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    save(figure, path)
