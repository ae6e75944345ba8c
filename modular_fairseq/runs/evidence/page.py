"""Write a page about the claims, for readers: what the paper says, what was run, and what it showed.

The page is made from the claims and the records alone, so that it can be made again and compared. Figures lie
beside it, in a folder of its name. They are made from the curves and numbers of the records.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from modular_fairseq.runs.evidence.claims import KINDS, Claim
from modular_fairseq.runs.evidence.jobs import Job, Plan, row_of, table_of
from modular_fairseq.runs.evidence.overview import Findings, PValues, difference, found_in, values_of
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.verdicts import Finding
from modular_fairseq.runs.papers.table import COLUMNS, Row, Table
from modular_fairseq.runs.run import Run
from modular_fairseq_cli.curves import Point, average, draw, save
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.scoring.spread import shown

Records = dict[str, dict[str, Any]]
DIVERGENCES = ("LR_divergence_encoder", "HR_divergence_encoder")
# The curves that are drawn for each table: the key in the records, and what the alternative text says.
CURVES = {"ppl": "Validation perplexity", "gate_entropy": "Entropy of the gates"}


def write(plan: Plan, records: Records, path: str) -> None:
    """Write the page and its figures.

    Raises:
        UsageError: a file cannot be written, or matplotlib is not installed.
    """
    if not path.endswith(".md"):
        raise UsageError(f"--page {path}: give a file that ends in .md, such as docs/results.md")
    folder = Path(path).with_suffix("")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures(plan, records).items():
            figure(folder / name)
        write_file(path, page(plan, records, folder.name))
    except OSError as error:
        raise UsageError(f"--page {path}: cannot be written ({error.strerror}); give another path") from None


def page(plan: Plan, records: Records, folder: str) -> str:
    """Return the page, in Markdown.

    Args:
        plan: the runs of the claims.
        records: the records that exist.
        folder: the folder of the figures, beside the page.
    """
    findings = found_in(plan, records)
    parts = [_head(plan, findings, records), "## By paper", BY_PAPER, by_paper(findings)]
    for kind in KINDS:
        mine = [finding for finding in findings.all if finding.claim.kind == kind]
        if mine:
            parts += [f"## {kind.capitalize()} claims", ABOUT[kind], _summary(mine, findings)]
    parts += ["## The models of each table", TABLES]
    images = figures(plan, records)
    for table in plan.tables.values():
        if lines := _rows(plan, table, records):
            named = [name for name in images if name.partition(".")[0] == table.name]
            shown_images = [f"![{_alternative(name)}]({folder}/{name})" for name in named]
            about = f"{table.title}. Corpus here: {_corpora(plan, table)}."
            parts += [f"### Table {table.name}", about, "\n".join(lines), *shown_images]
    parts += ["## Each claim", EACH.format(path=plan.register.path)]
    parts += [_about(plan, finding, findings, records) for finding in findings.all if finding.values]
    if plan.register.changes:
        parts += ["## What was changed after it was registered", _changes(plan)]
    return "\n\n".join(parts) + "\n"


BY_PAPER = """\
A claim is done if all of its runs are. The sections below explain what is said of primary and of secondary
claims."""
ABOUT = {
    "primary": """\
