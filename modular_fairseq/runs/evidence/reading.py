"""Read a claims.yaml, and refuse what is wrong in it; see `claims` for its keys."""

import datetime
import math
import os
import re
from typing import Any

from modular_fairseq.runs.evidence.claims import EXPECTED, KINDS, Change, Claim, Register
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
