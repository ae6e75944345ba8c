"""A table of a paper, beside ours: its rows from configs/*/table.yaml, their results from folders of runs.

A table.yaml has

    title: what it is
    baseline: base                      # the row that the others are compared with
    columns: [bleu, parameters]         # see `COLUMNS`
    figure: [bleu]                      # if any, columns that are also drawn over the share of the training data, a line per label
    rows:
      - {name: base, label: BASE, paper: {bleu: "34.60", parameters: 39M}}  # trains base.yaml, which lies
      beside it
      - {label: Large Transformer, paper: {bleu: 28.4}}                     # no name: quoted from the paper

and a row may have: config (another file, as ../mae-2/mae-7.yaml), subset (valid), baseline (of its own),
overrides (options of the model at inference, or a list of such: their mean is shown), pretrained: true (the
checkpoint that the config would fine-tune, as it is), percent: 5 (of the training data that the config names;
the subset is drawn).
"""

import os
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import yaml

from modular_fairseq.runs.config import why
from modular_fairseq.runs.evaluations.bleu import Evaluation
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring import compare_seeds, paired_bootstrap

# A column's heading, the paper's heading ("": none), and how a number is shown.
COLUMNS = {
    "bleu": ("BLEU", "paper: BLEU", "{:.2f}"),
    "tokenized_bleu": ("tokenised BLEU", "paper: tokenised BLEU", "{:.2f}"),
    "compound_split_bleu": ("compound-split BLEU", "paper: compound-split BLEU", "{:.2f}"),
    "chrf": ("chrF", "", "{:.2f}"),
    "valid_perplexity": ("valid. perplexity (best epoch)", "paper: perplexity", "{:.2f}"),
    "LR": ("LR", "paper: LR", "{:.3f}"),
    "HR": ("HR", "paper: HR", "{:.3f}"),
    "parameters": ("parameters", "paper: parameters", "{:,.0f}"),
    "trained_parameters": ("trained parameters", "paper: trained", "{:,.0f}"),
    "percent": ("training data", "", "{:.0f} %"),
    "updates": ("updates", "paper: updates", "{:,.0f}"),
}
KEYS = {"title", "baseline", "columns", "figure", "rows", "notes"}
ROW_KEYS = {"name", "label", "paper", "config", "subset", "baseline", "overrides", "pretrained", "percent"}


