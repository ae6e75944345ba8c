"""The figures on the page of results: curves over updates with bands, and redundancy of heads against BLEU.

In a table with several baselines each of them has figures of its own, with the rows that are compared with
it. For `ensemble-1-masked` these are figures 1 to 3 of the paper. The figure of eta squared has the
competition of models that have one, and the heads of the others, which are the control.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from modular_fairseq.runs.evaluations.model_analyses import OVER_TRAINING, by_update
from modular_fairseq.runs.evidence.jobs import Plan, row_of
from modular_fairseq.runs.evidence.rows import Records, label, of_row, value_of
from modular_fairseq.runs.papers.table import COLUMNS, Row, Table
from modular_fairseq_cli.curves import NUMBERS, Point, average, draw, save

FEW = 5  # with fewer validations, the perplexity of training batches is drawn in place of validation data
DIVERGENCES = ("LR_divergence_encoder", "HR_divergence_encoder")
# The curves that are drawn for each table: the key in the records, and the label of the axis.
CURVES = {
    **{key: NUMBERS[key].label for key in ("ppl", "gate_entropy")},
    "eta_squared": "Eta squared between regions of pictures",
}


class Drawing(NamedTuple):
    """A figure.

    Args:
        alternative: its alternative text.
        draw: writes it into a file.
    """

    alternative: str
    draw: Callable[[Path], None]


def figures(plan: Plan, records: Records) -> dict[str, Drawing]:
    """Return the figures, by the names of their files: TABLE[.BASELINE].KIND.svg."""
    found: dict[str, Drawing] = {}
    for table in plan.tables.values():
        for baseline, rows in grouped(table).items():
            for key, values in CURVES.items():
                split, systems = _curves(plan, table, rows, records, key)
                compares = baseline and key != "eta_squared"  # then a single row says nothing
                if len(systems) > bool(compares):
                    name = ".".join(filter(None, (table.name, baseline, key, "svg")))
                    title = f"{split}, table {table.name}" + (f": {baseline}" if baseline else "")
                    about = f"{values} ({title})"
                    found[name] = Drawing(about, partial(draw, systems, values, title, log=key == "ppl"))
        points = _redundancy(plan, table, records)
        if len(points) > 1:
            about = f"Redundancy of heads and BLEU (table {table.name})"
            found[f"{table.name}.redundancy.svg"] = Drawing(about, partial(_draw_redundancy, points))
    return found


def grouped(table: Table) -> dict[str, list[Row]]:
    """Return the rows that are drawn together, by their baseline; by "" if there are not several of them."""
    rows = [row for row in table.rows if row.name]
    baselines = dict.fromkeys(row.baseline for row in rows if row.baseline)
    if len(baselines) < 2:
        return {"": rows}
    return {name: [row for row in rows if name in (row.name, row.baseline)] for name in baselines}


def _curves(
    plan: Plan, table: Table, rows: list[Row], records: Records, key: str
) -> tuple[str, dict[str, list[Point]]]:
    """Return the name of the data that the curves were measured on, and the curve of each row that has one.

    Perplexities of validation data are drawn if a row was validated at least five times (`FEW`). Otherwise
    perplexities of training batches are drawn, if records have them.
    """

    def logged(split: str) -> dict[str, list[Point]]:
        return _averaged(
            plan, table, rows, records, lambda record, _: record["curves"].get(split, {}).get(key)
        )

    def measured(column: str) -> dict[str, list[Point]]:
        at = by_update(column)
        return _averaged(
            plan, table, rows, records, lambda record, row: record["rows"].get(row, [{}])[0].get(at)
        )

    if key == "eta_squared":
        competition, heads = map(measured, OVER_TRAINING)
        controls = {f"{row}: heads": points for row, points in heads.items() if row not in competition}
        return "test", competition | controls
    validation, training = logged("valid"), logged("train_inner")
    few = all(len(points) < FEW for points in validation.values())
    return ("training", training) if few and training else ("validation", validation)


def _averaged(
    plan: Plan,
    table: Table,
    rows: list[Row],
    records: Records,
    curve_of: Callable[[dict[str, Any], str], list[list[float]] | None],
) -> dict[str, list[Point]]:
    """Return the mean curve of each row over the seeds that have one, keyed by the label of the row.

    Args:
        curve_of: returns the curve of a record and a row, which is called TABLE/ROW, if it has one.
    """
    found = {}
    for row in rows:
        name = f"{table.name}/{row.name}"
        runs = [job.run.name for job in plan.jobs if row_of(job.run) == name]
        made = [records[run] for run in runs if run in records and not records[run]["diverged"]]
        of_seeds = [curve for record in made if (curve := curve_of(record, name))]
        curves = [{int(update): value for update, value in curve} for curve in of_seeds]
        if curves and (points := average(curves)):
            found[label(row)] = points
    return found


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
