"""Show what the records say about the claims, and how much is done."""

from collections.abc import Sequence
from statistics import fmean
from typing import Any, NamedTuple

from modular_fairseq.runs.evidence.claims import KINDS
from modular_fairseq.runs.evidence.jobs import Job, Plan, row_of, table_of
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.records import is_of_cpu
from modular_fairseq.runs.evidence.rows import Records, time_spent
from modular_fairseq.runs.evidence.verdicts import Finding, find, holm, verdict
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq_cli.scoring.intervals import notes_on
from modular_fairseq_cli.scoring.spread import shown

PValues = tuple[float | None, float | None]  # for a claim and against it


def status(jobs: Sequence[Job], records: Records, at_a_time: int) -> str:
    """Return sentences about what is done, and how long the rest will take.

    Args:
        jobs: the jobs that are counted.
        records: the records that exist.
        at_a_time: the number of runs that are made at a time.
    """
    lines = []
    for kind in KINDS:
        mine = [job for job in jobs if job.primary == (kind == "primary")]
        done = [job for job in mine if job.run.name in records]
        lines.append(f"{kind}: {len(done)} of {len(mine)} runs are done")
    coming = [job.run.name for job in jobs if job.run.name not in records]
    left = hours_left(jobs, records)
    if left is not None:
        spent = time_spent(records[job.run.name] for job in jobs if job.run.name in records)
        lines.append(
            f"{spent} were spent; about {left:.1f} core-hours on a CPU are left, which take "
            f"{left / at_a_time:.1f} hours with --jobs {at_a_time}"
        )
    lines.append(f"next: {', '.join(coming[:3])}" if coming else "all runs are done")
    return "\n".join(lines)


def hours_left(jobs: Sequence[Job], records: Records) -> float | None:
    """Return the core-hours on a CPU of the runs without a record; None if no record is of a run on a CPU.

    A run is expected to take as long as the mean of its row on a CPU. If its row has no such record, the mean
    of its table is taken, and otherwise the mean of all runs.
    """
    groups = {job.run.name: (row_of(job.run), table_of(job.run), "") for job in jobs}
    minutes: dict[str, list[float]] = {}
    for name in groups.keys() & records.keys():
        if not is_of_cpu(records[name]):
            continue
        for group in groups[name]:
            minutes.setdefault(group, []).append(records[name]["core_minutes"])
    if not minutes:
        return None
    coming = [name for name in groups if name not in records]
    return sum(fmean(next(minutes[each] for each in groups[name] if each in minutes)) for name in coming) / 60


class Findings(NamedTuple):
    """What the records say about all claims.

    Args:
        all: one for each claim, in the order of the register.
        corrected: for each primary claim, by name, the p for it and against it, corrected by Holm's method.
    """

    all: list[Finding]
    corrected: dict[str, PValues]

    def p_values(self, finding: Finding) -> PValues:
        """Return the corrected p for a claim and against it; None for a secondary claim."""
        return self.corrected.get(finding.claim.name, (None, None))

    def verdict(self, finding: Finding) -> str:
        """Return the verdict on a claim (`verdicts.verdict`)."""
        return verdict(finding, self.p_values(finding))


def by_row(plan: Plan, records: Records) -> dict[tuple[str, int], dict[str, Any]]:
    """Return the records of a plan, keyed by TABLE/ROW and the seed.

    A run that diverged stands for each row that it would have made.
    """
    return {
        (row, job.seed): records[job.run.name]
        for job in plan.jobs
        if job.run.name in records
        for row in records[job.run.name]["rows"] or job.measurements
    }


def found_in(plan: Plan, records: Records) -> Findings:
    """Return what the records say about all claims of a plan."""
    rows = by_row(plan, records)
    findings = [find(claim, rows) for claim in plan.register.claims]
    primary = [finding for finding in findings if finding.claim.kind == "primary"]
    sides = zip(*(finding.p_values for finding in primary), strict=True) if primary else ((), ())
    both = zip(*(holm(side, len(primary)) for side in sides), strict=True)
    return Findings(findings, dict(zip((each.claim.name for each in primary), both, strict=True)))


