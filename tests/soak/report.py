"""Write what a soak found: report.json, and report.md for people."""

import json
import subprocess
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch

from modular_fairseq_cli.files import write_file
from tests.places import ROOT
from tests.soak.cases import CHANGED, UNKNOWN, Outcome

# What the cases of each part do.
ABOUT = {
    "kills": "commands are killed by SIGKILL at random moments, up to three times",
    "accidents": "full and read-only disks, no memory in a G step, closed pipes and terminals",
    "workers": "2 and 4 workers of one training, of which some have no data, or one is killed",
    "memory": "long trainings and translations, whose memory must not grow",
    "hostile": "checkpoints, archives, YAML and text whose author is hostile",
    "options": "options with values at, below and beyond their limits, and of other types",
    "files": "spoilt corpora, tables, checkpoints, analyses and logs",
}


def commit() -> str:
    """Return the commit of the code, with "+" if files differ from it; "unknown" without git."""
    try:
        head, changes = (
            subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=True).stdout
            for words in (["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "-uno"])
        )
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN
    return head.strip() + (CHANGED if changes.strip() else "")


def write(folder: Path, seed: int, found: Sequence[Outcome]) -> dict:
    """Write report.json and report.md to a folder, and return the content of report.json.

    Args:
        folder: the folder.
        seed: the seed of the cases.
        found: their outcomes.
    """
    parts = {}
    for part in dict.fromkeys(each.part for each in found):
        those = [each for each in found if each.part == part]
        parts[part] = {
            "cases": len(those),
            "wrong": sum(bool(each.wrong) for each in those),
            "minutes": round(sum(each.seconds for each in those) / 60, 1),
            "commits": dict(Counter(each.commit for each in those)),
        }
    report = {
        "seed": seed,
        "torch": torch.__version__,
        "parts": parts,
        "wrong": [each._asdict() for each in found if each.wrong],
    }
    write_file(folder / "report.json", json.dumps(report, indent=1) + "\n")
    lines = [f"Seed {seed}, torch {torch.__version__}", "", "| part | cases | wrong | minutes | commit |"]
    lines.append("|---|---|---|---|---|")
    for part, each in parts.items():
        commits = ", ".join(each["commits"])
        what = f"{part}: {ABOUT[part]}"
        lines.append(f"| {what} | {each['cases']} | {each['wrong']} | {each['minutes']:g} | {commits} |")
    lines += ["", *(f"- {each.part}, {each.name}: {each.wrong}" for each in found if each.wrong)]
    write_file(folder / "report.md", "\n".join(lines).rstrip() + "\n")
    return report
