#!/usr/bin/env python
"""Make the runs that results/speech/claims.yaml registers, and show what they say.

    python scripts/speech_evidence.py digits DIGITS NOISES PAIRS --work DIR   # prepares DIR/data
    python scripts/speech_evidence.py run --work DIR                          # makes runs without a record
    python scripts/speech_evidence.py run --work DIR --jobs 9                 # makes nine of them at a time
    python scripts/speech_evidence.py table                                   # writes results/speech/table.md

DIGITS is a folder of the Free Spoken Digit Dataset, NOISES has noises, and PAIRS has real recordings in
clean/ and noisy/. Models are trained, and their competition is analysed, on a GPU if torch sees one. PESQ,
SI-SDR and STOI are computed on the CPU. A run that was killed continues from its last checkpoint in DIR. Its
record, a file of results/speech/, has the scores of each recording and no sound. Differences in PESQ have
intervals over seeds and recordings, other numbers over seeds (modular_fairseq_cli/scoring/intervals.py). An
interval of fewer seeds than are registered is interim. A recording that PESQ cannot score before a model has
seen it is left out. One that it cannot score after a model, which has left nothing of it, has the lowest
PESQ. The other scores are means over the recordings that can be scored with all models.
"""

import argparse
import json
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import torch
import yaml
from recorded_runs import PACKAGES, ROOT, Comparison, add_jobs, call
from tabulate import tabulate

from modular_fairseq.runs.evidence.records import made
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest, write_file
from modular_fairseq_cli.scoring.intervals import Interval, notes_on, over_seeds, over_seeds_and_sentences
from modular_fairseq_cli.training_log import read_log

RESULTS = ROOT / "results" / "speech"
EXAMPLE = "examples/speech_enhancement"
LOWEST = 1.0  # PESQ of a recording of which a model leaves nothing
CODE = (*PACKAGES, EXAMPLE, "scripts/speech_evidence.py", "results/speech/claims.yaml")


def prepare(args: argparse.Namespace, claims: dict[str, Any]) -> None:
    """Prepare the data, and compare it with the registered digests."""
    data = args.work / "data"
    for kind in ("clean", "noisy"):
        if not (args.pairs / kind).is_dir():
            raise UsageError(f"{args.pairs / kind} is no folder; give PAIRS with the folders clean and noisy")
    args.work.mkdir(parents=True, exist_ok=True)
    python(args.work / "digits.log", EXAMPLE, "digits", args.digits, args.noises, "--out", data)
    for kind in ("clean", "noisy"):
        shutil.copytree(args.pairs / kind, data / "real" / kind)
    check(data, claims)


def sums(data: Path) -> dict[str, str]:
    """Return a digest of the files of each part of the data."""
    found: dict[str, str] = {}
    for part in sorted(path for path in data.iterdir() if path.is_dir()):
        files = sorted(path for path in part.rglob("*") if path.is_file())
        listing = "".join(f"{path.relative_to(part)} {digest(path)}\n" for path in files)
        write_file(listed := data / f"{part.name}.sums", listing)
        found[part.name] = digest(listed)[:16]
    return found


def check(data: Path, claims: dict[str, Any]) -> None:
    """Raise UsageError unless the data are those that are registered."""
    if not data.is_dir():
        raise UsageError(f"{data} does not exist; prepare it by the command digits")
    found = sums(data)
    for part, registered in claims["data"].items():
        if found.get(part) != registered:
            raise UsageError(
                f"{data / part} has the digest {found.get(part)}, and {registered} is registered; "
                "prepare the same recordings, with the versions of constraints.txt"
            )


def run(args: argparse.Namespace, claims: dict[str, Any]) -> None:
    """Make the runs that have no record."""
    data = args.work / "data"
    check(data, claims)
    comparison_of(claims).make(args.work, lambda *run: make(*run, data, claims), args.jobs)


def comparison_of(claims: dict[str, Any]) -> Comparison:
    """Return the runs that are registered."""
    options = {row: f"{claims['train'].strip()} {own}" for row, own in claims["rows"].items()}
    return Comparison(RESULTS, claims["seeds"], options, claims["data"], CODE)


