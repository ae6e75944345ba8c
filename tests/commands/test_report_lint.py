"""Tests of scripts/lint_report.py, which finds mistakes in the JavaScript of the report."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.places import PYTHON, ROOT

ASSETS = ROOT / "modular_fairseq_cli/report/assets"

if not Path(PYTHON).with_name("oxlint").exists():
    pytest.skip("oxlint is missing: pip install oxlint", allow_module_level=True)


def lint(folder):
    command = [PYTHON, str(ROOT / "scripts/lint_report.py"), str(folder)]
    done = subprocess.run(command, capture_output=True, text=True)
    return done.returncode, done.stdout.splitlines()


def test_the_report_has_no_problem():
    assert lint(ASSETS) == (0, ["The JavaScript of the report has no problem."])


@pytest.mark.parametrize(
    ("line", "rule"),
    [
        ("RUNS.map(undefinedName);", "no-undef"),
        ("function neverCalled() {}", "no-unused-vars"),
        ("if (RUNS.length == 1) applyTheme();", "eqeqeq"),
        ("var old = 1; applyTheme(old);", "no-var"),
        ("let fixed = 1; applyTheme(fixed);", "prefer-const"),
        ("const = 1;", "Unexpected token"),
        (f"// {'x' * 110}", "longer than 110 columns"),
    ],
)
@pytest.mark.parametrize("name", ["dom.js", "maps.js", "main.js"])
def test_a_mistake_is_found_at_its_file_and_line(tmp_path, name, line, rule):
    folder = tmp_path / "assets"
    shutil.copytree(ASSETS, folder)
    with (folder / name).open("a") as file:
        file.write(f"{line}\n")
    number = len((folder / name).read_text().splitlines())
    status, problems = lint(folder)
    assert status == 1
    assert [problem for problem in problems if f"/{name}:{number}:" in problem and rule in problem]