A claim *holds* or *fails* by the rule that was registered
([Claims that were tested](evidence.md#what-is-registered)). Otherwise it is *open*: these runs cannot tell.
The interval has 95 % and is not corrected for the number of claims; the verdict is.""",
    "secondary": """\
These have an interval, and no verdict. *As claimed* means that the whole interval is beyond the bound, in
the direction of the claim, and *the opposite* that it is on the other side. Of 20 such intervals one misses
its value by chance.""",
}
SAYS = {"primary": "Verdict", "secondary": "The interval says"}
TABLES = """\
Means and standard deviations over seeds, of the runs that are done. A row with one seed has no deviation.
The bands of figures are 95 % intervals of the mean over seeds, whose number stands in brackets. The axis of
perplexities is logarithmic."""
EACH = """\
A record is a JSON file with the scores, the learning curves, the commands, the settings, and digests of the
corpus and the weights. `git log --reverse -S'name: NAME' -- {path}` shows when a claim was registered."""
HEAD = """\
# Results

<!-- Made by `modular-fairseq evidence {path} --page FILE`. Do not edit. -->

After this page you know what the registered runs say about the claims of the papers. {done} of {all} runs are
done ({primary_done} of {primary} for primary claims), in {hours:,.1f} core-hours. {complete} of {claims}
primary claims have all of their runs.
{left}{diverged}

The models and corpora are small (`--scale {scale}`): [Claims that were tested](evidence.md) says what such
runs can see. What was measured before the claims is in [Early measurements](early-results.md). Claims about
speech are [on its page](speech.md#what-was-measured). [Looking inside](looking-inside.md) has pages to click
through, of models of a synthetic corpus."""


def _head(plan: Plan, findings: Findings, records: Records) -> str:
    """Return the title, and what is done."""
    primary = [job for job in plan.jobs if job.primary]
    claims = [finding for finding in findings.all if finding.claim.kind == "primary"]
    left = "The other runs are still to be made, and intervals of claims without all runs are interim."
    diverged = [f"`{name}`" for name, record in records.items() if record["diverged"]]
    told = f"\nThese runs diverged, and means and figures leave them out: {', '.join(diverged)}."
    return HEAD.format(
        path=plan.register.path,
        done=len(records),
        all=len(plan.jobs),
        primary_done=sum(job.run.name in records for job in primary),
        primary=len(primary),
        hours=_hours(records.values()),
        complete=sum(not finding.missing for finding in claims),
        claims=len(claims),
        left="" if len(records) == len(plan.jobs) else left,
        diverged=told if diverged else "",
        scale=plan.register.scale,
    )


def _hours(records: Iterable[dict[str, Any]]) -> float:
    """Return the core-hours of runs."""
    return sum(record["core_minutes"] for record in records) / 60


def _summary(found: Sequence[Finding], findings: Findings) -> str:
    """Return a table of claims, a line for each."""
    last = SAYS[found[0].claim.kind].lower()
    lines = [f"| claim | quantity | paper | here [95 %] | {last} |", "| --- | --- | ---: | ---: | --- |"]
    for finding in found:
        claim = finding.claim
        name = f"[{claim.says}](#{claim.name})" if finding.values else claim.says
        where = f"{QUANTITIES[claim.quantity].heading}, {claim.table_name}"
        lines.append(
            f"| {name} | {where} | {_printed(claim)} | {difference(finding)} | {said(finding, findings)} |"
        )
    return "\n".join(lines)


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
        kinds[finding.claim.kind].append("missing" if finding.missing else said(finding, findings))
    heads = ["paper", *(f"{kind} claims" for kind in KINDS)]
    lines = [f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|"]
    for paper, kinds in found.items():
        cells = [_counted(words) for words in kinds.values()]
        lines.append(f"| {paper} | {' | '.join(cells)} |")
    return "\n".join(lines)


COUNTED = {  # what is found of a claim, and how it is said of one and of several
    "holds": ("holds", "hold"),
    "fails": ("fails", "fail"),
    "open": ("is open", "are open"),
    "as claimed": ("is as claimed", "are as claimed"),
    "the opposite": ("is the opposite", "are the opposite"),
    "cannot be told": ("cannot be told", "cannot be told"),
}


def _counted(found: Sequence[str]) -> str:
    """Return how many claims have which finding, such as "3 of 4 are done: 2 hold, 1 is open".

    Args:
        found: keys of `COUNTED`, and "missing" for claims that lack runs.
    """
    numbers = Counter(found)
    missing = numbers.pop("missing", 0)
    parts = [f"{numbers[word]} {COUNTED[word][numbers[word] > 1]}" for word in sorted(numbers, key=ORDER)]
    if missing:
        parts.insert(0, f"{len(found) - missing} of {len(found)} done")
    return ": ".join([parts[0], ", ".join(parts[1:])]) if missing and len(parts) > 1 else ", ".join(parts)


ORDER = list(COUNTED).index


def _printed(claim: Claim) -> str:
    """Return the difference that the paper prints, or "" if it prints none."""
    return "" if claim.printed is None else QUANTITIES[claim.quantity].signed.format(claim.printed)


def said(finding: Finding, findings: Findings) -> str:
    """Return the verdict on a primary claim, or where the interval of a secondary one lies."""
    if finding.missing or finding.claim.kind == "primary" or finding.interval is None:
        return findings.verdict(finding)
    low, high = finding.interval.low - finding.claim.bound, finding.interval.high - finding.claim.bound
    if low <= 0 <= high:
        return "cannot be told"
    return "as claimed" if (low > 0) == (finding.claim.expected == "above") else "the opposite"


def _about(plan: Plan, finding: Finding, findings: Findings, records: Records) -> str:
    """Return the section about a claim that has at least one seed."""
    claim = finding.claim
    jobs = [job for job in plan.jobs if claim.name in job.claims and job.seed in finding.values]
    starts = [job.run.start.name for job in jobs if isinstance(job.run.start, Run)]
    names = [name for name in dict.fromkeys([*starts, *(job.run.name for job in jobs)]) if name in records]
    hours = _hours(records[name] for name in names)
    ours, theirs = (
        f"`{row}`" + (f" less `{minus}`" if minus else "")
        for row, minus in ((claim.row, claim.row_minus), (claim.baseline, claim.baseline_minus))
    )
    margin = f", by more than {claim.margin:g}" if claim.margin > 0 else ""
    margin = f", or at most {-claim.margin:g} on the other side" if claim.margin < 0 else margin
    compared = f"{claim.expected} {theirs}{margin}" if claim.baseline else f"{claim.expected} {claim.bound:g}"
    lines = [
        f"**{claim.says}.** {claim.kind.capitalize()}, registered on {claim.registered}.",
        f"- Paper: {claim.paper}",
        f"- Tested: {QUANTITIES[claim.quantity].heading}: {ours} {compared}, with the seeds "
        f"{', '.join(map(str, claim.seeds))} (`configs/{claim.table_name}/table.yaml`)",
        f"- Found: {_found(finding)}",
        f"- {SAYS[claim.kind]}: {said(finding, findings)}" + _p_values(findings.p_values(finding)),
        f"- Runs: {_records(plan, names)}; {hours:,.1f} core-hours",
        f"- Commands: `bash scripts/evidence.sh TEXT {_only(jobs)}` makes the runs again if their records "
        "are removed, and each record has the `commands` of its run",
    ]
    return f"### {claim.name}\n\n{lines[0]}\n\n" + "\n".join(lines[1:])


def _found(finding: Finding) -> str:
    claim, pattern = finding.claim, QUANTITIES[finding.claim.quantity].pattern
    ours, theirs = values_of(finding)
    text = f"{shown(ours, pattern)}"
    if claim.baseline:
        text += f" against {shown(theirs, pattern)}; difference {difference(finding) or 'of one seed'}"
    elif finding.interval:
        text += f", interval {difference(finding).partition(' ')[2]}"
    if claim.printed is not None:
        text += f"; in the paper {_printed(claim)}"
    return text


def _p_values(p: PValues) -> str:
    if p[0] is None or p[1] is None:
        return ""
    return f" (p = {p[0]:.3f} for it and {p[1]:.3f} against it, by Holm's method)"


def _records(plan: Plan, names: Iterable[str]) -> str:
    """Return the paths of records; those of one row are one pattern, such as a/base/seed-{1,2}.json."""
    seeds: dict[str, list[str]] = {}
    for name in names:
        row, _, seed = name.rpartition("/seed-")
        seeds.setdefault(row, []).append(seed)
    shown_seeds = {
        row: found[0] if len(found) == 1 else f"{{{','.join(found)}}}" for row, found in seeds.items()
    }
    folder = Path(plan.register.path).parent / "evidence"
    return ", ".join(f"`{folder}/{row}/seed-{found}.json`" for row, found in shown_seeds.items())


def _only(jobs: Sequence[Job]) -> str:
    """Return the options of scripts/evidence.sh for the tables of some jobs."""
    return " ".join(f"--only {table}" for table in dict.fromkeys(table_of(job.run) for job in jobs))


def _rows(plan: Plan, table: Table, records: Records) -> list[str]:
    """Return the lines of a table of all rows that have a record, with means over seeds."""
    heads = ["", *(COLUMNS[name].heading for name in table.columns), "seeds", "core-hours each"]
    lines = []
    for row in table.rows:
        found = _of_row(plan, table, row, records)
        if not found:
            continue
        cells = [_label(row)]
        for column in table.columns:
            values = [value for record in found if (value := _value(record, table, row, column)) is not None]
            cells.append(shown(values, COLUMNS[column].pattern))
        hours = _hours(found) / len(found)
        lines.append([*cells, str(len(found)), f"{hours:.1f}"])
    if not lines:
        return []
    kept = [number for number in range(len(heads)) if any(line[number] for line in lines)]
    table_lines = [heads, ["---", *["---:"] * (len(heads) - 1)], *lines]
    return [f"| {' | '.join(line[number] for number in kept)} |" for line in table_lines]


def _label(row: Row) -> str:
    """Return the label of a row, with the share of the training data that it is trained on."""
    return row.label if row.percent == 100 else f"{row.label}, {row.percent} % of the data"


def _corpora(plan: Plan, table: Table) -> str:
    """Return the names of the corpora of a table's runs."""
    mine = [job for job in plan.jobs if any(row.startswith(f"{table.name}/") for row in job.measurements)]
    return ", ".join(dict.fromkeys(f"`{Path(job.run.corpus.folder).name}`" for job in mine))


def _of_row(plan: Plan, table: Table, row: Row, records: Records) -> list[dict[str, Any]]:
    """Return the records that have measurements of a row, seed by seed."""
    found = {
        job.seed: records[job.run.name]
        for job in plan.jobs
        if job.run.name in records and f"{table.name}/{row.name}" in records[job.run.name]["rows"]
    }
    return [found[seed] for seed in sorted(found)]


def _value(record: dict[str, Any], table: Table, row: Row, column: str) -> float | None:
    return QUANTITIES[column].of(record, f"{table.name}/{row.name}")


def figures(plan: Plan, records: Records) -> dict[str, Callable[[Path], None]]:
    """Return functions that draw the figures, by the names of their files: TABLE.KIND.svg."""
    found: dict[str, Callable[[Path], None]] = {}
    for table in plan.tables.values():
        for key in CURVES:
            if systems := _curves(plan, table, records, key):
                title = f"validation, table {table.name}"
                found[f"{table.name}.{key}.svg"] = partial(draw, systems, key, title)
        points = _redundancy(plan, table, records)
        if len(points) > 1:
            found[f"{table.name}.redundancy.svg"] = partial(_draw_redundancy, points)
    return found


def _curves(plan: Plan, table: Table, records: Records, key: str) -> dict[str, list[Point]]:
    """Return the curve of each row that has one in all of its records, averaged over seeds."""
    systems = {}
    for row in table.rows:
        names = [job.run.name for job in plan.jobs if row_of(job.run) == f"{table.name}/{row.name}"]
        made = [records[name] for name in names if name in records and not records[name]["diverged"]]
        curves = [record["curves"].get("valid", {}).get(key) for record in made]
        if curves and all(curves) and (points := average([dict(curve) for curve in curves if curve])):
            systems[_label(row)] = points
    return systems


def _alternative(name: str) -> str:
    table, kind, _ = name.split(".")
    return f"{CURVES.get(kind, 'Redundancy of heads and BLEU')} of table {table}"


def _redundancy(plan: Plan, table: Table, records: Records) -> dict[str, list[list[float]]]:
    """Return for each row the redundancies and the BLEU of its seeds, if they are columns of the table."""
    columns = [*DIVERGENCES, "bleu"]
    points: dict[str, list[list[float]]] = {}
    for row in table.rows if set(columns) <= set(table.columns) else []:
        for record in _of_row(plan, table, row, records):
            values = [_value(record, table, row, column) for column in columns]
            found = [value for value in values if value is not None]
            if len(found) == len(columns):
                points.setdefault(_label(row), []).append(found)
    return points


def _draw_redundancy(points: dict[str, list[list[float]]], path: Path) -> None:
    """Draw BLEU over each redundancy, a point for each run."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.5, 3.6), layout="constrained")
    axes = figure.subplots(1, len(DIVERGENCES), sharey=True)
    for number, (ax, column) in enumerate(zip(axes, DIVERGENCES, strict=True)):
        for label, values in points.items():
            ax.scatter([each[number] for each in values], [each[-1] for each in values], s=14, label=label)
        ax.set(xlabel=COLUMNS[column].heading)
        ax.grid(alpha=0.3)
    axes[0].set(ylabel=COLUMNS["bleu"].heading)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper", fontsize=7)
    save(figure, path)


def _changes(plan: Plan) -> str:
    """Return the changes of the register as a list."""
    lines = []
    for change in plan.register.changes:
        rows = (
            f" Results of earlier commits do not count for: {', '.join(change.rows)}." if change.rows else ""
        )
        lines.append(f"- {change.date}: {change.reason}{rows}")
    return "\n".join(lines)