def sheet(plan: Plan, records: Records) -> Sheet:
    """Return the table of claims: primary ones with verdicts, then secondary ones."""
    findings = found_in(plan, records)
    lines, numbers = [], [NUMBERS]
    for kind in KINDS:
        mine = [finding for finding in findings.all if finding.claim.kind == kind]
        if mine:
            lines.append(Line([f"{kind} claims", *[""] * 7], True))
        for finding in mine:
            p = findings.p_values(finding)
            lines.append(Line(cells_of(finding, p)))
            numbers.append(numbers_of(finding, p))
    heads = ["", "quantity", "row", "baseline", "difference [95 %]", "paper", "p for; against", "verdict"]
    notes = [*NOTES, *notes_on(finding.interval for finding in findings.all)]
    if records:
        notes.append(last_epochs(plan, records))
    if diverged := [name for name, record in records.items() if record["diverged"]]:
        notes.append(f"No verdict is given on claims that need a run that diverged: {', '.join(diverged)}.")
    return Sheet(f"Claims of {plan.register.path}", heads, lines, numbers, notes)


NUMBERS: list[Any] = [
    *("claim", "kind", "quantity", "seeds", "row_mean", "baseline_mean", "difference", "low", "high"),
    *("half_by_sentences", "p_two_sided", "p_holm", "p_holm_against"),
    *("expected", "margin", "paper", "verdict"),
]
ACCOUNTS = (
    "Its interval accounts for seeds. For BLEU it also accounts for the choice of sentences, for nats per "
    "token for the choice of pictures, and for the accuracy of classes for the choice of inputs."
)
NOTES = [
    "Row and baseline are means ± standard deviations over seeds. The difference is between pairs of the "
    f"same seed. {ACCOUNTS}",
    "The p of a primary claim, for it and against it, are one-sided and corrected by Holm's method over all "
    "primary claims. Secondary claims have no verdict. The paper's difference was measured on other data and "
    "at another size.",
]


def last_epochs(plan: Plan, records: Records) -> str:
    """Return a sentence about how many runs had not converged: their last validation was their best."""
    curves = [record["curves"].get("valid", {}).get("nll_loss") for record in records.values()]
    values = [[value for _, value in curve] for curve in curves if curve]
    late = sum(min(each) == each[-1] for each in values)
    return (
        f"In {late} of {len(values)} runs the last validation was the best. As learning rates decay to 0, "
        "this is no sign that longer training would help."
    )


def values_of(finding: Finding) -> list[tuple[float, ...]]:
    """Return the values of the row and of the baseline, for each seed that is complete."""
    return list(zip(*finding.values.values(), strict=True)) or [(), ()]


def difference(finding: Finding) -> str:
    """Return the difference with its interval, such as "+0.70 [+0.10, +1.30]", or "" if there is none.

    A mark follows an interval that may be too narrow (`scoring.intervals.Interval.mark`).
    """
    if finding.interval is None:
        return ""
    return finding.interval.shown(QUANTITIES[finding.claim.quantity].signed)


def mean_difference(finding: Finding) -> str:
    """Return the difference of the means without an interval."""
    ours, theirs = values_of(finding)
    return QUANTITIES[finding.claim.quantity].signed.format(fmean(ours) - fmean(theirs))


def cells_of(finding: Finding, p: PValues) -> list[str]:
    """Return the cells of a claim for people."""
    claim, quantity = finding.claim, QUANTITIES[finding.claim.quantity]
    sides = values_of(finding)
    ours, compared = (
        f"{row} less {minus}" if minus else row
        for row, minus in ((claim.row, claim.row_minus), (claim.baseline, claim.baseline_minus))
    )
    if not claim.baseline:
        compared, sides = f"{claim.bound:g}", [sides[0], ()]
    elif claim.margin:
        compared += f" {claim.bound:+g}"
    return [
        f"{claim.says} ({claim.table_name}: {ours} {claim.expected} {compared})",
        quantity.heading,
        *(shown(side, quantity.pattern) for side in sides),
        difference(finding),
        "" if claim.printed is None else quantity.signed.format(claim.printed),
        "; ".join(f"{each:.3f}" for each in p if each is not None),
        verdict(finding, p),
    ]


def numbers_of(finding: Finding, p: PValues) -> list[Any]:
    """Return the numbers of a claim for programs."""
    claim, interval = finding.claim, finding.interval
    means = [sum(side) / len(side) if side else None for side in values_of(finding)]
    if not claim.baseline:
        means[1] = None
    limits: list[float | None] = [None] * 5
    if interval:
        limits = [*interval[:3], interval.half_by_sentences, interval.p_value]
    ends = [claim.expected, claim.margin, claim.printed, verdict(finding, p)]
    return [claim.name, claim.kind, claim.quantity, len(finding.values), *means, *limits, *p, *ends]
