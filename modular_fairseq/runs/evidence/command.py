"""Test claims of the papers by runs that were registered before they were made.

    modular-fairseq evidence results/claims.yaml                    # shows what the records say
    modular-fairseq evidence results/claims.yaml --status           # counts runs, and estimates the time left
    modular-fairseq evidence results/claims.yaml --prepare TEXT     # prepares the corpora in --data
    modular-fairseq evidence results/claims.yaml --run --commit HASH    # makes the runs that are missing

CLAIMS is the file that registers the claims: the rows of tables that are compared, the quantity, the seeds
and the rule for the verdict. The runs have a fixed order. Runs of primary claims come first, and all rows are
made with one seed before the next seed. Each run that is finished writes a small JSON file, its record, into
the folder evidence/ beside CLAIMS. A run that has a record is not made again. A run that was killed continues
from its last checkpoint in OUT, if that is still there.

Without --run, the command writes table.txt, .md and .tsv into the same folder. The interval of a
difference in BLEU accounts for seeds and sentences, and other intervals for seeds. The p-values of primary
claims are one-sided, as claims have a direction, and are corrected by Holm's method.

scripts/evidence.sh makes the runs in a frozen clone at the commit that CLAIMS names, so that work on the
project can go on.
"""

import argparse
import json
import os
import resource
import shlex
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
import yaml

from modular_fairseq.runs.corpora import call_command
from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evidence.claims import KINDS, Register, read_claims
from modular_fairseq.runs.evidence.jobs import Job, Plan
from modular_fairseq.runs.evidence.quantities import QUANTITIES
from modular_fairseq.runs.evidence.records import record_of, write_record
from modular_fairseq.runs.evidence.verdicts import Finding, find, holm, verdict
from modular_fairseq.runs.run import PLUGIN, Run
from modular_fairseq.runs.sheet import Line, Sheet
from modular_fairseq_cli import lifetime
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import read_json, write_file
from modular_fairseq_cli.processes import processors, say
from modular_fairseq_cli.scoring.spread import shown

MEMORY = 4 * 2**30  # bytes of a GPU for a run of the size of --scale cpu; assumed, not measured
TIME = "core-seconds.json"  # in the folder of a run: the time of processors that it has taken so far


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "modular-fairseq evidence CLAIMS [--data DIR] [--out DIR] [--prepare TEXT | --run --commit HASH | "
        "--status] [options]"
    )
    parser.add_argument("claims", metavar="CLAIMS", help="file that registers the claims")
    parser.add_argument(
        "--data", default="data", metavar="DIR", help="folder of the prepared corpora (default: data)"
    )
    parser.add_argument(
        "--out", default="evidence", metavar="DIR", help="folder for the files of runs (default: evidence)"
    )
    parser.add_argument(
        "--commit", metavar="HASH", help="commit of this checkout, which records name; needed by --run"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs at a time (default: 1; with --device cuda as many as fit into its memory)",
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), help="where the runs are made (default: cpu)")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--run", action="store_true", help="make the runs that are missing")
    what.add_argument("--status", action="store_true", help="count the runs, and estimate the time left")
    what.add_argument(
        "--prepare",
        metavar="TEXT",
        help="prepare the corpora from the raw text in folders of TEXT, and compare them with the registered "
        "digests, or print digests to register",
    )
    what.add_argument("--one", metavar="RUN", help=argparse.SUPPRESS)  # a process of --run


def run(args: argparse.Namespace) -> None:
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: the number must be at least 1")
    needs_run = {"--jobs": args.jobs, "--device": args.device, "--commit": args.commit}
    for option, value in needs_run.items():
        if value is not None and not (args.run or args.one or (args.status and option == "--jobs")):
            others = " and --status" if option == "--jobs" else ""
            raise UsageError(f"{option} {value} has no effect without --run{others}; leave it out")
    args.device = args.device or "cpu"
    register = read_claims(args.claims)
    if args.prepare:
        prepare(register, args.prepare, args.data)
        return
    results = os.path.join(os.path.dirname(os.path.abspath(args.claims)), "evidence")
    plan = Plan(register, os.path.abspath(args.data), os.path.abspath(args.out))
    if args.run:
        refuse_another_code(register, args.commit)
    if args.one:
        make_one(plan, args.one, results, args)
        return
    records = plan.records(results)
    if args.status:
        print(status(plan, records, args.jobs or 1))
        return
    if args.run:
        args.jobs = args.jobs or default_jobs(args.device)
        make_all(plan, records, args)
        records = plan.records(results)
    if records:
        print(sheet(plan, records).write(results), end="")
    else:
        raise UsageError(
            f"there are no records in {results} yet; make the runs with --run, or by scripts/evidence.sh"
        )


