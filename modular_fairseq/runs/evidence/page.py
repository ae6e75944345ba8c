"""Write a page about the claims, for readers: what the paper says, what was run, and what it showed.

The page is made from the claims and the records alone, so that it can be made again and compared. Figures lie
beside it, in a folder of its name. They are made from the curves and numbers of the records.
"""

import re
import textwrap
from collections.abc import Sequence
from pathlib import Path

from modular_fairseq.runs.evidence.by_paper import by_paper, said
from modular_fairseq.runs.evidence.claim_section import (
    SAYS,
    folder_of_records,
    printed,
    section,
    shown_difference,
    where,
)
from modular_fairseq.runs.evidence.claims import KINDS
from modular_fairseq.runs.evidence.figures import figures
from modular_fairseq.runs.evidence.jobs import Plan
from modular_fairseq.runs.evidence.overview import (
    Findings,
    found_in,
    hours_left,
)
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.rows import Records, corpora_of, lines_of, time_spent
from modular_fairseq.runs.evidence.verdicts import Finding
from modular_fairseq_cli.errors import UsageError, why
from modular_fairseq_cli.files import write_file
from modular_fairseq_cli.scoring.intervals import notes_on


def write(plan: Plan, records: Records, path: str) -> None:
    """Write the page and its figures.

    Raises:
        UsageError: a file cannot be written, about.md cannot be read, or matplotlib is not installed.
    """
    if not path.endswith(".md"):
        raise UsageError(f"--page {path}: give a file that ends in .md, such as docs/results.md")
    folder = Path(path).with_suffix("")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, figure in figures(plan, records).items():
            figure.draw(folder / name)
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
    parts = [*_head(plan, findings, records), "## By paper", BY_PAPER, by_paper(findings)]
    for kind in KINDS:
        mine = [finding for finding in findings.all if finding.claim.kind == kind]
        if mine:
            parts += [f"## {kind.capitalize()} claims", _wrapped(_about(plan, mine))]
            begun = [finding for finding in mine if finding.values]
            waiting = [finding for finding in mine if not finding.values]
            parts += [_summary(begun, findings)] if begun else []
            parts += [_waiting(waiting)] if waiting else []
    parts += ["## The models of each table", TABLES]
    images = figures(plan, records)
    for table in plan.tables.values():
        if lines := lines_of(plan, table, records):
            named = [name for name in images if name.partition(".")[0] == table.name]
            shown_images = [f"![{images[name].alternative}]({folder}/{name})" for name in named]
            about = f"{table.title}. Corpus here: {corpora_of(plan, table)}."
            parts += [f"### Table {table.name}", about, "\n".join(lines), *shown_images]
    begun = [finding for finding in findings.all if finding.values]
    parts += ["## Each claim", _example(plan, begun[0])] if begun else []
    parts += [section(plan, finding, findings, records) for finding in begun]
    if plan.register.changes:
        parts += ["## What was changed after it was registered", _changes(plan)]
    return "\n\n".join(parts) + "\n"


