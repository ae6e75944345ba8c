"""Test scripts/evidence.sh: what it calls in the clone, and what it refuses."""

import fcntl
import os
import shutil
import signal
import subprocess
from functools import partial

import pytest

from tests.places import ROOT
from tests.processes import PATIENCE, wait_for

COMMIT = "0123456789abcdef0123456789abcdef01234567"
# In place of the command in the clone: it writes down its arguments.
STUB = """#!/bin/sh
echo "$(nice) $*" >>"$(dirname "$0")/calls"
pwd >"$(dirname "$0")/folder"
echo "${PYTHONPATH-unset}" >"$(dirname "$0")/path"
"""


@pytest.fixture
def checkout(tmp_path):
    """Make a checkout with claims, and a finished clone in the folder that EVIDENCE names."""
    for name in ("scripts", "results"):
        (tmp_path / name).mkdir()
    shutil.copy(ROOT / "scripts/evidence.sh", tmp_path / "scripts")
    (tmp_path / "results/claims.yaml").write_text(f"# a comment\ncommit: {COMMIT}\nscale: cpu\n")
    bin_ = tmp_path / f"made/{COMMIT}/.venv/bin"
    bin_.mkdir(parents=True)
    (tmp_path / f"made/{COMMIT}/done").touch()
    (bin_ / "modular-fairseq").write_text(STUB)
    (bin_ / "modular-fairseq").chmod(0o755)
    (tmp_path / "text").mkdir()
    return tmp_path


def call(checkout, *args):
    environment = os.environ | {"EVIDENCE": str(checkout / "made")}
    command = ["bash", str(checkout / "scripts/evidence.sh"), *map(str, args)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=checkout)
    calls = checkout / f"made/{COMMIT}/.venv/bin/calls"
    return done, calls.read_text().splitlines() if calls.exists() else []


def test_corpora_are_prepared_before_runs_of_lowest_priority(checkout):
    done, (first, second) = call(checkout, "text", "--jobs", "2", "--device", "cuda")
    assert done.returncode == 0, done.stderr
    own = f"evidence {checkout}/results/claims.yaml --data {checkout}/made/data --out {checkout}/made/runs"
    assert first.endswith(f" {own} --prepare {checkout}/text")
    assert second == f"19 {own} --jobs 2 --device cuda --run --commit {COMMIT}"


def test_the_clone_is_of_the_commit_and_is_set_up_once(checkout):
    """A clone whose set-up was interrupted is made again."""
    setup = checkout / "scripts/setup.sh"
    setup.write_text(
        f'cd "$(dirname "$0")/.." && mkdir -p .venv/bin && cp {checkout}/stub .venv/bin/modular-fairseq\n'
        f"echo set up >>{checkout}/notes\n"
    )
    stub = checkout / f"made/{COMMIT}/.venv/bin/modular-fairseq"
    stub.rename(checkout / "stub")
    git = ["git", "-C", str(checkout), "-c", "user.name=A", "-c", "user.email=a@b.c"]
    for words in (["init", "-q"], ["add", "scripts"], ["commit", "-q", "-m", "first"]):
        subprocess.run([*git, *words], check=True)
    commit = subprocess.run([*git, "rev-parse", "HEAD"], check=True, capture_output=True, text=True).stdout
    setup.write_text("exit 1  # a later version\n")
    subprocess.run([*git, "commit", "-q", "-a", "-m", "second"], check=True)
    (checkout / "results/claims.yaml").write_text(f"commit: {commit}")
    clone = checkout / "made" / commit.strip()
    (clone / "left").mkdir(parents=True)
    for _ in range(2):
        done, _ = call(checkout, "text")
        assert done.returncode == 0, done.stderr
        assert (checkout / "notes").read_text() == "set up\n"
    assert not (clone / "left").exists()
    assert len((clone / ".venv/bin/calls").read_text().splitlines()) == 4

    (checkout / "results/claims.yaml").write_text(f"commit: {COMMIT[::-1]}")
    done, _ = call(checkout, "text")
    assert done.returncode == 1 and f"commit {COMMIT[::-1]} is not in this repository" in done.stderr


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_ends_the_runs_and_frees_the_lock(checkout, number):
    stub = checkout / f"made/{COMMIT}/.venv/bin/modular-fairseq"
    stub.write_text(f'#!/bin/sh\ncase "$*" in *--run*) echo $$ >{checkout}/pid; exec sleep 300 ;; esac\n')
    environment = os.environ | {"EVIDENCE": str(checkout / "made")}
    words = ["bash", str(checkout / "scripts/evidence.sh"), "text"]
    # The signal may be ignored in this process, as under nohup.
    heed = partial(signal.signal, number, signal.SIG_DFL)
    with subprocess.Popen(words, env=environment, cwd=checkout, preexec_fn=heed) as script:
        wait_for(lambda: (checkout / "pid").exists() and (checkout / "pid").read_text().strip())
        script.send_signal(number)
        assert script.wait(PATIENCE) != 0
    child = int((checkout / "pid").read_text())
    assert not os.path.exists(f"/proc/{child}")
    stub.write_text(STUB)
    assert call(checkout, "text")[0].returncode == 0