def prepare(register: Register, text: str, data: str) -> None:
    """Prepare the corpora by their registered commands, which skip finished steps.

    A corpus that no claim needs is prepared only as long as it has no digests.

    Args:
        register: the claims. A command has {text} and {data} in place of the following folders.
        text: the folder of the raw text.
        data: the folder of the prepared corpora.

    Raises:
        UsageError: a command failed and has written the reason to standard error, or a corpus differs from
            the registered one.
    """
    needed = {os.path.basename(job.run.corpus.folder) for job in Plan(register, data, data).jobs}
    for name, corpus in register.corpora.items():
        if corpus["sums"] and name not in needed:
            continue
        say(f"preparing {name}")
        words = shlex.split(corpus["command"])
        call_command(*(word.format(text=text, data=data) for word in words[1:]))
        found = Corpus(os.path.join(data, name, "bin")).contents()
        if corpus["sums"]:
            compare(register, name, found)
        else:
            print(yaml.safe_dump({name: {"sums": found}}, width=10**6), end="")


def compare(register: Register, name: str, found: dict[str, str]) -> None:
    """Refuse a corpus that differs from the registered one.

    Args:
        register: the claims.
        name: the name of the corpus.
        found: the result of `Corpus.contents`.

    Raises:
        UsageError: it differs, or no digests are registered.
    """
    sums = register.corpora.get(name, {}).get("sums")
    if not sums:
        raise UsageError(
            f"{register.path} registers no digests of the corpus {name}; copy those that --prepare TEXT "
            "prints into its `sums`"
        )
    for file in [*sums, *found]:
        if sums.get(file) != found.get(file):
            raise UsageError(
                f"the corpus {name} differs in {file} from the one that {register.path} registers; prepare "
                "it again by --prepare TEXT, from the same text"
            )