class Row(NamedTuple):
    """A line of the table; `name` is "" for what is only quoted from the paper. See the module's docstring
    for the rest.
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


def read_table(path: str | os.PathLike) -> Table:
    """Reads a table.yaml.

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
            if column not in spec["columns"] or not COLUMNS[column][1]
        ]
        if wrong:
            raise UsageError(
                f"{path}: row {row.get('name', row.get('label'))} has the paper's {wrong[0]}, which is in no "
                "column; add it to columns"
            )
        if row.get("overrides") and {"LR", "HR"} & {*spec["columns"]}:
            raise UsageError(
                f"{path}: row {row.get('name')} has overrides, which LR and HR would not know of; leave one "
                "of them out"
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


class Results(NamedTuple):
    """A row and its evaluations, by seed and override."""

    row: Row
    evaluations: list[Evaluation]

    @property
    def found(self) -> list[Evaluation]:
        return [
            each for each in self.evaluations if each.result is not None and each.run.training is not None
        ]

    @property
    def is_complete(self) -> bool:
        return len(self.found) == len(self.evaluations)

    def numbers(self, column: str) -> list[float]:
        """One per evaluation that is there and has it."""
        if column == "percent":  # is known without any
            return [0 if self.row.pretrained else self.row.percent]
        values = [{**each.run.training, **each.result} for each in self.found]
        return [each[column] for each in values if column in each]

    def __str__(self) -> str:
        """What is missing, in a word or two."""
        return (
            ""
            if self.is_complete
            else f"{len(self.found)} of {len(self.evaluations)}"
            if self.found
            else "missing"
        )


class Difference(NamedTuple):
    """From the baseline in BLEU: one number per evaluation, the largest p of their paired bootstrap tests,
    and Welch's over seeds.
    """

    values: list[float]
    p: float
    welch_p: float | None

    def __str__(self) -> str:
        welch = "" if self.welch_p is None else f"; {self.welch_p:.3f}"
        return f"{summary(self.values, '{:+.2f}')} ({self.p:.3f}{welch})"


def difference(ours: Results, baseline: Results, samples: int) -> Difference | None:
    """Each evaluation against the baseline's of the same seed, or against its only one; None where there is
    nothing to compare.

    Raises:
        UsageError: they are of one corpus, and yet of other references.
    """
    first, *_ = [*baseline.found, None]
    if first is None or ours.row.name == baseline.row.name:
        return None
    values, worst = [], 0.0
    for each in ours.found:
        other = (
            first
            if len(baseline.evaluations) == 1
            else next((it for it in baseline.found if it.run.seed == each.run.seed), None)
        )
        if other is None or other.reference != each.reference:
            continue
        references = each.references()
        if references != other.references():
            raise UsageError(
                f"{each.ref} and {other.ref}: differ, so the rows cannot be compared; translate both again "
                "with --run"
            )
        (test,) = paired_bootstrap(
            [references],
            other.output().hypotheses,
            [each.output().hypotheses],
            samples,
            language=each.run.config.languages[1],
        )
        values.append(test["bleu"]["difference"])
        worst = max(worst, test["bleu"]["p_value"])
    if not values:
        return None
    return Difference(values, worst, compare_seeds(baseline.numbers("bleu"), ours.numbers("bleu"))["welch_p"])


def summary(values: list[float], pattern: str) -> str:
    """Mean, and standard deviation over seeds where there are several."""
    if not values:
        return ""
    text = pattern.format(mean(values))
    return text if len(set(values)) == 1 else f"{text} ± {pattern.replace('+', '').format(stdev(values))}"


def cells(
    table: Table, found: dict[str, Results], samples: int
) -> tuple[list[str], list[list[str]], list[list[Any]]]:
    """Headings and rows for people, and the same as lists of words and numbers for programs, headings first.

    Args:
        found: results by row; a row without is only quoted.
        samples: of the paired bootstrap.
    """
    quoted = [
        column
        for column in table.columns
        if COLUMNS[column][1] and any(column in row.paper for row in table.rows)
    ]
    heads = [
        "",
        *(COLUMNS[column][0] for column in table.columns),
        "difference (p)",
        *(COLUMNS[column][1] for column in quoted),
    ]
    spread = [f"{column}{suffix}" for column in [*table.columns, "difference"] for suffix in ("", "_std")]
    first = next((number for number, column in enumerate(table.columns) if column != "percent"), 0)
    shown, numbers = (
        [],
        [
            [
                "row",
                "label",
                "translations",
                *spread,
                "p",
                "welch_p",
                *(f"paper_{column}" for column in quoted),
            ]
        ],
    )
    for row in table.rows:
        ours = found.get(row.name)
        values = [ours.numbers(column) if ours else [] for column in table.columns]
        apart = difference(ours, found[row.baseline], samples) if ours and row.baseline else None
        texts = [
            summary(each, COLUMNS[column][2]) for each, column in zip(values, table.columns, strict=True)
        ]
        if ours and not ours.is_complete:
            texts[first] = f"{texts[first]} ({ours})" if ours.found else str(ours)
        theirs = [row.paper.get(column, "") for column in quoted]
        shown.append([row.label, *texts, str(apart) if apart else "", *map(str, theirs)])
        pairs = [number for each in [*values, apart.values if apart else []] for number in spread_of(each)]
        numbers.append(
            [
                row.name,
                row.label,
                len(ours.found) if ours else 0,
                *pairs,
                *((apart.p, apart.welch_p or "") if apart else ("", "")),
                *theirs,
            ]
        )
    return heads, shown, numbers


def spread_of(values: list[float]) -> tuple[float | str, float | str]:
    return (mean(values) if values else "", stdev(values) if len(values) > 1 else "")