def test_a_search_path_of_cd_changes_no_folder(checkout, tmp_path_factory, monkeypatch):
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "text").mkdir()
    monkeypatch.setenv("CDPATH", str(elsewhere))
    done, (first, _) = call(checkout, "text")
    assert done.returncode == 0 and first.endswith(f" --prepare {checkout}/text"), done.stderr


def test_only_the_corpora_of_chosen_tables_are_prepared(checkout):
    done, (first, second) = call(checkout, "text", "--only", "mae-4")
    assert done.returncode == 0, done.stderr
    assert first.endswith(f" --prepare {checkout}/text --only mae-4")
    assert second.endswith(f"/made/runs --only mae-4 --run --commit {COMMIT}")


def test_records_name_files_without_the_working_folder(checkout):
    record = checkout / "results/evidence/table/row/seed-1.json"
    record.parent.mkdir(parents=True)
    record.write_text(
        f'{{"commands": ["fairseq-train {checkout}/made/data --save-dir {checkout}/made/runs"]}}'
    )
    assert call(checkout, "text")[0].returncode == 0
    assert record.read_text() == '{"commands": ["fairseq-train evidence/data --save-dir evidence/runs"]}'


def test_other_claims_have_their_own_commit_and_records(checkout):
    claims = checkout / "results/narrow/claims.yaml"
    record = checkout / "results/narrow/evidence/table/row/seed-1.json"
    record.parent.mkdir(parents=True)
    record.write_text(f"{checkout}/made/runs")
    claims.write_text(f"commit: {COMMIT}\n")
    (checkout / "results/claims.yaml").write_text(f"commit: {COMMIT[::-1]}\n")
    done, (first, second) = call(checkout, "text", "--claims", "results/narrow/claims.yaml")
    assert done.returncode == 0, done.stderr
    assert f" evidence {claims} --data" in first and second.endswith(f" --run --commit {COMMIT}")
    assert record.read_text() == "evidence/runs"


def test_the_code_of_the_clone_runs_and_not_the_code_in_the_present_folder(checkout, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", str(checkout))
    assert call(checkout, "--status")[0].returncode == 0
    clone = checkout / "made" / COMMIT
    found = [(clone / ".venv/bin" / name).read_text().strip() for name in ("folder", "path")]
    assert found == [str(clone), "unset"]


@pytest.mark.skipif(not shutil.which("flock"), reason="there is no program flock")
def test_a_second_script_is_refused_and_deletes_nothing(checkout):
    (checkout / "made" / COMMIT / "done").unlink()
    with open(checkout / "made/lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        done, calls = call(checkout, "text")
    assert done.returncode == 1 and "another evidence.sh works in" in done.stderr and not calls
    assert (checkout / "made" / COMMIT / ".venv").exists()


@pytest.mark.parametrize(("option", "words"), [("--status", " --status"), ("--table", "")])
def test_status_and_table_need_no_text(checkout, option, words):
    done, (only,) = call(checkout, option)
    assert done.returncode == 0 and only.endswith(f"/made/runs{words}"), done.stderr


@pytest.mark.parametrize("option", ["--status", "--table"])
def test_status_and_table_make_no_clone(checkout, option):
    (checkout / "made" / COMMIT / "done").unlink()
    done, calls = call(checkout, option)
    assert done.returncode == 1 and f"has no clone of commit {COMMIT} yet" in done.stderr and not calls
    assert (checkout / "made" / COMMIT / ".venv").exists()


def test_jobs_and_tables_count_for_the_status(checkout):
    done, (only,) = call(checkout, "--jobs", "2", "--only", "mae-4", "--status")
    assert done.returncode == 0 and only.endswith("/made/runs --status --jobs 2 --only mae-4"), done.stderr


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ([], "give the folder of the raw text"),
        (["nowhere"], "nowhere is no folder; give the folder of the raw text"),
        (["--fast"], "--fast is no option; see --help"),
        (["--jobs"], "--jobs needs a value; see --help"),
        (["text", "--claims"], "--claims needs a value; see --help"),
        (
            ["text", "--claims", "none.yaml"],
            "--claims none.yaml is no file; give a file such as results/claims.yaml",
        ),
        (["text", "results"], "the folder of the raw text is"),
        (["text", "--status"], "has no effect with --status; leave it out"),
        (["--table", "--status"], "--table and --status exclude each other; leave one of them out"),
    ],
)
def test_what_it_cannot_use_is_refused(checkout, args, sentence):
    done, calls = call(checkout, *args)
    assert done.returncode != 0 and sentence in done.stderr and not calls


def test_a_commit_that_does_not_exist_is_refused(checkout):
    subprocess.run(["git", "init", "--quiet", str(checkout)], check=True)
    (checkout / "results/claims.yaml").write_text(f"commit: {COMMIT[::-1]}\n")
    done, _ = call(checkout, "text")
    assert done.returncode != 0 and f"commit {COMMIT[::-1]} is not in this repository" in done.stderr
    (checkout / "results/claims.yaml").write_text("scale: cpu\n")
    done, _ = call(checkout, "text")
    assert (
        done.returncode != 0
        and "names no commit yet; put its hash of 40 digits into the line commit:" in done.stderr
    )


def test_help_is_the_comment_at_its_head(checkout):
    done, calls = call(checkout, "--help")
    assert done.stdout.startswith("Make the runs that results/claims.yaml registers") and not calls