def default_jobs(device: str) -> int:
    """Return the number of runs at a time: 1 on CPUs, and on a GPU as many as fit.

    Raises:
        UsageError: there is no GPU.
    """
    if device == "cpu":
        return 1
    if not torch.cuda.is_available():
        raise UsageError("--device cuda: torch sees no GPU; use --device cpu")
    free, _ = torch.cuda.mem_get_info()
    return max(1, min(free // MEMORY, processors()))


def refuse_another_code(register: Register, commit: str | None) -> None:
    """Refuse to make runs with other code or other claims than those in the history.

    Raises:
        UsageError: no commit is registered; the code that runs is not the registered commit, or was changed;
            or the claims have changes that were not committed.
    """
    if register.commit == "none":
        raise UsageError(f"{register.path} names no commit yet, so no run can be made")
    if commit != register.commit:
        raise UsageError(
            f"--commit {commit}: {register.path} registers commit {register.commit}; run "
            "scripts/evidence.sh, which makes a clone of it"
        )
    code = os.path.dirname(PLUGIN)
    head, changed = git(code, "rev-parse", "HEAD"), git(code, "status", "--porcelain", "-uno")
    if head != commit or changed:
        raise UsageError(
            f"the code in {code} is {'changed' if head == commit else f'commit {head}'}, but {register.path} "
            f"registers commit {commit}; run scripts/evidence.sh, which makes a clone of it"
        )
    folder, name = os.path.split(os.path.abspath(register.path))
    if git(folder, "status", "--porcelain", "--", name) or not git(folder, "ls-files", "--", name):
        raise UsageError(f"{register.path} has changes that were not committed; commit them before any run")


def git(folder: str, *words: str) -> str:
    """Return what a command of git prints, or "" if it fails, as outside of a repository."""
    done = subprocess.run(["git", "-C", folder, *words], capture_output=True, text=True)
    return done.stdout.strip()


def make_all(plan: Plan, records: dict[str, Any], args: argparse.Namespace) -> None:
    """Make the runs that have no record yet, several at a time.

    A run that another one is fine-tuned from is made again if its checkpoint was lost. Its record stays.

    Raises:
        UsageError: some runs failed. The others are made nevertheless.
    """
    missing = [job for job in plan.jobs if job.run.name not in records]
    starts = {job.run.start.name for job in missing if isinstance(job.run.start, Run)}
    missing = [
        job
        for job in plan.jobs
        if job.run.name not in records or (job.run.name in starts and not os.path.exists(job.run.checkpoint))
    ]
    for corpus in dict.fromkeys(job.run.corpus for job in missing):
        if not os.path.isdir(corpus.whole):
            raise UsageError(f"{corpus.whole} does not exist; prepare it by --prepare TEXT")
        compare(plan.register, os.path.basename(corpus.folder), corpus.contents())
        corpus.check(plan.register.path)  # which draws the subset before runs do so side by side
    finished = {name: threading.Event() for name in (job.run.name for job in missing)}
    failures = []

    def make(number: int, job: Job) -> None:
        start = getattr(job.run.start, "name", "")
        if start in finished:
            finished[start].wait()
        say(f"[{number} of {len(missing)}] {job.run.name}")
        command = [sys.executable, "-m", "modular_fairseq_cli", "evidence", args.claims]
        command += ["--data", args.data, "--out", args.out, "--commit", args.commit, "--one", job.run.name]
        command += ["--device", args.device]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if args.device == "cpu":
            environment["CUDA_VISIBLE_DEVICES"] = ""  # fairseq takes a GPU that it sees
        done = subprocess.run(command, env=environment, preexec_fn=lifetime.before_exec())
        if done.returncode:
            failures.append(job.run.name)
        finished[job.run.name].set()

    with ThreadPoolExecutor(args.jobs) as pool:
        list(pool.map(make, range(1, len(missing) + 1), missing))
    if failures:
        raise UsageError(f"these runs failed: {', '.join(failures)}; the messages above say why")


def make_one(plan: Plan, name: str, results: str, args: argparse.Namespace) -> None:
    """Make a run and write its record.

    Args:
        plan: the plan.
        name: the name of the run.
        results: the folder of records.
        args: `commit` is the commit that makes it, and `device` where.

    Raises:
        UsageError: the run failed.
    """
    (job,) = [job for job in plan.jobs if job.run.name == name]
    os.makedirs(job.run.folder, exist_ok=True)
    job.run.check()
    try:
        job.run.train(say)
        if name in plan.records(results):
            return  # only its checkpoint was lost
        for measurements in job.measurements.values():
            for measurement in measurements:
                measurement.finish(say)
    finally:
        seconds = add_time(job)
    record = record_of(job.run, job.measurements, args.commit, job.claims, seconds / 60)
    record["made"]["device"] = args.device
    write_record(results, name, record)


def add_time(job: Job) -> float:
    """Add the time that processors have spent on this process to the run's time, and return the sum in s.

    The processes that this process has started count too.
    """
    path = job.run.path(TIME)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = (read_json(path) or 0.0) + sum(each.ru_utime + each.ru_stime for each in used)
    write_file(path, json.dumps(seconds) + "\n")
    return seconds


def status(plan: Plan, records: dict[str, Any], jobs: int) -> str:
    """Return sentences about what is done, and how long the rest will take."""
    lines = []
    for kind in KINDS:
        mine = [job for job in plan.jobs if job.primary == (kind == "primary")]
        done = [job for job in mine if job.run.name in records]
        lines.append(f"{kind}: {len(done)} of {len(mine)} runs are done")
    minutes = [record["core_minutes"] for record in records.values()]
    left = len(plan.jobs) - len(records)
    if minutes:
        spent, each = sum(minutes) / 60, sum(minutes) / len(minutes) / 60
        lines.append(
            f"{spent:.1f} core-hours were spent; about {left * each:.1f} are left, which take "
            f"{left * each / jobs:.1f} hours with --jobs {jobs}"
        )
    coming = [job.run.name for job in plan.jobs if job.run.name not in records][:3]
    lines.append(f"next: {', '.join(coming)}" if coming else "all runs are done")
    return "\n".join(lines)


def sheet(plan: Plan, records: dict[str, Any]) -> Sheet:
    """Return the table of claims: primary ones with verdicts, then secondary ones."""
    by_row = {
        (row, job.seed): records[job.run.name]
        for job in plan.jobs
        if job.run.name in records
        for row in job.measurements
    }
    findings = [find(claim, by_row) for claim in plan.register.claims]
    primary = [finding for finding in findings if finding.claim.kind == "primary"]
    sides = zip(*(finding.p_values for finding in primary), strict=True) if primary else ((), ())
    both = zip(*(holm(side, len(primary)) for side in sides), strict=True)
    corrected = dict(zip((finding.claim.name for finding in primary), both, strict=True))
    lines, numbers = [], [NUMBERS]
    for kind in KINDS:
        mine = [finding for finding in findings if finding.claim.kind == kind]
        if mine:
            lines.append(Line([f"{kind} claims", *[""] * 7], True))
        for finding in mine:
            p = corrected.get(finding.claim.name, (None, None))
            lines.append(Line(cells_of(finding, p)))
            numbers.append(numbers_of(finding, p))
    heads = ["", "quantity", "row", "baseline", "difference [95 %]", "paper", "p (Holm)", "verdict"]
    notes = [*NOTES, *([last_epochs(plan, records)] if records else [])]
    return Sheet(f"Claims of {plan.register.path}", heads, lines, numbers, notes)


NUMBERS: list[Any] = [
    *("claim", "kind", "quantity", "seeds", "row_mean", "baseline_mean", "difference", "low", "high"),
    *("p_two_sided", "p_holm", "p_holm_against", "expected", "margin", "paper", "verdict"),
]
NOTES = [
    "Row and baseline are means ± standard deviations over seeds. The difference is between pairs of the "
    "same seed. Its interval accounts for seeds, and for BLEU also for the choice of sentences.",
    "The p of a primary claim is one-sided, for the claim, and corrected by Holm's method over all primary "
    "claims. Secondary claims have no verdict. The paper's difference was measured on other data and at "
    "another size.",
]


def last_epochs(plan: Plan, records: dict[str, Any]) -> str:
    """Return a sentence about how many runs had not converged: their last validation was their best."""
    curves = [record["curves"].get("valid", {}).get("nll_loss") for record in records.values()]
    values = [[value for _, value in curve] for curve in curves if curve]
    late = sum(min(each) == each[-1] for each in values)
    return f"In {late} of {len(values)} runs the last validation was the best, so longer training might help."


def cells_of(finding: Finding, p: tuple[float | None, float | None]) -> list[str]:
    """Return the cells of a claim for people."""
    claim, quantity = finding.claim, QUANTITIES[finding.claim.quantity]
    sides = list(zip(*finding.values.values(), strict=True)) or [(), ()]
    signed = quantity.pattern if ":+" in quantity.pattern else quantity.pattern.replace(":", ":+")
    interval = finding.interval
    gap = ""
    if interval:
        difference, *limits = map(signed.format, interval[:3])
        gap = f"{difference} [{', '.join(limits)}]"
    if claim.baseline:
        compared = f"{claim.baseline} {claim.bound:+g}" if claim.margin else claim.baseline
    else:
        compared, sides = f"{claim.bound:g}", [sides[0], ()]
    return [
        f"{claim.says} ({claim.row} {claim.expected} {compared})",
        quantity.heading,
        *(shown(side, quantity.pattern) for side in sides),
        gap,
        "" if claim.printed is None else signed.format(claim.printed),
        "" if p[0] is None else f"{p[0]:.3f}",
        verdict(finding, p),
    ]


def numbers_of(finding: Finding, p: tuple[float | None, float | None]) -> list[Any]:
    """Return the numbers of a claim for programs."""
    claim, interval = finding.claim, finding.interval
    sides = list(zip(*finding.values.values(), strict=True)) or [(), ()]
    means = [sum(side) / len(side) if side else None for side in sides]
    if not claim.baseline:
        means[1] = None
    limits = interval[:4] if interval else [None] * 4
    ends = [claim.expected, claim.margin, claim.printed, verdict(finding, p)]
    return [claim.name, claim.kind, claim.quantity, len(finding.values), *means, *limits, *p, *ends]
