"""Tell what was found of one claim, for readers: what the paper says, what was run, and where it lies."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from modular_fairseq.runs.evidence.by_paper import said
from modular_fairseq.runs.evidence.claims import Claim
from modular_fairseq.runs.evidence.jobs import Job, Plan, row_of, table_of
from modular_fairseq.runs.evidence.overview import Findings, PValues, difference, mean_difference, values_of
from modular_fairseq.runs.evidence.papers_difference import percent, printed_percent
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.records import is_of_cpu, logs_of
from modular_fairseq.runs.evidence.rows import Records, time_spent
from modular_fairseq.runs.evidence.verdicts import Finding
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.scoring.spread import shown

CLAIMS = "results/claims.yaml"  # what scripts/evidence.sh takes without --claims
SAYS = {"primary": "Verdict", "secondary": "The interval says"}


def section(plan: Plan, finding: Finding, findings: Findings, records: Records) -> str:
    """Return the section about a claim that has at least one seed."""
    claim = finding.claim
    jobs = [job for job in plan.jobs if claim.name in job.claims and job.seed in finding.values]
    starts = [job.run.start.name for job in jobs if isinstance(job.run.start, Run)]
    names = [name for name in dict.fromkeys([*starts, *(job.run.name for job in jobs)]) if name in records]
    spent = time_spent(records[name] for name in names)
    ours, theirs = (
        f"`{row}`" + (f" less `{minus}`" if minus else "")
        for row, minus in ((claim.row, claim.row_minus), (claim.baseline, claim.baseline_minus))
    )
    margin = f", by more than {claim.margin:g}" if claim.margin > 0 else ""
    margin = f", or at most {-claim.margin:g} on the other side" if claim.margin < 0 else margin
    compared = f"{claim.expected} {theirs}{margin}" if claim.baseline else f"{claim.expected} {claim.bound:g}"
    made = [records[name] for name in names]
    registered = f"registered on {claim.registered}{_changed(plan, claim)}"
    lines = [
        f"**{claim.says}.** {claim.kind.capitalize()}, {registered}.",
        f"- Paper: {claim.paper}",
        f"- Tested: {QUANTITIES[claim.quantity].heading}: {ours} {compared}, with the seeds "
        f"{', '.join(map(str, claim.seeds))} (`configs/{claim.table_name}/table.yaml`)",
        f"- Found: {_found(finding)}",
        f"- {SAYS[claim.kind]}: {said(finding, findings)}" + _p_values(findings.p_values(finding)),
        *([f"- Remark: {claim.remark}"] if claim.remark else []),
        f"- Runs: {_records(plan, names)}; {spent}; {_commits(made)}",
        _logs(plan, names),
        f"- Commands: `{_training(plan, claim)}` trains and measures these rows with the present code. "
        f"`bash scripts/evidence.sh TEXT {_options(plan, jobs)}` makes the runs of the table that have no "
        f"record.{_devices(jobs, records)} Each record has the `commands` of its run.",
    ]
    return f"### {claim.name}\n\n{lines[0]}\n\n" + "\n".join(lines[1:])


def where(claim: Claim) -> str:
    """Return the quantity and the table of a claim."""
    return f"{QUANTITIES[claim.quantity].heading}, {claim.table_name}"


def printed(claim: Claim) -> str:
    """Return the difference that the paper prints, or "" if it prints none."""
    if claim.printed is None:
        return ""
    text, relative = QUANTITIES[claim.quantity].signed.format(claim.printed), printed_percent(claim)
    return text if relative is None else f"{text} ({relative:+.1f} %)"


def shown_difference(finding: Finding) -> str:
    """Return the difference with its interval, and in percent if it is one of perplexities."""
    if (relative := percent(finding)) is None:
        return difference(finding)
    middle, low, high = (f"{each:+.1f}" for each in relative)
    return f"{difference(finding)} ({middle} % [{low}, {high}])"


def _found(finding: Finding) -> str:
    claim, pattern = finding.claim, QUANTITIES[finding.claim.quantity].pattern
    ours, theirs = values_of(finding)
    text = f"{shown(ours, pattern)}"
    if claim.baseline:
        one = " of one seed" if len(finding.values) == 1 else ""
        alone = f"{mean_difference(finding)}{one}, without an interval"
        text += f" against {shown(theirs, pattern)}; difference {shown_difference(finding) or alone}"
    elif finding.interval:
        text += f", interval {finding.interval.limits(QUANTITIES[claim.quantity].signed)}"
    if claim.printed is not None:
        text += f"; in the paper {printed(claim)}"
    return text


def _p_values(p: PValues) -> str:
    if p[0] is None or p[1] is None:
        return ""
    return f" (p = {p[0]:.3f} for it and {p[1]:.3f} against it, by Holm's method)"


def _records(plan: Plan, names: Iterable[str]) -> str:
    """Return the paths of records, with commas between them.

    If a row has records of several seeds, one pattern of the shell names all of them, such as
    results/evidence/multi30k/base/seed-{1,2}.json.
    """
    seeds: dict[str, list[str]] = {}
    for name in names:
        row, _, seed = name.rpartition("/seed-")
        seeds.setdefault(row, []).append(seed)
    shown_seeds = {
        row: found[0] if len(found) == 1 else f"{{{','.join(found)}}}" for row, found in seeds.items()
    }
    folder = folder_of_records(plan)
    return ", ".join(f"`{folder}/{row}/seed-{found}.json`" for row, found in shown_seeds.items())


def folder_of_records(plan: Plan) -> Path:
    """Return the folder of the records."""
    return Path(plan.register.path).parent / "evidence"


def _logs(plan: Plan, names: Sequence[str]) -> str:
    """Return a line with the logs that were kept, and whether some were not."""
    logs = [logs_of(folder_of_records(plan), name) for name in names]
    kept = [f"`{path}`" for each in logs for path in each]
    if not kept:
        return "- Logs: none were kept"
    others = "" if all(logs) else "; of the other runs none were kept"
    return f"- Logs: {', '.join(kept)}{others}"


def _commits(made: Sequence[dict[str, Any]]) -> str:
    """Return which commits made some records, and when."""
    made = sorted(made, key=lambda record: record["made"]["date"])
    first, last = (record["made"]["date"] for record in (made[0], made[-1]))
    commits = [f"`{commit[:7]}`" for commit in dict.fromkeys(record["commit"] for record in made)]
    when = f"on {first}" if first == last else f"from {first} to {last}"
    return f"finished {when}, made by commit{'s' * (len(commits) > 1)} {', '.join(commits)}"


def _changed(plan: Plan, claim: Claim) -> str:
    """Return when the text of a claim, or a row that was trained for it, was changed after registration."""
    runs = [job.run for job in plan.jobs if claim.name in job.claims]
    rows = {row_of(each) for run in runs for each in run.with_starts()}
    entries: dict[str, list[str]] = {}
    for number, change in enumerate(plan.register.changes, 1):
        if claim.name in change.claims or not rows.isdisjoint(change.rows):
            entries.setdefault(change.date, []).append(str(number))
    if not entries:
        return ""
    what = "; it or its rows were [changed](#what-was-changed-after-it-was-registered) on "
    return what + " and ".join(
        f"{date} ({'entry' if len(numbers) == 1 else 'entries'} {', '.join(numbers)})"
        for date, numbers in entries.items()
    )


def _devices(jobs: Sequence[Job], records: Records) -> str:
    """Return a sentence about the seeds that were made on a GPU, or "" if none was."""
    of_gpu = sorted({job.seed for job in jobs if not is_of_cpu(records[job.run.name])})
    of_cpu = sorted({job.seed for job in jobs if is_of_cpu(records[job.run.name])})
    if not of_gpu:
        return ""
    several = f"Seeds {', '.join(map(str, of_gpu))} were" if len(of_gpu) > 1 else f"Seed {of_gpu[0]} was"
    which = several if of_cpu else "They were"
    on = "made on a GPU, by `scripts/evidence.sh` with `--device cuda`"
    return f" {which} {on}. A pair must be made on one device."


def _training(plan: Plan, claim: Claim) -> str:
    """Return the command that trains and measures the rows of a claim, without records."""
    rows = " ".join(f"--only {row}" for row in claim.rows)
    seeds = ",".join(map(str, claim.seeds))
    return f"modular-fairseq table {claim.table} --scale {plan.register.scale} {rows} --seeds {seeds} --run"


def _options(plan: Plan, jobs: Sequence[Job]) -> str:
    """Return the options of scripts/evidence.sh for the tables of some jobs."""
    path = plan.register.path
    claims = [] if path == CLAIMS else [f"--claims {path}"]
    tables = dict.fromkeys(table_of(job.run) for job in jobs)
    return " ".join([*claims, *(f"--only {table}" for table in tables)])
