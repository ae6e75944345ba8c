"""Say in a word what was found of each claim, and count the findings by paper."""

from collections import Counter
from collections.abc import Sequence

from modular_fairseq.runs.evidence.claims import KINDS
from modular_fairseq.runs.evidence.overview import Findings
from modular_fairseq.runs.evidence.papers_difference import is_excluded
from modular_fairseq.runs.evidence.verdicts import Finding

EXCLUDED = "the paper's difference is excluded"

COUNTED = {  # what is found of a claim, and how it is said of one and of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "fails, but has the claimed direction": (
        "fails, but has the claimed direction",
        "fail, but have the claimed direction",
    ),
    "open": ("is open", "are open"),
    "as claimed": ("is as claimed", "are as claimed"),
    "the opposite": ("is the opposite", "are the opposite"),
    "undecided": ("is undecided", "are undecided"),
    "lost": ("has lost a seed", "have lost a seed"),
}


def said(finding: Finding, findings: Findings) -> str:
    """Return the verdict on a primary claim, or where the interval of a secondary one lies.

    If it is not decided, the words say whether the interval excludes the paper's difference. If a claim with
    a margin fails, they say whether its whole interval is on the claimed side of 0.
    """
    word, excluded = _found(finding, findings)
    return f"{word}; {EXCLUDED}" if excluded else word


def _found(finding: Finding, findings: Findings) -> tuple[str, bool]:
    """Return the key of `COUNTED` for a claim, and for an undecided one whether `EXCLUDED` is true of it."""
    word = _decided(finding, findings)
    if word == "fails" and _has_direction(finding):
        word += ", but has the claimed direction"
    return word, word in ("open", "undecided") and is_excluded(finding)


def _has_direction(finding: Finding) -> bool:
    """Return whether the whole interval of a claim with a margin is on the claimed side of 0."""
    claim = finding.claim
    if claim.margin <= 0 or not claim.baseline or not finding.interval:
        return False
    return finding.interval.low > 0 if claim.expected == "above" else finding.interval.high < 0


def _decided(finding: Finding, findings: Findings) -> str:
    if finding.missing or finding.claim.kind == "primary":
        return findings.verdict(finding)
    if finding.interval is None:
        return "undecided"
    low, high = finding.interval.low - finding.claim.bound, finding.interval.high - finding.claim.bound
    if low <= 0 <= high:
        return "undecided"
    return "as claimed" if (low > 0) == (finding.claim.expected == "above") else "the opposite"


def by_paper(findings: Findings) -> str:
    """Return a table with the number of claims of each paper by what was found of them."""
    registered = {finding.claim.kind for finding in findings.all}
    found: dict[str, dict[str, list[tuple[str, bool]]]] = {}
    for finding in sorted(findings.all, key=lambda each: not each.claim.authors):
        paper = finding.claim.authors or "questions of our own"
        kinds = found.setdefault(paper, {kind: [] for kind in KINDS if kind in registered})
        kinds[finding.claim.kind].append(_counts_as(finding, findings))
    heads = ["paper", *(f"{kind} claims" for kind in KINDS if kind in registered)]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for paper, kinds in found.items():
        cells = [_counted(words) for words in kinds.values()]
        lines.append(f"| {paper} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _counts_as(finding: Finding, findings: Findings) -> tuple[str, bool]:
    """Return what `_found` does, with "missing" if the claim lacks runs, and "lost" if it has lost a seed."""
    if finding.lost or finding.waits:
        return "missing" if finding.waits else "lost", False
    return _found(finding, findings)


def _counted(found: Sequence[tuple[str, bool]]) -> str:
    """Return how many claims have which finding, such as "3 of 4 done: 2 hold, 1 is open".

    Args:
        found: what `_counts_as` returns for each claim.
    """
    numbers = Counter(word for word, _ in found)
    excluded = Counter(word for word, is_so in found if is_so)
    missing = numbers.pop("missing", 0)
    told = []
    for word in sorted(numbers, key=list(COUNTED).index):
        text = f"{numbers[word]} {COUNTED[word][numbers[word] > 1]}"
        if excluded[word] and numbers[word] > 1:
            of = "each" if excluded[word] == numbers[word] else excluded[word]
            text += f" (for {of} of them {EXCLUDED})"
        elif excluded[word]:
            text += f" ({EXCLUDED})"
        told.append(text)
    done = f"{len(found) - missing} of {len(found)} done" if missing else ""
    return ": ".join(part for part in (done, ", ".join(told)) if part)
