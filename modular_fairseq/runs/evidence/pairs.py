"""Compare two rows by their records in every quantity, also where no claim is registered."""

from collections.abc import Sequence

from modular_fairseq.runs.evidence.claims import Claim
from modular_fairseq.runs.evidence.jobs import Plan
from modular_fairseq.runs.evidence.overview import ACCOUNTS, by_row, difference, mean_difference, values_of
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.records import of_one_device
from modular_fairseq.runs.evidence.rows import Records
from modular_fairseq.runs.evidence.verdicts import find
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.scoring.intervals import notes_on
from modular_fairseq_cli.scoring.spread import shown

NOTES = [
    "The rows have means ± standard deviations over seeds. The difference is between pairs of the same seed "
    f"and kind of device. {ACCOUNTS} There is no interval if only one seed is there, or if all pairs "
    "differ by as much.",
    "A line without a claim was not registered for these seeds. It suggests something and proves nothing. "
    "The intervals are not corrected for the number of lines that one may look at.",
]


def unregistered(table: str, row: str, baseline: str, quantity: str, seeds: Sequence[int]) -> Claim:
    """Return a claim that compares two rows of a table, but was not registered."""
    return Claim("", "", "secondary", "", "", table, quantity, row, "above", tuple(seeds), baseline)


def pair(plan: Plan, records: Records, table: str, row: str, baseline: str) -> Sheet:
    """Return a table of how two rows differ, with a line for each quantity that both have.

    Args:
        plan: the runs of the claims.
        records: the records that exist.
        table: the name of the table of both rows.
        row, baseline: the rows. The difference is the first less the second.

    Raises:
        UsageError: the two are one row, a row has no record, or no seed of both rows can be compared.
    """
    asked = f"--compare {table} {row} {baseline}"
    if row == baseline:
        raise UsageError(f"{asked}: a row does not differ from itself; give two rows")
    rows = by_row(plan, records)
    names = f"{table}/{row}", f"{table}/{baseline}"
    for name in names:
        if name not in (known := sorted({each for each, _ in rows})):
            raise UsageError(f"{asked}: no record is of {name}; give two rows of these: {', '.join(known)}")
    pairs = {seed: [rows.get((name, seed)) for name in names] for _, seed in sorted(rows)}
    whole = {seed: [each for each in found if each] for seed, found in pairs.items() if all(found)}
    diverged = [seed for seed, found in whole.items() if any(each["diverged"] for each in found)]
    seeds = tuple(seed for seed, found in whole.items() if seed not in diverged and of_one_device(found))
    if not seeds:
        raise UsageError(
            f"{asked}: no seed has a whole training of both on one kind of device, so they are not comparable"
        )
    lines, found = [], []
    for name, quantity in QUANTITIES.items():
        compared = unregistered(table, row, baseline, name, seeds)
        finding = find(compared, rows)
        found.append(finding)
        if finding.values:
            ours, theirs = values_of(finding)
            differs = difference(finding) or mean_difference(finding)
            about = [
                claim.name
                for claim in plan.register.claims
                if claim.is_about(table, name, compared.weights, finding.values)
            ]
            done = ", ".join(map(str, finding.values))
            sides = [shown(side, quantity.pattern) for side in (ours, theirs)]
            lines.append(Line([quantity.heading, *sides, differs, done, ", ".join(about)]))
    heads = ["", row, baseline, "difference [95 %]", "seeds", "claim"]
    lost = [f"Seed {seed} is left out, because a training diverged." for seed in diverged]
    notes = [*NOTES, *notes_on(finding.interval for finding in found), *lost]
    return Sheet(f"{row} less {baseline} in table {table}", heads, lines, [], notes)
