"""Test the soak itself, and run a few cases of its parts; scripts/soak.sh runs all of them."""

import json
import os
import subprocess

import pytest

from tests.places import PYTHON, ROOT
from tests.soak.cases import Case, Ended, Outcome, judged, run_cases
from tests.soak.hostile import foreign
from tests.soak.report import write


@pytest.mark.parametrize(
    ("ended", "wrong"),
    [
        (Ended(0, "fine", ""), ""),
        (Ended(1, "", "modular-fairseq table: error: no such row; give another\n"), ""),
        (Ended(1, "", "Traceback (most recent call last):\n  File\nKeyError: 'x'\n"), "shows a traceback"),
        (Ended(1, "", "something\n"), "without a sentence"),
        (Ended(-9, "", ""), "was ended by signal 9"),
        (Ended(None, "", ""), "hangs"),
    ],
)
def test_the_end_of_a_command_is_judged(ended, wrong):
    assert (wrong in judged(ended)) if wrong else judged(ended) == ""


def test_cases_that_were_right_are_not_run_again(tmp_path):
    ran = []

    def case(name, wrong):
        return Case(name, lambda folder: ran.append(name) or wrong)

    kept = tmp_path / "outcomes.jsonl"
    for wrong in ("is wrong", ""):
        list(run_cases("part", [case("right", ""), case("other", wrong)], kept, "abc"))
    found = list(run_cases("part", [case("right", ""), case("other", "")], kept, "abc"))
    assert ran == ["right", "other", "other"] and [each.wrong for each in found] == ["", ""]
    list(run_cases("part", [case("right", "")], kept, "def", same_commit=False))
    assert len(ran) == 3
    list(run_cases("part", [case("right", "")], kept, "def"))
    assert ran[3:] == ["right"]
    for commit in ("abc+", "unknown"):  # the code may have changed since
        for _ in range(2):
            list(run_cases("part", [case("right", "")], kept, commit))
    assert len(ran) == 8


@pytest.mark.parametrize(("parts", "count"), [(["kills"], 1), (["hostile", "files", "options"], 7)])
def test_a_few_cases_of_some_parts_find_nothing(parts, count, tmp_path):
    only = [word for part in parts for word in ("--only", part)]
    command = [PYTHON, "-m", "tests.soak", "--out", str(tmp_path), *only, "--count", str(count)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    report = json.loads((tmp_path / "report.json").read_text())
    assert {part: found["cases"] for part, found in report["parts"].items()} == dict.fromkeys(parts, count)
    assert report["wrong"] == [] and f"| {count} | 0 |" in (tmp_path / "report.md").read_text()


def test_the_report_names_what_is_wrong_and_the_commits(tmp_path):
    found = [
        Outcome("files", "0 table", "", 30.0, "abc"),
        Outcome("files", "1 log", "shows a traceback", 30.0, "def"),
    ]
    write(tmp_path, 3, found)
    report = json.loads((tmp_path / "report.json").read_text())
    assert report["seed"] == 3 and report["wrong"] == [found[1]._asdict()]
    assert report["parts"]["files"] == {
        "cases": 2,
        "wrong": 1,
        "minutes": 1.0,
        "commits": {"abc": 1, "def": 1},
    }
    text = (tmp_path / "report.md").read_text()
    assert " | 2 | 1 | 1 | abc, def |" in text and text.endswith("\n- files, 1 log: shows a traceback\n")


@pytest.mark.parametrize(
    "html",
    [
        "<script>alert(1)</script>",
        "<p>fine</p></script><script>alert(1)</script>",
        "<!-- x -->",
        "<img src=x onerror=alert(1)>",
        "<a href=javascript:alert(1)>fine</a>",
    ],
)
def test_hostile_text_that_becomes_an_element_is_seen(html):
    page = "<p>{}</p><a href=#x>fine</a><script>run()</script><script type=text/plain>a</script>"
    assert foreign(page.format("fine"), page.format("another word")) == ""
    assert foreign(page.format(html), page.format("fine")) != ""
    assert foreign(page.replace("run()", "run(1)"), page) != ""
