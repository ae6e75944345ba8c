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
    "smaller": ("fails (but has the claimed direction)", "fail (but have the claimed direction)"),
    "open": ("is open", "are open"),
    f"open; {EXCLUDED}": (f"is open ({EXCLUDED})", f"are open ({EXCLUDED})"),
    "as claimed": ("is as claimed", "are as claimed"),
    "the opposite": ("is the opposite", "are the opposite"),
    "undecided": ("is undecided", "are undecided"),
    f"undecided; {EXCLUDED}": (f"is undecided ({EXCLUDED})", f"are undecided ({EXCLUDED})"),
    "lost": ("has lost a seed", "have lost a seed"),
}


def said(finding: Finding, findings: Findings) -> str:
    """Return the verdict on a primary claim, or where the interval of a secondary one lies.

    If it is not decided, the words say whether the interval excludes the paper's difference.
    """
    word = _decided(finding, findings)
    return f"{word}; {EXCLUDED}" if word in ("open", "undecided") and is_excluded(finding) else word


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
    """Return a table with the number of claims of each paper by what was found of them.

    A paper is what the `paper` of a claim says before its first comma. If this begins with "no", the claim is
    a question of our own.
    """
    found: dict[str, dict[str, list[str]]] = {}
    for finding in sorted(findings.all, key=lambda each: each.claim.paper.lower().startswith("no ")):
        paper = finding.claim.paper.partition(",")[0]
        paper = "questions of our own" if paper.lower().startswith("no ") else paper
        kinds = found.setdefault(paper, {kind: [] for kind in KINDS})
        kinds[finding.claim.kind].append(_word(finding, findings))
    heads = ["paper", *(f"{kind} claims" for kind in KINDS)]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for paper, kinds in found.items():
        cells = [_counted(words) for words in kinds.values()]
        lines.append(f"| {paper} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _word(finding: Finding, findings: Findings) -> str:
    """Return the key of `COUNTED` for a claim, or "missing" if it lacks runs.

    A claim that fails is "smaller" if it has a margin, and its whole interval is on the claimed side of 0.
    """
    if finding.lost or finding.waits:
        return "missing" if finding.waits else "lost"
    word, claim = said(finding, findings), finding.claim
    if word == "fails" and claim.margin > 0 and claim.baseline and finding.interval:
        low, high = finding.interval.low, finding.interval.high
        return "smaller" if (low > 0 if claim.expected == "above" else high < 0) else word
    return word


def _counted(found: Sequence[str]) -> str:
    """Return how many claims have which finding, such as "3 of 4 done: 2 hold, 1 is open".

    Args:
        found: keys of `COUNTED`, and "missing" for claims that lack runs.
    """
    numbers = Counter(found)
    missing = numbers.pop("missing", 0)
    words = sorted(numbers, key=list(COUNTED).index)
    done = f"{len(found) - missing} of {len(found)} done" if missing else ""
    told = ", ".join(f"{numbers[word]} {COUNTED[word][numbers[word] > 1]}" for word in words)
    return ": ".join(part for part in (done, told) if part)
