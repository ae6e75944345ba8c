"""Test claims of the papers by runs that were registered before they were made.

    modular-fairseq evidence results/claims.yaml                    # shows what the records say
    modular-fairseq evidence results/claims.yaml --page docs/results.md     # writes the page of results
    modular-fairseq evidence results/claims.yaml --compare multi30k dma base    # compares two rows
    modular-fairseq evidence results/claims.yaml --status           # counts runs, and estimates the time left
    modular-fairseq evidence results/claims.yaml --prepare TEXT     # prepares the corpora in --data
    modular-fairseq evidence results/claims.yaml --run --commit HASH    # makes the runs that are missing
    modular-fairseq evidence results/claims.yaml --run --commit HASH --only mae-4    # makes one table

CLAIMS is the file that registers the claims: the rows of tables that are compared, the quantity, the seeds
and the rule for the verdict. The runs have a fixed order. Runs of primary claims come first, and all rows are
made with one seed before the next seed. Each run that is finished writes a small JSON file, its record, into
the folder evidence/ beside CLAIMS. A run that has a record is not made again. A run that was killed continues
from its last checkpoint in OUT, if that is still there.

With CLAIMS alone, the command writes table.txt, .md and .tsv into the same folder. The interval of a
difference in BLEU accounts for seeds and for the choice of sentences. The interval of a difference in nats
per token of pictures accounts for seeds and for the choice of pictures, and the interval of a difference in
the accuracy of classes for seeds and for the choice of inputs. Any other interval accounts for seeds alone.
The p-values of primary claims are one-sided, as claims have a direction, and are corrected by Holm's method.

scripts/evidence.sh makes the runs in a frozen clone at the commit that CLAIMS names, so that work on the
project can go on.
"""

import argparse
import os

from modular_fairseq.runs.evidence.corpora import prepare
from modular_fairseq.runs.evidence.jobs import Plan
from modular_fairseq.runs.evidence.making import default_jobs, make_all, make_one, refuse_another_code
from modular_fairseq.runs.evidence.overview import sheet, status
from modular_fairseq.runs.evidence.page import write as write_page
from modular_fairseq.runs.evidence.pairs import pair
from modular_fairseq.runs.evidence.reading import read_claims
from modular_fairseq_cli.errors import UsageError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = (
        "modular-fairseq evidence CLAIMS [--data DIR] [--out DIR] [--prepare TEXT | --run --commit HASH | "
        "--status | --compare TABLE ROW BASELINE | --page FILE] [options]"
    )
    parser.add_argument("claims", metavar="CLAIMS", help="file that registers the claims")
    parser.add_argument(
        "--data", default="data", metavar="DIR", help="folder of the prepared corpora (default: data)"
    )
    parser.add_argument(
        "--out", default="evidence", metavar="DIR", help="folder for the files of runs (default: evidence)"
    )
    parser.add_argument(
        "--commit", metavar="HASH", help="the commit of this checkout; each record states it; needed by --run"
    )
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="runs at a time (default: 1; with --device cuda as many as fit into its memory)",
    )
    parser.add_argument(
        "--only",
        action="append",
        default=[],
        metavar="TABLE",
        help="only the runs of this table, and those that they start from, or their corpora; may be given "
        "several times",
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
    what.add_argument(
        "--compare",
        nargs=3,
        metavar=("TABLE", "ROW", "BASELINE"),
        help="show how two rows of a table differ in every quantity, also where no claim is registered",
    )
    what.add_argument(
        "--page", metavar="FILE", help="write a page about all claims, in Markdown, and its figures"
    )
    # A process of --run gets these two.
    what.add_argument("--one", metavar="RUN", help=argparse.SUPPRESS)
    parser.add_argument("--results", metavar="DIR", help=argparse.SUPPRESS)


def run(args: argparse.Namespace) -> None:
    if args.jobs is not None and args.jobs < 1:
        raise UsageError(f"--jobs {args.jobs}: the number must be at least 1")
    needs_run = {"--jobs": args.jobs, "--device": args.device, "--commit": args.commit}
    for option, value in needs_run.items():
        if value is not None and not (args.run or args.one or (args.status and option == "--jobs")):
            others = " and --status" if option == "--jobs" else ""
            raise UsageError(f"{option} {value} has no effect without --run{others}; leave it out")
    if args.only and not (args.run or args.status or args.prepare is not None):
        raise UsageError(
            f"--only {args.only[0]} has no effect without --run, --status and --prepare; leave it out"
        )
    args.device = args.device or "cpu"
    register = read_claims(args.claims)
    results = os.path.join(os.path.dirname(os.path.abspath(args.claims)), "evidence")
    plan = Plan(register, os.path.abspath(args.data), os.path.abspath(args.out))
    if args.prepare is not None:
        prepare(plan, args.only, args.prepare, args.data)
        return
    if args.run:
        refuse_another_code(register, args.commit)
    if args.one:
        if not args.commit:
            raise UsageError(f"--one {args.one} needs --commit HASH, which its record states")
        make_one(plan, args.one, args.results, args)
        return
    records, jobs = plan.records(results), plan.jobs_of(args.only)
    if args.status:
        print(status(jobs, records, args.jobs or 1))
        return
    if args.run:
        args.jobs = args.jobs or default_jobs(args.device)
        make_all(plan, jobs, records, results, args)
        records = plan.records(results)
    if records and args.page is not None:
        write_page(plan, records, args.page)
        print(f"{args.page}: {len(records)} of {len(plan.jobs)} runs")
    elif records and args.compare:
        print(pair(plan, records, *args.compare).text(), end="")
    elif records:
        print(sheet(plan, records).write(results), end="")
    else:
        raise UsageError(
            f"there are no records in {results} yet; make the runs with --run, or by scripts/evidence.sh"
        )
