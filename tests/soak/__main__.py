"""Run the parts of the soak, and write a report. `python -m tests.soak --help` explains the options."""

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tests.preloaded import Preloaded
from tests.soak import accidents, fuzz_files, fuzz_options, hostile, kills, memory, workers
from tests.soak.cases import Case, Outcome, run_cases
from tests.soak.materials import Materials, prepare
from tests.soak.report import commit, write

Part = Callable[[Materials, int, int], Iterator[Case]]  # takes materials, a seed and the number of cases

# For each part: its cases, their number, and whether commands may start from a Python with torch in it.
PARTS: dict[str, tuple[Part, int, bool]] = {
    "kills": (kills.cases, 200, False),
    "accidents": (accidents.cases, 56, False),
    "workers": (workers.cases, 80, False),
    "memory": (memory.cases, 12, False),
    "hostile": (hostile.cases, 94, True),
    "options": (fuzz_options.cases, 500, True),
    "files": (fuzz_files.cases, 500, True),
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="scripts/soak.sh", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("soak"), help="folder for outcomes (default: soak)")
    parser.add_argument("--seed", type=int, default=1, help="seed of all cases (default: 1)")
    parser.add_argument("--only", action="append", choices=PARTS, help="a part; may be given several times")
    parser.add_argument("--count", type=int, help="number of cases of each part (default: its own)")
    parser.add_argument(
        "--any-commit", action="store_true", help="do not repeat cases that were right at another commit"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    found: list[Outcome] = []
    code = commit()
    server = Preloaded()
    try:
        fast = prepare(args.out / "materials", server)
        slow = prepare(args.out / "materials", None)
        for part in args.only or PARTS:
            cases, count, may_be_fast = PARTS[part]
            count = args.count or count
            made = cases(fast if may_be_fast else slow, args.seed, count)
            kept = args.out / f"outcomes-{args.seed}.jsonl"
            for number, outcome in enumerate(run_cases(part, made, kept, code, not args.any_commit), 1):
                found.append(outcome)
                if outcome.wrong or number % 50 == 0:
                    said = f"{outcome.name}: {outcome.wrong}" if outcome.wrong else "cases"
                    print(f"{time.strftime('%H:%M:%S')} {part} [{number} of {count}] {said}", flush=True)
    finally:
        server.close()
    report = write(args.out, args.seed, found)
    print((args.out / "report.md").read_text(), end="")
    sys.exit(bool(report["wrong"]))


if __name__ == "__main__":
    main()
