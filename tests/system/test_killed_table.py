"""`modular-fairseq table` is killed and continued; two processes want one run."""

import json
import signal
import subprocess

import pytest

from modular_fairseq_cli.files import only_one
from tests.fairseq_commands import differing_weights, going_on
from tests.places import ROOT
from tests.processes import processes_of, wait_for
from tests.table_folders import (
    call,
    command,
)
from tests.trained_tables import cells

pytestmark = pytest.mark.usefixtures("real_commands")


def test_two_processes_do_not_work_in_one_run(table_copy):
    with only_one(str(table_copy / "results/paper/mine/plain/seed-1")):
        (table_copy / "results/paper/mine/plain/seed-1/test.json").unlink()
        done = call(table_copy, "--run", "--only", "plain")
    assert done.returncode == 1 and "another process works in it" in done.stderr.splitlines()[-1]


def test_a_killed_run_ends_as_an_uninterrupted_one(table_folder, finished_table):
    """Killed once in training and once in translation; nothing that it started lives on."""
    run = table_folder / "killed/paper/mine/plain/seed-1"
    for sign in (run / "checkpoint2.pt", run / "test.out.tmp"):
        process = subprocess.Popen(
            command(table_folder, "--run", "--only", "plain", out="killed"),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
        )
        wait_for(sign.exists, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert processes_of(run) == []
    with going_on(run, after_kill=True):
        done = call(table_folder, "--run", "--only", "plain", out="killed")
    assert done.returncode == 0, done.stderr[-2000:]
    uninterrupted = table_folder / "results/paper/mine/plain/seed-1"
    assert (run / "settings.json").read_text() == (uninterrupted / "settings.json").read_text()
    for file in ("training.json", "test.json"):  # checkpoints hold times and paths, so their sums differ
        ours, theirs = (
            json.loads((folder / file).read_text()) | {"path": "", "checkpoint": ""}
            for folder in (run, uninterrupted)
        )
        assert ours == theirs
    assert cells(done.stdout, "Plain") == cells(finished_table.stdout, "Plain") and cells(
        done.stdout, "Experts"
    ) == ["Experts", "missing"]
    assert differing_weights(run / "averaged.pt", uninterrupted / "averaged.pt") == []
