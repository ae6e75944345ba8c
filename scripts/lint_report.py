"""Lint the JavaScript of the report with oxlint, by the rules of .oxlintrc.json.

    python scripts/lint_report.py [FOLDER]     FOLDER: default modular_fairseq_cli/report/assets

The page joins the files into one script, so a file uses names of other files. This program joins them as the
page does, lints the script, and shows the file and line of each problem. It also shows lines of more than 110
columns. The exit status is 1 if there is any problem.
"""

import argparse
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from modular_fairseq_cli.report.page import SCRIPTS

ROOT = Path(__file__).resolve().parent.parent
OXLINT = Path(sys.executable).with_name("oxlint")  # pip installs it beside Python
COLUMNS = 110


def lint(folder: Path) -> list[str]:
    """Return the problems of the scripts in a folder, each as "PATH:LINE:COLUMN: what is wrong".

    If oxlint is not installed, the program exits with a sentence that says how to install it.
    """
    if not OXLINT.exists():
        sys.exit(f"lint_report.py: error: {OXLINT} is missing; run scripts/setup.sh, which installs it")
    lines = [
        (f"{folder / name}:{number}", line)
        for name in SCRIPTS
        for number, line in enumerate((folder / name).read_text(encoding="utf-8").splitlines(), 1)
    ]
    with tempfile.TemporaryDirectory() as temporary:
        script = Path(temporary, "report.js")
        script.write_text("".join(f"{line}\n" for _, line in lines), encoding="utf-8")
        config = str(ROOT / ".oxlintrc.json")
        command = [str(OXLINT), "--config", config, "--deny-warnings", "--format", "unix", str(script)]
        done = subprocess.run(command, capture_output=True, text=True)
    found = re.findall(r"^.*report\.js:(\d+):(\d+: .*)$", done.stdout, re.MULTILINE)
    problems = [f"{lines[int(number) - 1][0]}:{rest}" for number, rest in found]
    if bool(done.returncode) != bool(problems):
        problems.append(f"oxlint failed: {done.stdout}{done.stderr}")
    for path in sorted(folder.iterdir()):
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            if len(line) > COLUMNS:
                problems.append(f"{path}:{number}:{COLUMNS + 1}: the line is longer than {COLUMNS} columns")
    return problems


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    assets = ROOT / "modular_fairseq_cli/report/assets"
    parser.add_argument("folder", nargs="?", type=Path, default=assets, metavar="FOLDER")
    found = lint(parser.parse_args().folder)
    print("\n".join(found) or "The JavaScript of the report has no problem.")
    sys.exit(bool(found))
