"""The file table.yaml, which defines a table of a paper and names the files of its rows.

A table.yaml has these keys:

    title: the title of the table
    baseline: base                      # the row that the others are compared with
    columns: [bleu, parameters]         # see `COLUMNS`; the columns of evaluations decide what is measured
    figure: [bleu]                      # columns that are also drawn over the share of the training data
    start_seed: same                    # seed n of a fine-tuned row starts from seed n (default: from seed 1)
    search: {optimization.lr: [...]}    # trains each row with each value; the best median is shown
    average: median                     # what is shown of several seeds (default: mean)
    notes: [...]                        # sentences below the table
    rows:
      # This row is trained, from base.yaml beside table.yaml.
      - {name: base, label: BASE, paper: {bleu: "34.60", parameters: 39M}}
      # This row is only quoted from the paper.
      - {label: Large Transformer, paper: {bleu: 28.4}}

A row may also have these keys:

    config: ../mae-2/mae-7.yaml         # another file in place of NAME.yaml
    subset: valid                       # the part of the data that is measured (default: test)
    baseline: other                     # a baseline of its own
    overrides: {...}                    # model options at inference, or a list of such: the mean is shown
    pretrained: true                    # evaluates the checkpoint that the config would fine-tune, as it is
    percent: 5                          # trains on a subset of the training data, which is drawn first
"""

import os
from pathlib import Path
from typing import Any, NamedTuple

from modular_fairseq.runs import evaluations  # noqa: F401  (registers the columns)
from modular_fairseq.runs.evaluation import EVALUATIONS, Column, Evaluation, evaluations_of
from modular_fairseq.runs.yaml_files import Kind, check_values, read_yaml
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.shipped import configs

# The columns that come from the statistics of a run and from the row. The evaluations have the others.
STATISTICS = {
    "valid_perplexity": Column("valid. perplexity (best epoch)", "paper: valid. perplexity"),
    "parameters": Column("parameters", "paper: parameters", "{:,.0f}"),
    "trained_parameters": Column("trained parameters", "paper: trained", "{:,.0f}"),
    "percent": Column("training data", "", "{:.0f} %"),
    "updates": Column("updates", "paper: updates", "{:,.0f}"),
}
# All columns that a table may have, keyed by name.
COLUMNS = {name: column for each in EVALUATIONS for name, column in each.columns.items()} | STATISTICS
SCALARS = (str, int, float)
TEXT: Kind = SCALARS, "text"
A_LIST: Kind = (list,), "a list"
A_MAPPING: Kind = (dict,), "keys with values"
KEYS: dict[str, Kind] = {
    "title": TEXT,
    "baseline": TEXT,
    "columns": A_LIST,
    "figure": A_LIST,
    "start_seed": TEXT,
    "search": A_MAPPING,
    "average": TEXT,
    "rows": A_LIST,
    "notes": ((str, list), "a sentence or a list of sentences"),
}
ROW_KEYS: dict[str, Kind] = {
    "name": TEXT,
    "label": TEXT,
    "paper": A_MAPPING,
    "config": ((str,), "the path of a YAML file"),
    "subset": ((str,), "the name of a part of the data"),
    "baseline": TEXT,
    "overrides": ((dict, list), "options of the model with values, or a list of such"),
    "pretrained": ((bool,), "true or false"),
    "percent": ((int,), "a whole number from 1 to 100"),
}


