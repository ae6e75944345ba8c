"""The figures on the page of results: curves over updates with bands, and redundancy of heads against BLEU.

In a table with several baselines each of them has figures of its own, with the rows that are compared with
it. For `ensemble-1-masked` these are figures 1 to 3 of the paper.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path

from modular_fairseq.runs.evaluations.model_analyses import OVER_TRAINING, by_update
from modular_fairseq.runs.evidence.jobs import Plan, row_of
from modular_fairseq.runs.evidence.rows import Records, label, of_row, value_of
from modular_fairseq.runs.papers.table import COLUMNS, Row, Table
from modular_fairseq_cli.curves import NUMBERS, Point, average, draw, save
from modular_fairseq_cli.training_log import MODEL, Curve

FEW = 5  # with fewer validations, the perplexity of training batches is drawn in place of validation data
DIVERGENCES = ("LR_divergence_encoder", "HR_divergence_encoder")
# The curves that are drawn for each table: the key in the records, and what is drawn.
CURVES = {
    "ppl": NUMBERS["ppl"],
    "gate_entropy": NUMBERS["gate_entropy"],
    "eta_squared": Curve("eta_squared", "Eta squared between regions", "last layer", MODEL),
    "eta_squared_heads": Curve(
        "eta_squared_heads", "Eta squared of two groups of heads", "best layer", MODEL
    ),
}


def figures(plan: Plan, records: Records) -> dict[str, Callable[[Path], None]]:
    """Return functions that draw the figures, by the names of their files: TABLE[.BASELINE].KIND.svg."""
    found: dict[str, Callable[[Path], None]] = {}
    for table in plan.tables.values():
        for baseline, rows in grouped(table).items():
            for key, curve in CURVES.items():
                split, systems = _curves(plan, table, rows, records, key)
                if len(systems) > bool(baseline):  # a baseline alone, or a row without it, compares nothing
                    name = ".".join(filter(None, (table.name, baseline, key, "svg")))
                    title = f"{split}, table {table.name}" + (f": {baseline}" if baseline else "")
                    found[name] = partial(draw, systems, curve, title)
        points = _redundancy(plan, table, records)
        if len(points) > 1:
            found[f"{table.name}.redundancy.svg"] = partial(_draw_redundancy, points)
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
    """Return what the curves are of, and the curve of each row, averaged over the seeds that have one.

    Perplexity is that of training batches, if a validation has taken place only a few times.
    """
    by_split: dict[str, dict[str, list[Point]]] = {"validation": {}, "training": {}}
    for row in rows:
        name = f"{table.name}/{row.name}"
        names = [job.run.name for job in plan.jobs if row_of(job.run) == name]
        made = [records[name] for name in names if name in records and not records[name]["diverged"]]
        for split, logged in (("validation", "valid"), ("training", "train_inner")):
            curves = [record["curves"].get(logged, {}).get(key) for record in made]
            if split == "validation" and key in OVER_TRAINING:
                measured = [each for record in made for each in record["rows"].get(name, [])]
                curves = [each.get(by_update(key)) for each in measured]
            points = average([dict(curve) for curve in curves if curve]) if any(curves) else []
            if points:
                by_split[split][label(row)] = points
    few = all(len(points) < FEW for points in by_split["validation"].values())
    split = "training" if few and by_split["training"] else "validation"
    return split, by_split[split]


def alternative(name: str) -> str:
    """Return the alternative text of a figure, by the name of its file."""
    table, *baseline, kind, _ = name.split(".")
    rows = f", rows compared with {baseline[0]}" if baseline else ""
    what = CURVES[kind].title if kind in CURVES else "Redundancy of heads and BLEU"
    return f"{what} of table {table}{rows}"


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