def python(log: Path, *words: object) -> None:
    """Run Python with the code of this checkout, and say with what. Raises UsageError if it fails."""
    print(f"{' '.join(map(str, words))}\n", end="", flush=True)  # in one piece, beside other threads
    call([sys.executable, *words], log)


def make(folder: Path, row: str, seed: int, data: Path, claims: dict[str, Any]) -> dict[str, Any]:
    """Train, evaluate and analyse one run in a folder, and return its record."""
    began = time.monotonic()
    options = comparison_of(claims).options[row].split()
    own = ["--user-dir", EXAMPLE, "--seed", seed, "--save-dir", folder]
    python(folder / "train.log", "-m", "fairseq_cli.train", data, *options, *own)
    model, parts = ["--path", folder / "checkpoint_best.pt"], {}
    for part in claims["parts"]:
        out = folder / f"{part}.json"
        words = [EXAMPLE, "evaluate", data, *model, "--gen-subset", part, "--out", out]
        out.unlink(missing_ok=True)
        try:
            python(folder / f"{part}.log", *words)
        except UsageError:
            if not out.exists():  # else no recording could be scored, which is a result, too
                raise
        parts[part] = json.loads(out.read_text())
    competition = {}
    competes = {claim["row"] for claim in claims["claims"] if claim["quantity"] in ("speech", "depth")}
    for part in ("valid", "test") if row in competes else ():
        out = folder / f"analysis-{part}"
        words = ["analyze", "speech", data, "--user-dir", EXAMPLE, *model, "--gen-subset", part, "--out", out]
        python(folder / f"analysis-{part}.log", "-m", "modular_fairseq_cli", *words)
        found = json.loads((out / "analysis.json").read_text())["analyses"]["speech"]
        competition[part] = {"layers": found["table"], "loudness": found["loudness"]}
    return {
        "hours_of_last_process": round((time.monotonic() - began) / 3600, 2),
        "losses": losses(folder / "train.log"),
        "parts": parts,
        "competition": competition,
        "made": made(torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu"),
    }


def losses(log: Path) -> list[float]:
    """Return the validation losses of all epochs. An epoch that a killed run has repeated counts once."""
    return [loss for _, loss in read_log(log)["valid"]["loss"]]


def table(args: argparse.Namespace, claims: dict[str, Any]) -> None:
    """Write the tables of scores and claims."""
    records = comparison_of(claims).records()
    text = f"{scores(records, claims)}\n\n{claimed(records, claims)}\n"
    write_file(RESULTS / "table.md", text)
    print(text, end="")


def scores(records: dict, claims: dict[str, Any]) -> str:
    """Return a table of the mean scores of each row on each part."""
    lines = []
    for part in claims["parts"] if records else ():
        tables = {key: recordings_of(record, part) for key, record in records.items()}
        scored = [{name for name, each in one.items() if "unscored" not in each} for one in tables.values()]
        names = sorted(scored[0].intersection(*scored))
        for row in ("noisy", *claims["rows"]):
            found = [one for (name, _), one in tables.items() if row in ("noisy", name)]
            which = "noisy" if row == "noisy" else "model"
            if found:
                rated = [each for one in found for each in one.values() if "noisy pesq" in each]
                pesq = [fmean(each.get(f"{which} pesq", LOWEST) for each in rated)] if rated else [""]
                others = [
                    fmean(one[name][f"{which} {score}"] for one in found for name in names) if names else ""
                    for score in ("si_sdr", "stoi")
                ]
                seeds = "" if row == "noisy" else str(len(found))
                lines.append([part, row, seeds, *pesq, f"{len(names)} of {len(found[0])}", *others])
    head = ["part", "row", "seeds", "PESQ", "scored with all models", "SI-SDR (dB)", "STOI"]
    return tabulate(lines, head, floatfmt=".3f", tablefmt="github")


def recordings_of(record: dict[str, Any], part: str) -> dict[str, dict[str, Any]]:
    """Return the scores of the recordings of a part, by their names."""
    return {each["recording"]: each for each in record["parts"][part]["recordings"]}


def claimed(records: dict, claims: dict[str, Any]) -> str:
    """Return a table of the claims with their intervals."""
    lines, intervals = [], []
    for claim in claims["claims"]:
        values = list(differences(claim, records, claims))
        found: Interval | None
        names = sorted(set(values[0]).intersection(*values[1:])) if values else []  # scored in all runs
        numbers = np.array([[each[name] for name in names] for each in values])
        if len(names) > 1 and len(values) > 1:
            found = over_seeds_and_sentences(list(numbers.mean(axis=1)), numbers)
        else:
            found = over_seeds([float(np.mean(row)) for row in numbers])
        intervals.append(found)
        about = [claim["name"], claim["says"], claim["expected"], claim["printed"]]
        seeds, recordings = f"{len(values)} of {len(claims['seeds'])}", ""
        if claim["quantity"] == "pesq" and records:
            all_names = recordings_of(next(iter(records.values())), claim["part"])
            recordings = f"{len(names)} of {len(all_names)}"
        lines.append([*about, found.shown("{:+.3f}") if found else "", seeds, recordings])
    head = ["claim", "says", "expected", "paper", "here, with 95 % interval", "seeds", "recordings"]
    return "\n\n".join(
        [tabulate(lines, head, tablefmt="github", disable_numparse=True), *notes_on(intervals)]
    )


def differences(claim: dict[str, Any], records: dict, claims: dict[str, Any]) -> Iterator[dict[str, float]]:
    """Yield for each seed what a claim is about: the difference of each recording by name, or one number."""
    for seed in claims["seeds"]:
        ours, theirs = records.get((claim["row"], seed)), records.get((claim.get("baseline"), seed))
        if ours is None or (theirs is None and claim.get("baseline") not in (None, "noisy")):
            continue
        if claim["quantity"] == "pesq":
            rows, other = (recordings_of(record, claim["part"]) for record in (ours, theirs or ours))
            score = "model pesq" if theirs else "noisy pesq"
            yield {
                name: row.get("model pesq", LOWEST) - other[name].get(score, LOWEST)
                for name, row in rows.items()
                if "noisy pesq" in row
            }
        elif claim["quantity"] == "speech":  # above loudness; valid shows which mechanism and which frames
            known, judged = (ours["competition"][part]["layers"][-1] for part in ("valid", "test"))
            best = max((name for name in known if name.startswith("AUC")), key=lambda name: known[name])
            loud, judged_loud = (ours["competition"][part]["loudness"] for part in ("valid", "test"))
            loudest = max(range(len(loud)), key=lambda index: loud[index]["AUC"])
            yield {"": judged[best] - judged_loud[loudest]["AUC"]}
        elif claim["quantity"] == "depth":
            layers = ours["competition"]["test"]["layers"]
            yield {"": layers[-1]["entropy"] - layers[0]["entropy"]}
        else:
            raise UsageError(f"{claim['name']}: there is no quantity {claim['quantity']}")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    for function, name, summary in (
        (prepare, "digits", "prepare the data"),
        (run, "run", "make the runs that have no record"),
        (table, "table", "show what the records say"),
    ):
        command = commands.add_parser(name, help=summary)
        command.set_defaults(function=function)
        for argument in ("digits", "noises", "pairs") if function is prepare else ():
            command.add_argument(argument, type=Path, metavar=argument.upper())
        if function is not table:
            command.add_argument(
                "--work", type=Path, required=True, metavar="DIR", help="folder for data and runs"
            )
        if function is run:
            add_jobs(command)
    args = parser.parse_args()
    for name, value in vars(args).items():  # commands run in the folder of this checkout
        if isinstance(value, Path):
            setattr(args, name, value.absolute())
    try:
        args.function(args, yaml.safe_load((RESULTS / "claims.yaml").read_text()))
    except UsageError as error:
        sys.exit(f"speech_evidence.py: error: {error}")


if __name__ == "__main__":
    main()