class Row(NamedTuple):
    """A row of the table, as table.yaml defines it.

    Args:
        name: its name; "" if the row is only quoted from the paper.
        label: the first cell of its line.
        paper: numbers of the paper, keyed by column.
        config: path of its file.
        subset: the part of the data that is measured.
        baseline: name of the row that it is compared with; "": none.
        overrides: sets of model options at inference. The row is measured once with each.
        pretrained: whether the checkpoint that `config` would fine-tune is evaluated as it is.
        percent: the share of the training data that is used.
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
    """The content of a table.yaml, whose keys the module's docstring explains.

    Args:
        name: name of the folder of the table.yaml, such as mae-3.
        same_start: whether a run that is fine-tuned starts from the run with its own seed. If not, it starts
            from the run with seed 1.
        search: the values that are tried of each option, keyed by "group.key".
        average: "mean" or "median", which is shown of several seeds.
    """

    name: str
    title: str
    columns: list[str]
    rows: list[Row]
    notes: list[str]
    figure: list[str] = []
    same_start: bool = False
    search: dict[str, list[Any]] = {}
    average: str = "mean"

    @property
    def evaluations(self) -> tuple[Evaluation, ...]:
        """The evaluations to which the columns belong.

        Rows are compared by the first one. It is one with a significance test of its own, if there is any.
        """
        return tuple(sorted(evaluations_of(self.columns), key=lambda each: not each.test))


def find_table(name: str) -> str:
    """Return the path of a table.yaml.

    Args:
        name: the path itself, or the name of a table of the papers, such as mae-3.

    Raises:
        UsageError: there is no table of this name.
    """
    if os.sep in name or os.path.isfile(name):
        return name
    known = sorted(path.parent.name for path in configs().glob("*/table.yaml"))
    if name not in known:
        raise UsageError(
            f"there is no table {name}; give the path of a table.yaml, or one of {', '.join(known)}"
        )
    return str(configs() / name / "table.yaml")


def read_table(path: str | os.PathLike) -> Table:
    """Read a table.yaml.

    Raises:
        UsageError: the file cannot be read, or a key or value in it is wrong.
    """
    path = Path(path)
    spec = read_yaml(path, "give a table such as configs/mae-3/table.yaml")
    if (
        not isinstance(spec, dict)
        or not isinstance(spec.get("rows"), list)
        or not {"title", "columns"} <= spec.keys() <= KEYS.keys()
    ):
        raise UsageError(
            f"{path}: the file must have title, columns and rows, and may have baseline, figure, start_seed, "
            "search, average and notes; see configs/mae-3/table.yaml"
        )
    check_values(f"{path}: ", spec, KEYS)
    if spec.get("start_seed", "same") != "same":
        raise UsageError(
            f"{path}: start_seed is {spec['start_seed']!r}; it must be same, or be left out for seed 1"
        )
    average = str(spec.get("average", "mean"))
    if average not in ("mean", "median"):
        raise UsageError(f"{path}: average is {average}; it must be mean or median")
    wrong = [column for column in spec["columns"] if column not in list(COLUMNS)]
    if wrong:
        raise UsageError(f"{path}: there is no column {wrong[0]}; use only {', '.join(COLUMNS)}")
    figure = spec.get("figure", [])
    if any(column not in spec["columns"] for column in figure):
        raise UsageError(
            f"{path}: figure is {figure}, which is no list of columns of the table; use only "
            f"{', '.join(spec['columns'])}"
        )
    if not spec["columns"]:
        raise UsageError(f"{path}: columns is empty; give at least one of {', '.join(COLUMNS)}")
    rows = [_row(path, row, spec["columns"], str(spec.get("baseline", ""))) for row in spec["rows"]]
    names = [row.name for row in rows if row.name]
    if not names:
        raise UsageError(f"{path}: no row has a name, so nothing would be trained; give a row `name`")
    for row in rows:
        if row.name and names.count(row.name) > 1:
            raise UsageError(f"{path} has two rows {row.name}; give each row a name of its own")
        if row.name and row.baseline and row.baseline not in names:
            raise UsageError(
                f"{path}: row {row.name} is compared with {row.baseline}, which is no row; give one of "
                f"{', '.join(names)}"
            )
        if row.name and spec.get("search") and row.subset.startswith("test"):
            raise UsageError(
                f"{path}: search would choose values for row {row.name} by its subset {row.subset}; give the "
                "row another one, such as subset: valid"
            )
    if spec.get("search") and not evaluations_of(spec["columns"]):
        raise UsageError(
            f"{path}: search chooses values by the first column that is measured, such as bleu, and the "
            "columns have none; add one"
        )
    notes = spec.get("notes", [])
    notes = [notes] if isinstance(notes, str) else [str(note) for note in notes]
    return Table(
        path.resolve().parent.name + ("" if path.stem == "table" else f"-{path.stem}"),
        str(spec["title"]),
        spec["columns"],
        rows,
        notes,
        figure,
        "start_seed" in spec,
        _search(path, spec.get("search", {})),
        average,
    )


def _search(path: Path, search: dict[str, Any]) -> dict[str, list[Any]]:
    """Check the options that a table searches, and return them."""
    for key, values in search.items():
        if (
            not isinstance(key, str)
            or key.count(".") != 1
            or not isinstance(values, list)
            or not values
            or not all(isinstance(value, SCALARS) for value in values)
            or len(set(map(str, values))) < len(values)
            or any("/" in str(value) for value in values)  # values are in the names of folders
        ):
            raise UsageError(
                f"{path}: search has {key}: {values}; give different single values of an option, "
                "without a slash, as in optimization.lr: [1.0e-05, 2.0e-05]"
            )
    return search


def _row(path: Path, row: Any, columns: list[str], baseline: str) -> Row:
    """Check a row of a table.yaml, and return it.

    Args:
        path: path of the table.yaml.
        row: the content of the row.
        columns: the columns of the table.
        baseline: the row that it is compared with if it does not say.
    """
    if not isinstance(row, dict) or not row.keys() <= ROW_KEYS.keys() or not row.keys() & {"name", "label"}:
        raise UsageError(
            f"{path}: row {row} must have name or label, and no keys other than {', '.join(sorted(ROW_KEYS))}"
        )
    name = str(row.get("name", ""))
    label = str(row.get("label", name))
    check_values(f"{path}: row {name or label}: ", row, ROW_KEYS)
    for column in row.get("paper", {}):
        _check_figure(path, name or label, column, columns)
    blind = [each for each in evaluations_of(columns) if not each.takes_overrides]
    if row.get("overrides") and blind:
        those = [column for column in blind[0].columns if column in columns]
        raise UsageError(
            f"{path}: row {name} has overrides, which {' and '.join(those)} cannot apply; leave out the "
            "overrides or these columns"
        )
    percent = row.get("percent", 100)
    if not 1 <= percent <= 100 or (percent < 100 and row.get("pretrained")):
        raise UsageError(
            f"{path}: row {name} has percent {percent}; it must be a whole number from 1 to 100, and 100 for "
            "a pretrained row"
        )
    overrides = row.get("overrides", {})
    overrides = overrides if isinstance(overrides, list) else [overrides]
    if not overrides or not all(
        isinstance(each, dict) and all(isinstance(value, SCALARS) for value in each.values())
        for each in overrides
    ):
        raise UsageError(
            f"{path}: row {name} has overrides {overrides}; give options of the model with single values, as "
            "in overrides: {OPTION: VALUE}"
        )
    return Row(
        name,
        label,
        row.get("paper", {}),
        os.path.normpath(path.parent / row.get("config", f"{name}.yaml")),
        row.get("subset", "test"),
        str(row.get("baseline", baseline)),
        overrides,
        row.get("pretrained", False),
        percent,
    )


def _check_figure(path: Path, row: str, column: str, columns: list[str]) -> None:
    """Refuse a figure of the paper in a column that the table lacks, or that no paper has figures for.

    Args:
        path: path of the table.yaml.
        row: name or label of the row.
        column: the column that the figure is given for.
        columns: the columns of the table.

    Raises:
        UsageError: the figure cannot be shown beside ours.
    """
    known = COLUMNS.get(column)
    if known and not known.paper:
        right = f"give it for {known.instead}" if known.instead else "leave it out"
        raise UsageError(
            f"{path}: row {row} has a figure of the paper for column {column}, whose definition no paper has "
            f"figures of; {right}"
        )
    if column not in columns:
        raise UsageError(
            f"{path}: row {row} has the paper's {column}, for which there is no column; add it to columns"
        )
