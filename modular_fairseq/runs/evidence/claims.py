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

import datetime
import fnmatch
import hashlib
import itertools
import json
import math
import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.yaml_files import Kind, check_values, read_yaml
from modular_fairseq_cli.errors import UsageError

A_TEXT: Kind = (str,), "a text"
A_LIST: Kind = (list,), "a list"
KEYS: dict[str, Kind] = {
    "commit": A_TEXT,
    "scale": A_TEXT,
    "corpora": ((dict,), "a dictionary"),
    "changes": A_LIST,
    "claims": A_LIST,
}
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


def read_claims(path: str | os.PathLike) -> Register:
    """Read a claims.yaml.

    Raises:
        UsageError: the file cannot be read, or a key or value in it is wrong.
    """
    spec = read_yaml(path, "give a file such as results/claims.yaml")
    if not isinstance(spec, dict) or spec.keys() != KEYS.keys():
        raise UsageError(
            f"{path}: the file must have the keys {', '.join(sorted(KEYS))}, and no others; the claims about "
            "speech are shown by python scripts/speech_evidence.py table"
        )
    check_values(f"{path}: ", spec, KEYS)
    for name, corpus in spec["corpora"].items():
        parts = corpus if isinstance(corpus, dict) else {}
        if not isinstance(parts.get("command"), str) or not isinstance(parts.get("sums"), dict):
            raise UsageError(f"{path}: corpus {name} must have a `command`, and `sums` of its files")
        if not isinstance(parts.get("about", ""), str):
            raise UsageError(f"{path}: corpus {name} has an `about` that is no text")
    claims = [_claim(path, each) for each in spec["claims"]]
    names = [claim.name for claim in claims]
    if spec["commit"] != "none" and not re.fullmatch("[0-9a-f]{40}", spec["commit"]):
        raise UsageError(f"{path}: commit is {spec['commit']!r}; it must be a hash of 40 digits, or none")
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"{path}: two claims are called {name}; rename one of them")
    changes = [_change(path, each, claims) for each in spec["changes"]]
    return Register(str(path), spec["commit"], spec["scale"], spec["corpora"], changes, claims)


def _claim(path: str | os.PathLike, spec: Any) -> Claim:
    name = spec.get("name") if isinstance(spec, dict) else None
    if not name:
        raise UsageError(f"{path}: a claim has no name; each needs one")
    what = f"{path}: claim {name}"
    fields, defaults = set(Claim._fields), set(Claim._field_defaults)
    if missing := sorted(fields - defaults - spec.keys()):
        raise UsageError(f"{what} lacks {', '.join(missing)}; add it")
    if unknown := sorted(spec.keys() - fields):
        raise UsageError(f"{what} has the unknown key {unknown[0]}; correct or remove it")
    for key in spec.keys() - {"registered", "seeds", "differ", "margin", "printed"}:
        if not isinstance(spec[key], str):
            raise UsageError(f"{what}: {key} is {spec[key]!r}; it must be {A_TEXT[1]}")
    for key in spec.keys() & {"margin", "printed"}:
        if type(spec[key]) not in (int, float) or not math.isfinite(spec[key]):
            raise UsageError(f"{what}: {key} is {spec[key]!r}; it must be a number")
    for key, known in {"kind": KINDS, "expected": EXPECTED, "quantity": QUANTITIES}.items():
        if spec[key] not in known:
            raise UsageError(f"{what}: {key} is {spec[key]!r}; it must be one of {', '.join(known)}")
    seeds, differ = spec["seeds"], spec.get("differ", [])
    if (
        not isinstance(seeds, list)
        or not all(type(seed) is int and seed > 0 for seed in seeds)
        or not 2 <= len(seeds) == len(set(seeds))
    ):
        raise UsageError(f"{what}: seeds is {seeds!r}; it must be a list of at least two different numbers")
    if not _are_texts(differ) or any(not pattern.strip("*") for pattern in differ):
        raise UsageError(
            f"{what}: differ is {differ!r}; it must be a list of keys, such as dropout, or of patterns, such "
            "as *_dropout"
        )
    if "remark" in spec and not re.match(r"\(\d{4}-\d\d-\d\d\) ", spec["remark"]):
        raise UsageError(f"{what}: its remark must begin with its date in brackets, such as (2026-11-28)")
    if bool(spec.get("row_minus")) != bool(spec.get("baseline_minus")):
        raise UsageError(f"{what} has only one of row_minus and baseline_minus; give both")
    if ("baseline" in spec) != ("differ" in spec) or ("baseline_minus" in spec and "baseline" not in spec):
        raise UsageError(
            f"{what} must have both baseline and differ (the keys in which the two rows differ), or, if it "
            "is about a single row, neither of them and no row_minus"
        )
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()
    }
    values["registered"] = str(_date(path, f"claim {name}", values["registered"]))
    return Claim(**values)


def _change(path: str | os.PathLike, spec: Any, claims: list[Claim]) -> Change:
    if not isinstance(spec, dict) or not {"date", "reason"} <= spec.keys() <= set(Change._fields):
        raise UsageError(
            f"{path}: each of `changes` needs a date and a reason, and may have claims, removed, rows and "
            f"before; correct {spec!r}"
        )
    date = _date(path, "a change", spec["date"])
    what = f"{path}: the change of {date}"
    if not isinstance(spec["reason"], str) or not spec["reason"].strip():
        raise UsageError(f"{what} has no reason; give it")
    concerned, before = spec.get("claims", {}), spec.get("before", "")
    if not isinstance(concerned, dict) or not _are_texts(list(concerned.values())):
        raise UsageError(
            f"{what}: claims must be names with digests in quotes, as in `claims: {{name: "
            '"0123456789abcdef"}`'
        )
    for key in ("removed", "rows"):
        if not _are_texts(spec.get(key, [])):
            raise UsageError(f"{what}: {key} is {spec[key]!r}; it must be a list of names")
    if not isinstance(before, str) or not re.fullmatch("([0-9a-f]{40})?", before):
        raise UsageError(f"{what}: before is {before!r}; it must be a hash of 40 digits")
    if spec.get("rows") and not before:
        raise UsageError(f"{what} has rows, but not the commit whose results count no longer; add `before`")
    present = {claim.name: claim for claim in claims}
    for name in concerned:
        if name not in present:
            raise UsageError(
                f"{what} names the claim {name}, which does not exist; correct it, or list it under `removed`"
            )
        if str(date) < present[name].registered:
            raise UsageError(
                f"{what} is older than the claim {name}, which was registered on "
                f"{present[name].registered}; correct one of the dates"
            )
    for name in spec.get("removed", []):
        if name in present:
            raise UsageError(f"{what} says that the claim {name} was removed, but it is there")
    values: dict[str, Any] = {
        key: tuple(value) if isinstance(value, list) else value for key, value in spec.items()
    }
    return Change(**values | {"date": str(date)})


def _are_texts(values: Any) -> bool:
    return isinstance(values, list) and all(isinstance(each, str) for each in values)


def _date(path: str | os.PathLike, what: str, value: Any) -> datetime.date:
    try:
        date = datetime.date.fromisoformat(str(value))
    except ValueError:
        raise UsageError(
            f"{path}: {what} has the date {value!r}; it must be a date such as 2026-11-22"
        ) from None
    if date > datetime.date.today():
        raise UsageError(f"{path}: {what} has the date {date}, which is in the future; correct it")
    return date


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