BY_PAPER = """\
A claim is done if all of its runs are. The sections below explain what is said of primary and of secondary
claims. The [glossary](glossary.md) explains terms and names of models."""
ABOUT = {
    "primary": """\
A claim *holds* or *fails* by the rule that was registered
([Claims that were tested](evidence.md#what-is-registered)). Otherwise it is *open*: these runs cannot tell.
Verdicts are corrected for the number of claims. Intervals are 95 % intervals, and are not corrected. An
interval accounts for seeds, and for BLEU also for the choice of test sentences. For other quantities it
accounts for seeds alone, so it says nothing about other test data. Of open claims it is also said whether
*the paper's difference is excluded*, which means that it is outside of the interval. This is not corrected,
either, and the paper measured its difference with other data and a larger model. A claim with a margin may
fail although its whole interval is on the claimed side of 0. Then it *has the claimed direction*.""",
    "secondary": """\
These have an interval, and no verdict. The *bound* is what the difference or value is compared with: 0,
unless the line names another. *As claimed* means that the whole interval is beyond the bound, in the
direction of the claim, and *the opposite* that it is on the other side. *Undecided* means that it
includes the bound, or that all seeds give the same value, so that there is no interval. The intervals are not
corrected for their number: about one of 20 misses the true value. Of undecided claims it is also said whether
the paper's difference is excluded. Intervals account for seeds. For BLEU they also account for the choice of
test sentences.{parts}""",
}
PARTS = {  # see by_unit.OF_PARTS
    "nats_per_token": " For nats per token of pictures they account for the choice of pictures.",
    "class_accuracy": " For the accuracy of classes they account for the choice of inputs.",
}
PERCENT = """\
A difference of perplexities is also given in percent of the baseline, as the perplexities here are far above
the papers'. It is the ratio of geometric means over seeds. These percentages decide whether the paper's
difference is excluded, and nothing else depends on them."""
ONE_SEED = "A claim with one seed has no interval yet; the section about it shows its numbers."
OF_VALIDATION_DATA = "tim-2", "tim-2-glue"  # tables
VALIDATION = """\
{tables} {are} measured on validation data, as in the paper. These data have also chosen the checkpoint."""
SO_FAR = """\
As long as other primary claims lack runs, an *open* claim may still become one that holds or fails."""
TABLES = """\
Means and standard deviations over all seeds that are done. A claim counts its registered seeds alone, so its
means may differ from these. A row with one seed has no deviation.
Core-hours are means of the runs on a CPU; runs with a GPU do not count there. The bands of figures are 95 %
intervals of the mean over seeds, whose number stands in brackets. The axis of perplexities is logarithmic.
A table with several baselines has a figure for each of them. Figures of runs that validate only a few times
show the perplexity of training batches. The validation perplexity is the one that fairseq logs while it
trains. In tables of masked language models it counts the masked symbols `<s>` and `</s>`, too. The
perplexity of masked words does not count them. Updates are those before the checkpoint that was measured,
which has the best validation loss."""
EACH = """\
[Check a verdict](evidence.md#check-a-verdict) says how to compute an interval or verdict again, what is in
a record, and how to compare a training of your own with it. The first of these commands shows the commits
that registered a claim or changed an entry of it, remarks included. The second shows the commits that added
a record. If there are several, the row was trained anew, and the last one counts. What was changed apart
from the text, such as a row, is in the [last section](#what-was-changed-after-it-was-registered).

<!-- not run: it needs the history of the repository, which an archive of the files does not have -->
```bash
git log -s --format='%h %ad %s' --date=iso -L '/name: {claim}$/,/differ/:{path}'
git log --format='%h %ad %s' --date=iso --diff-filter=A -- {folder}/{run}.json
```"""
HEAD = """\
# Results at scale {scale}

<!-- Made by `modular-fairseq evidence {path} --page FILE`. Do not edit. -->

After this page you know what the registered runs say about the claims of `{path}`."""
SIZE = """\
The models and corpora are small (`--scale {scale}`{parameters}): [Claims that were tested](evidence.md) says
what such runs can see."""


def _head(plan: Plan, findings: Findings, records: Records) -> list[str]:
    """Return the title, what is done, and what the file about.md beside the claims says."""
    primary = [job for job in plan.jobs if job.primary]
    claims = [finding for finding in findings.all if finding.claim.kind == "primary"]
    expected = hours_left(plan.jobs, records)
    time = f", which take about {expected:,.0f} core-hours on a CPU," if expected else ""
    left = f"The other runs{time} are still to be made, and intervals of claims without all runs are interim."
    diverged = [f"`{name}`" for name, record in records.items() if record["diverged"]]
    made, complete = sum(job.run.name in records for job in primary), sum(not each.waits for each in claims)
    of_primary = (
        f"{made} of {len(primary)} runs for primary claims are done, and {complete} of {len(claims)} primary "
        "claims have all of theirs."
    )
    told = f"These runs diverged, and means and figures leave them out: {', '.join(diverged)}."
    done = [
        f"{len(records)} of {len(plan.jobs)} runs are done, in {time_spent(records.values())}.",
        of_primary if claims else "",
        "" if len(records) == len(plan.jobs) else left,
        told if diverged else "",
    ]
    about = Path(plan.register.path).with_name("about.md")
    return [
        HEAD.format(path=plan.register.path, scale=plan.register.scale),
        _wrapped(*done),
        _wrapped(SIZE.format(scale=plan.register.scale, parameters=_parameters(records))),
        *([_text(about)] if about.exists() else []),
    ]


def _text(about: Path) -> str:
    """Return what a file about the runs says.

    Raises:
        UsageError: it cannot be read.
    """
    try:
        return about.read_text(encoding="utf-8").strip()
    except (OSError, ValueError) as error:
        raise UsageError(f"{about}: cannot be read ({why(error)}); write it in UTF-8, or remove it") from None


