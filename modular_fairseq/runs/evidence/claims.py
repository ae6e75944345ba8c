"""The file claims.yaml, which registers claims before the runs that test them.

A claims.yaml has these keys:

    commit: 0123abc...          # the commit of this project that makes all runs
    scale: cpu                  # the size of all runs, a file of configs/scales
    corpora:                    # for each corpus how it is prepared, and the digests of the result
      multi30k.de-en:
        command: modular-fairseq prepare raw {text}/multi30k ... --out {data}/multi30k.de-en
        sums: {bin/dict.de.txt: 0123..., ...}       # which --prepare prints
        about: what it consists of               # shown on the page of results; may be left out
    changes: []                 # whatever changed after a run that it concerns, see `Change`
    claims:
      - name: mae-7-above-base
        registered: 2026-11-22
        kind: primary           # or secondary: an interval without a verdict
        paper: "Peng et al. 2020, table 3: 35.5 against 34.6"   # authors and year, a comma, and the place
        says: MAE-7 translates better than the Transformer.
        table: multi30k         # a table of configs/, or the path of a table.yaml
        quantity: bleu          # see `quantities.QUANTITIES`
        row: mae-7
        baseline: base
        expected: above         # or below
        margin: 0               # above: row > baseline + margin; below: row < baseline - margin
        printed: 0.9            # the difference that the paper prints; not tested
        seeds: [1, 2, 3, 4, 5]
        differ: [attention_type, mae_*]     # the keys in which both rows differ: their files and `overrides`

A claim about a loss, as of a row with a single expert against the same row with all, also has `row_minus` and
`baseline_minus`: the rows whose quantity is subtracted first. A claim about a single row, such as that a
quantity falls during training, has neither `baseline` nor `differ`: the quantity itself is above or below
`margin`. If `paper` begins with "No" or "no", as in "No place: a control of ours", no paper claims it. A
`remark` says how to read what was found, or why a claim has no runs. It is shown on the page of results, and
is no part of what was registered, so it may be added later. It begins with its date in brackets, such as
(2026-11-28).

If there is a file about.md beside the claims, the page of results shows its text, in Markdown, near the top.
"""

import fnmatch
import hashlib
import itertools
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modular_fairseq_cli.errors import UsageError

KINDS = ("primary", "secondary")
EXPECTED = ("above", "below")


