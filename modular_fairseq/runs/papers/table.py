"""A table of a paper as a file, beside the rows that it names.

A table.yaml has

    title: what it is
    baseline: base                      # the row that the others are compared with
    columns: [bleu, parameters]         # see `COLUMNS`; those of evaluations decide what is measured
    figure: [bleu]                      # columns that are also drawn over the share of the training data
    rows:
      # trains base.yaml, which lies beside it
      - {name: base, label: BASE, paper: {bleu: "34.60", parameters: 39M}}
      # is only quoted from the paper
      - {label: Large Transformer, paper: {bleu: 28.4}}

and a row may have: config (another file, as ../mae-2/mae-7.yaml), subset (valid), baseline (of its own),
overrides (options of the model at inference, or a list of such: their mean is shown), pretrained: true (the
checkpoint that the config would fine-tune, as it is), percent: 5 (of the training data that the config names;
the subset is drawn).
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from modular_fairseq.runs import evaluations  # noqa: F401  (registers the columns)
from modular_fairseq.runs.config import why
from modular_fairseq.runs.evaluation import EVALUATIONS, Column, Evaluation, evaluations_of
from modular_fairseq_cli.errors import UsageError

# What a run's own statistics and its row say. The evaluations have the other columns.
STATISTICS = {
    "valid_perplexity": Column("valid. perplexity (best epoch)", "paper: perplexity"),
    "parameters": Column("parameters", "paper: parameters", "{:,.0f}"),
    "trained_parameters": Column("trained parameters", "paper: trained", "{:,.0f}"),
    "percent": Column("training data", "", "{:.0f} %"),
    "updates": Column("updates", "paper: updates", "{:,.0f}"),
}
COLUMNS = {name: column for each in EVALUATIONS for name, column in each.columns.items()} | STATISTICS
KEYS = {"title", "baseline", "columns", "figure", "rows", "notes"}
ROW_KEYS = {"name", "label", "paper", "config", "subset", "baseline", "overrides", "pretrained", "percent"}


class Row(NamedTuple):
    """A line of the table; `name` is "" if it is only quoted from the paper. The module's docstring has the
    rest.
    """

    name: str
    label: str
    paper: dict[str, Any]
    config: str
    subset: str
    baseline: str
    overrides: list[dict[str, Any]]
    pretrained: bool
    percent: int


class Table(NamedTuple):
    name: str
    title: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]
    figure: list[str] = []

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """What its columns need. Rows are compared by the first one: it has a test of its own if any has."""
        return tuple(sorted(evaluations_of(self.columns), key=lambda each: not each.test))


def read_table(path: str | os.PathLike) -> Table:
    """Read a table.yaml.

    Raises:
        UsageError: it cannot be read, or says what no table can be made of; the message names what.
    """
    path = Path(path)
    try:
        spec = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read ({why(error)}); give a table such as configs/mae-3/table.yaml"
        ) from None
    if (
        not isinstance(spec, dict)
        or not isinstance(spec.get("rows"), list)
        or not {"title", "columns"} <= spec.keys() <= KEYS
    ):
        raise UsageError(
            f"{path}: must have title, columns and rows, and may have baseline, figure and notes; see "
            "configs/mae-3/table.yaml"
        )
    if not isinstance(spec["columns"], list):
        raise UsageError(f"{path}: columns must be a list, as in columns: [bleu, parameters]")
    wrong = [column for column in spec["columns"] if column not in COLUMNS]
    if wrong:
        raise UsageError(f"{path}: there is no column {wrong[0]}; use some of {', '.join(COLUMNS)}")
    figure = spec.get("figure", [])
    if not isinstance(figure, list) or not set(figure) <= set(spec["columns"]):
        raise UsageError(
            f"{path}: figure is {figure}, which is no list of columns of the table; use some of "
            f"{', '.join(spec['columns'])}"
        )
    rows = []
    for row in spec["rows"]:
        if not isinstance(row, dict) or not row.keys() <= ROW_KEYS or not row.keys() & {"name", "label"}:
            raise UsageError(
                f"{path}: row {row} must have name or label, and of the rest only "
                f"{', '.join(sorted(ROW_KEYS))}"
            )
        wrong = [
            column
            for column in row.get("paper", {})
            if column not in spec["columns"] or not COLUMNS[column].paper
        ]
        if wrong:
            raise UsageError(
                f"{path}: row {row.get('name', row.get('label'))} has the paper's {wrong[0]}, which is in no "
                "column; add it to columns"
            )
        blind = [each for each in evaluations_of(spec["columns"]) if not each.takes_overrides]
        if row.get("overrides") and blind:
            raise UsageError(
                f"{path}: row {row.get('name')} has overrides, which {' and '.join(blind[0].columns)} would "
                "not know of; leave one of them out"
            )
        percent = row.get("percent", 100)
        if type(percent) is not int or not 1 <= percent <= 100 or (percent < 100 and row.get("pretrained")):
            raise UsageError(
                f"{path}: row {row.get('name')} has percent {percent}; it must be a whole number from 1 to "
                "100, and not of a pretrained row"
            )
        name = str(row.get("name", ""))
        overrides = row.get("overrides", {})
        rows.append(
            Row(
                name,
                str(row.get("label", name)),
                row.get("paper", {}),
                os.path.normpath(path.parent / row.get("config", f"{name}.yaml")),
                row.get("subset", "test"),
                row.get("baseline", spec.get("baseline", "")),
                overrides if isinstance(overrides, list) else [overrides],
                row.get("pretrained", False),
                percent,
            )
        )
    names = [row.name for row in rows if row.name]
    for row in rows:
        if row.name and names.count(row.name) > 1:
            raise UsageError(f"{path}: has two rows {row.name}; names must differ")
        if row.name and row.baseline and row.baseline not in names:
            raise UsageError(
                f"{path}: row {row.name} is compared with {row.baseline}, which is no row; there are "
                f"{', '.join(names)}"
            )
    notes = spec.get("notes", [])
    notes = [notes] if isinstance(notes, str) else notes
    return Table(path.resolve().parent.name, spec["title"], spec["columns"], rows, notes, figure)
