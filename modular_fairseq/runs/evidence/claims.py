"""The file claims.yaml, which registers claims before the runs that test them.

A claims.yaml has these keys:

    commit: 0123abc...          # the commit of this project that makes all runs
    scale: cpu                  # the size of all runs, a file of configs/scales
    corpora:                    # for each corpus how it is prepared, and the digests of the result
      multi30k.de-en:
        command: modular-fairseq prepare raw {text}/multi30k ... --out {data}/multi30k.de-en
        sums: {bin/dict.de.txt: 0123..., ...}       # which --prepare prints
    changes: []                 # whatever changed after a run that it concerns, see `Change`
    claims:
      - name: mae-7-above-base
        registered: 2026-11-22
        kind: primary           # or secondary: an interval without a verdict
        paper: "Peng et al. 2020, table 3: 35.5 against 34.6"
        says: MAE-7 translates better than the Transformer.
        table: multi30k         # a table of configs/, or the path of a table.yaml
        quantity: bleu          # see `quantities.QUANTITIES`
        row: mae-7
        baseline: base
        expected: above         # or below
        margin: 0               # above: row > baseline + margin; below: row < baseline - margin
        printed: 0.9            # the difference that the paper prints; not tested
        seeds: [1, 2, 3, 4, 5]
        differ: [attention_type, mae_*]     # the keys in which the files of both rows differ

A claim about a loss, as of a row with a single expert against the same row with all, also has `row_minus` and
`baseline_minus`: the rows whose quantity is subtracted first. A claim about a single row, such as that a
quantity falls during training, has neither `baseline` nor `differ`: the quantity itself is above or below
`margin`.
"""

import datetime
import fnmatch
import hashlib
import json
import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from modular_fairseq.runs.config import Config, why
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq_cli.errors import UsageError

KEYS = {"commit", "scale", "corpora", "changes", "claims"}
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

    @property
    def rows(self) -> list[str]:
        """The names of all rows that the claim needs, the baseline first."""
        return [name for name in (self.baseline, self.row, self.baseline_minus, self.row_minus) if name]

    @property
    def table_name(self) -> str:
        """The name of the table, also if `table` is a path."""
        return Path(self.table).parent.name if self.table.endswith(".yaml") else self.table

    @property
    def bound(self) -> float:
        """What the difference is compared with: the margin, with its sign."""
        return self.margin if self.expected == "above" else 0.0 - self.margin

    @property
    def digest(self) -> str:
        """A digest of what was claimed, which every result that the claim needs records.

        Keys with their default values do not count, so a claim keeps its digest if claims get another key.
        """
        given = {
            key: value
            for key, value in self._replace(table=self.table_name)._asdict().items()
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


def read_claims(path: str | os.PathLike) -> Register:
    """Read a claims.yaml.

    Raises:
        UsageError: the file cannot be read, or a key or value in it is wrong.
    """
    try:
        spec = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UsageError(
            f"{path}: cannot be read ({why(error)}); give a file such as results/claims.yaml"
        ) from None
    if not isinstance(spec, dict) or spec.keys() != KEYS or not isinstance(spec["claims"], list):
        raise UsageError(f"{path}: the file must have the keys {', '.join(sorted(KEYS))}, and no others")
    claims = [_claim(path, each) for each in spec["claims"]]
    names = [claim.name for claim in claims]
    commit = str(spec["commit"])
    if commit != "none" and not re.fullmatch("[0-9a-f]{40}", commit):
        raise UsageError(f"{path}: commit is {commit!r}; it must be a hash of 40 digits, or none")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: two claims are called {name}; rename one of them")
    changes = [_change(path, each, names) for each in spec["changes"] or []]
    return Register(str(path), commit, spec["scale"], spec["corpora"] or {}, changes, claims)


def _claim(path: str | os.PathLike, spec: Any) -> Claim:
    name = spec.get("name") if isinstance(spec, dict) else None
    if not name:
        raise UsageError(f"{path}: a claim has no name; each needs one")
    fields, defaults = set(Claim._fields), set(Claim._field_defaults)
    if missing := sorted(fields - defaults - spec.keys()):
        raise UsageError(f"{path}: claim {name} lacks {', '.join(missing)}; add it")
    if unknown := sorted(spec.keys() - fields):
        raise UsageError(f"{path}: claim {name} has the unknown key {unknown[0]}; correct or remove it")
    for key, known in {"kind": KINDS, "expected": EXPECTED, "quantity": QUANTITIES}.items():
        if spec[key] not in known:
            raise UsageError(
                f"{path}: claim {name}: {key} is {spec[key]!r}; it must be one of {', '.join(known)}"
            )
    seeds = spec["seeds"]
    if (
        not isinstance(seeds, list)
        or len(set(seeds)) < 2
        or not all(isinstance(seed, int) and seed > 0 for seed in seeds)
    ):
        raise UsageError(
            f"{path}: claim {name}: seeds is {seeds!r}; it must be a list of at least two different numbers"
        )
    if bool(spec.get("row_minus")) != bool(spec.get("baseline_minus")):
        raise UsageError(f"{path}: claim {name} has only one of row_minus and baseline_minus; give both")
    if ("baseline" in spec) != ("differ" in spec) or ("baseline_minus" in spec and "baseline" not in spec):
        raise UsageError(
            f"{path}: claim {name} must have both baseline and differ (the keys in which the two rows "
            "differ), or, if it is about a single row, neither of them and no row_minus"
        )
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()
    }
    values["registered"] = str(_date(path, f"claim {name}", values["registered"]))
    return Claim(**values)


def _change(path: str | os.PathLike, spec: Any, names: list[str]) -> Change:
    if not isinstance(spec, dict) or not {"date", "reason"} <= spec.keys() <= set(Change._fields):
        raise UsageError(
            f"{path}: each of `changes` needs a date and a reason, and may have claims, rows and before; "
            f"correct {spec!r}"
        )
    claims = spec.get("claims", {})
    if not isinstance(claims, dict):
        raise UsageError(
            f"{path}: the claims of the change of {spec['date']} must be names with digests, as in "
            "`claims: {name: 0123456789abcdef}`"
        )
    for name in claims:
        if name not in names:
            raise UsageError(
                f"{path}: changes names the claim {name}, which does not exist; correct it, or list it under "
                "`removed`"
            )
    for name in spec.get("removed", []):
        if name in names:
            raise UsageError(f"{path}: changes says that the claim {name} was removed, but it is there")
    if not str(spec["reason"]).strip():
        raise UsageError(f"{path}: the change of {spec['date']} has no reason; give it")
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()
    }
    date = _date(path, "a change", spec["date"])
    if date > datetime.date.today():
        raise UsageError(f"{path}: a change has the date {date}, which is in the future; correct it")
    return Change(**values | {"date": str(date)})


def _date(path: str | os.PathLike, what: str, value: Any) -> datetime.date:
    try:
        return datetime.date.fromisoformat(str(value))
    except ValueError:
        raise UsageError(
            f"{path}: {what} has the date {value!r}; it must be a date such as 2026-11-22"
        ) from None


def check_differences(claim: Claim, names: Sequence[str], configs: Sequence[Config]) -> None:
    """Refuse a claim if two rows that it compares differ in other keys than it says.

    Args:
        claim: the claim.
        names: the names of the two rows.
        configs: their files, scaled.

    Raises:
        UsageError: they differ in another key, or do not differ in one that the claim names.
    """
    keys = {f"{group}.{key}" for each in configs for group, values in each.values.items() for key in values}
    row, baseline = configs
    differing = {key.partition(".")[2] for key in keys if row.get(key) != baseline.get(key)}
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