class Claim(NamedTuple):
    """A claim of a paper, and the comparison that tests it; see the module's docstring."""

    name: str
    registered: str
    kind: str
    paper: str
    says: str
    table: str
    quantity: str
    row: str
    expected: str
    seeds: tuple[int, ...]
    baseline: str = ""
    differ: tuple[str, ...] = ()
    margin: float = 0.0
    printed: float | None = None
    row_minus: str = ""
    baseline_minus: str = ""
    remark: str = ""

    @property
    def authors(self) -> str:
        """The authors and the year of the paper, such as "Peng et al. 2020"; "" if no paper claims it."""
        authors = self.paper.partition(",")[0]
        return "" if authors.lower().startswith("no ") else authors

    @property
    def rows(self) -> list[str]:
        """The names of all rows that the claim needs, the baseline first."""
        return [name for name in (self.baseline, self.row, self.baseline_minus, self.row_minus) if name]

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each row in the difference that is claimed, such as {row: 1, baseline: -1}."""
        signs = {self.row: 1.0, self.row_minus: -1.0, self.baseline: -1.0, self.baseline_minus: 1.0}
        return {row: sign for row, sign in signs.items() if row}

    def is_about(
        self, table: str, quantity: str | None, weights: Mapping[str, float], seeds: Iterable[int]
    ) -> bool:
        """Return whether the claim has this weighted sum of rows, or its opposite, and all of these seeds.

        Args:
            table: the name of the table of the rows.
            quantity: the quantity that is summed.
            weights: the weight of each row.
            seeds: the seeds.
        """
        opposite = {row: -weight for row, weight in weights.items()}
        return (
            (self.table_name, self.quantity) == (table, quantity)
            and self.weights in (weights, opposite)
            and set(seeds) <= set(self.seeds)
        )

    @property
    def table_name(self) -> str:
        """The name of the table, also if `table` is a path."""
        return Path(self.table).parent.name if self.table.endswith(".yaml") else self.table

    @property
    def bound(self) -> float:
        """What the difference is compared with: the margin, with its sign.

        For a claim about a single row it is what the quantity itself is compared with.
        """
        return self.margin if self.expected == "above" or not self.baseline else 0.0 - self.margin

    @property
    def printed_values(self) -> tuple[float, float] | None:
        """The paper's values of the row and of the baseline, or None if `paper` does not give them.

        They are two numbers with decimals, one after the other, whose difference is `printed`.
        """
        numbers = [float(each) for each in re.findall(r"\d+\.\d+", self.paper)]
        for row, baseline in itertools.pairwise(numbers):
            if self.printed is not None and math.isclose(row - baseline, self.printed, abs_tol=1e-9):
                return row, baseline
        return None

    @property
    def digest(self) -> str:
        """A digest of what was claimed, which every result that the claim needs records.

        Keys with their default values do not count, so a claim keeps its digest if claims get another key.
        The remark does not count either.
        """
        given = {
            key: value
            for key, value in self._replace(table=self.table_name, remark="")._asdict().items()
            if key not in self._field_defaults or value != self._field_defaults[key]
        }
        content = json.dumps(given, ensure_ascii=True, sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()[:16]


class Change(NamedTuple):
    """A change after a run that it concerns.

    Args:
        date: its date.
        reason: why it was necessary.
        claims: the names of claims that were changed or added, each with the digest of its present text
            (`Claim.digest`). A later change of the same claim needs another entry.
        removed: names of claims that were removed.
        rows: rows that are trained, as TABLE/ROW, whose results of earlier commits count no longer. Runs that
            were fine-tuned from theirs do not count either.
        before: the commit that `commit` named before; "": it was not changed. Its results of other rows than
            `rows` go on counting.
    """

    date: str
    reason: str
    claims: dict[str, str] = {}
    removed: tuple[str, ...] = ()
    rows: tuple[str, ...] = ()
    before: str = ""


class Register(NamedTuple):
    """The content of a claims.yaml; see the module's docstring."""

    path: str
    commit: str
    scale: str
    corpora: dict[str, dict[str, Any]]
    changes: list[Change]
    claims: list[Claim]

    def commits(self, row: str) -> set[str]:
        """Return the commits whose results of a row count; `row` is TABLE/ROW."""
        found = {self.commit}
        for change in reversed(self.changes):
            if row in change.rows:
                break
            if change.before:
                found.add(change.before)
        return found

    def outdated(self, row: str) -> set[str]:
        """Return the commits whose results of a row, TABLE/ROW, counted and count no longer."""
        return {change.before for change in self.changes if change.before} - self.commits(row)


def check_differences(claim: Claim, names: Sequence[str], keys: Sequence[Mapping[str, Any]]) -> None:
    """Refuse a claim if two rows that it compares differ in other keys than it says.

    Args:
        claim: the claim.
        names: the names of the two rows.
        keys: the keys GROUP.KEY of each row with their values: of its file, scaled, and of its overrides.

    Raises:
        UsageError: they differ in another key, or do not differ in one that the claim names, or are equal.
    """
    row, baseline = keys
    differing = {key.partition(".")[2] for key in {**row, **baseline} if row.get(key) != baseline.get(key)}
    rows = f"rows {' and '.join(names)}"
    for key in sorted(differing):
        if not any(fnmatch.fnmatch(key, pattern) for pattern in claim.differ):
            raise UsageError(
                f"claim {claim.name}: {rows} differ in {key}, which the claim does not name; correct the "
                "rows, or add it to `differ`"
            )
    for pattern in claim.differ:
        if not fnmatch.filter(differing, pattern):
            raise UsageError(
                f"claim {claim.name}: {rows} do not differ in {pattern}, as `differ` says; correct it"
            )
    if not differing:
        raise UsageError(f"claim {claim.name}: {rows} are equal; compare rows that differ in something")