def _wrapped(*sentences: str) -> str:
    """Return a paragraph with lines of up to 120 characters."""
    text = " ".join(" ".join(filter(None, sentences)).split())
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def _parameters(records: Records) -> str:
    """Return how many parameters the models have, in words."""
    numbers = [record["training"]["parameters"] for record in records.values() if not record["diverged"]]
    if not numbers:
        return ""
    least, most = min(numbers), max(numbers)
    return f", {least:,} parameters" if least == most else f", {least:,} to {most:,} parameters"


def _about(plan: Plan, found: Sequence[Finding]) -> str:
    """Return what readers have to know of claims of one kind."""
    kind = found[0].claim.kind
    marked = notes_on(finding.interval for finding in found)
    if kind == "primary":
        so_far = [SO_FAR] if any(finding.waits for finding in found) else []
        return " ".join([ABOUT[kind], *marked, *so_far])
    quantities = {finding.claim.quantity for finding in found}
    parts = "".join(text for quantity, text in PARTS.items() if quantity in quantities)
    percent = [PERCENT] if any(QUANTITIES[each].in_percent for each in quantities) else []
    one_seed = [ONE_SEED] if any(len(finding.values) == 1 for finding in found) else []
    tables = [f"Table `{table}`" for table in OF_VALIDATION_DATA if table in plan.tables]
    are = "is" if len(tables) == 1 else "are"
    validation = [VALIDATION.format(tables=" and ".join(tables), are=are)] if tables else []
    return " ".join([ABOUT[kind].format(parts=parts), *marked, *percent, *one_seed, *validation])


def _summary(found: Sequence[Finding], findings: Findings) -> str:
    """Return a table of claims that have runs, a line for each."""
    last = SAYS[found[0].claim.kind].lower()
    heads = ["claim", "quantity", "difference in the paper", "difference or value here [95 %]", last]
    lines = [f"| {' | '.join(heads)} |", "| --- | --- | ---: | ---: | --- |"]
    for finding in found:
        claim = finding.claim
        told = f"[{claim.says}](#{claim.name}){_in_brackets(claim.authors)}"
        bound = f"; bound {claim.bound:g}" if claim.bound else ""
        cells = told, where(claim) + bound, printed(claim), shown_difference(finding)
        lines.append(f"| {' | '.join(cells)} | {said(finding, findings)} |")
    return "\n".join(lines)


def _in_brackets(text: str) -> str:
    return f" ({text})" if text else ""


def _waiting(found: Sequence[Finding]) -> str:
    """Return a table of claims that have no run of both rows yet."""
    heads, align = ["claim", "quantity", "difference in the paper"], ["---", "---", "---:"]
    claims = [each.claim for each in found]
    cells = [[each.says + _in_brackets(each.authors), where(each), printed(each)] for each in claims]
    if any(each.claim.remark for each in found):
        heads, align = [*heads, "remark"], [*align, "---"]
        cells = [[*row, each.claim.remark] for row, each in zip(cells, found, strict=True)]
    lines = ["These claims have no runs of both rows with the same seed yet:", ""]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in (heads, align, *cells))])


def _example(plan: Plan, finding: Finding) -> str:
    """Return how the order of a claim and its runs is seen, for one claim."""
    name = finding.claim.name
    run = next(job.run.name for job in plan.jobs if name in job.claims and job.seed in finding.values)
    return EACH.format(path=plan.register.path, folder=folder_of_records(plan), claim=name, run=run)


def _changes(plan: Plan) -> str:
    """Return the changes of the register as a list with numbers."""
    lines = []
    for number, change in enumerate(plan.register.changes, 1):
        rows = (
            f" Results of earlier commits do not count for: {', '.join(change.rows)}." if change.rows else ""
        )
        lines.append(f"{number}. {change.date}: {_beginning(change.reason, plan.register.path)}{rows}")
    return "\n".join(lines)


def _beginning(reason: str, path: str) -> str:
    """Return the first two sentences of a reason, and where to read on if there are more."""
    sentences = re.split(r"(?<=[a-z0-9)])\. (?=[A-Z])", reason)
    if len(sentences) <= 2:
        return reason
    return f"{'. '.join(sentences[:2])}. The rest of this entry is in `{path}`, under `changes`."
