"""Make a table on a real Slurm of one node, while jobs are pre-empted, cancelled and out of time."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from modular_fairseq.training.checkpoints import load_checkpoint
from tests.places import ROOT
from tests.system import one_node_slurm
from tests.table_folders import call, write_configs
from tests.trained_tables import cells

pytestmark = [
    pytest.mark.skipif(bool(one_node_slurm.missing()), reason=one_node_slurm.missing()),
    pytest.mark.usefixtures("real_commands"),
]
pytest.importorskip("submitit", reason="submitit is missing: pip install 'modular_fairseq[cluster]'")

SECONDS = 300  # after which a test gives up


@pytest.fixture(scope="module")
def slurm():
    with one_node_slurm.one_node() as environment:
        yield environment


def table(place, slurm, *args, out):
    """Run `modular-fairseq table` beside Slurm, and return what it prints."""
    words = [sys.executable, "-m", "modular_fairseq_cli", "table", place / "configs/mine/table.yaml"]
    words += ["--data", place / "data", "--out", out, *args]
    done = subprocess.run(
        list(map(str, words)), capture_output=True, text=True, cwd=ROOT, env={**slurm, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def queue(slurm):
    """Return the states of the jobs in the queue, keyed by their names."""
    done = subprocess.run(
        ["squeue", "-h", "--format=%j %T %A"], capture_output=True, text=True, env=slurm, check=True
    )
    return {name: (state, number) for name, state, number in map(str.split, done.stdout.splitlines())}


def wait(is_so, what):
    end = time.monotonic() + SECONDS
    while not is_so():
        assert time.monotonic() < end, what
        time.sleep(0.2)


def wait_for_all_jobs(slurm):
    """Wait until the queue is empty. A job that Slurm starts again would wait for two minutes."""

    def is_empty():
        done = subprocess.run(
            ["squeue", "-h", "--states=PENDING", "--format=%A %r"],
            capture_output=True,
            text=True,
            env=slurm,
            check=True,
        )
        for number, reason in map(str.split, done.stdout.splitlines()):
            if reason == "BeginTime":
                subprocess.run(
                    ["scontrol", "update", f"JobId={number}", "StartTime=now"], env=slurm, check=True
                )
        return not queue(slurm)

    wait(is_empty, "all jobs end")


def same_weights(ours, theirs):
    ours, theirs = (load_checkpoint(folder / "averaged.pt")["model"] for folder in (ours, theirs))
    return all(ours[name].equal(theirs[name]) for name in theirs)


def write_resources(folder, minutes, **slurm):
    """Write a file of resources for jobs of one processor, and return its path."""
    path = folder / "resources.yaml"
    resources = {"gpus": 0, "cpus": 1, "hours": minutes / 60, "slurm": slurm, "evaluation": {"hours": 0.2}}
    path.write_text(yaml.safe_dump(resources))
    return path


def test_jobs_that_are_pre_empted_and_cancelled_end_in_the_same_table(
    table_folder, finished_table, slurm, tmp_path
):
    """Slurm ends one training and queues it again, as it does for jobs of a higher priority. Another is
    cancelled, and submitted again by the same command.
    """
    given = ["--run", "--launcher", "slurm", "--resources", write_resources(tmp_path, minutes=12)]
    table(table_folder, slurm, *given, out=tmp_path)
    runs = tmp_path / "paper/mine"
    numbers = {}
    for row, stop in (("plain", ["scontrol", "requeue"]), ("experts", ["scancel"])):
        wait((runs / row / "seed-1/checkpoint_last.pt").exists, f"{row} is trained")
        jobs = json.loads((runs / row / "seed-1/jobs.json").read_text())
        numbers[row] = jobs[f"train mine/{row}/seed-1"]["number"]
        subprocess.run([*stop, numbers[row]], env=slurm, check=True)
    wait(lambda: "train:mine/experts/seed-1" not in queue(slurm), "experts is cancelled")
    assert re.search(
        r"train mine/experts/seed-1 +failed", table(table_folder, slurm, "--status", out=tmp_path)
    )
    table(table_folder, slurm, *given, out=tmp_path)
    wait_for_all_jobs(slurm)
    shown = table(table_folder, slurm, out=tmp_path)
    assert shown == finished_table.stdout
    log = next((tmp_path / "paper/mine/jobs").glob(f"{numbers['plain']}_0_log.out")).read_text()
    assert log.count("Starting with") == 2
    for row in ("plain", "experts"):
        assert same_weights(runs / row / "seed-1", table_folder / "results/paper/mine" / row / "seed-1")
    assert "Table mine: 7 done" in table(table_folder, slurm, "--status", out=tmp_path)


def test_a_training_longer_than_its_time_limit_ends_as_one_without(table_folder, slurm, tmp_path):
    """The limit comes when one epoch is trained; until then the training is halted, however fast it is.

    Slurm looks at time limits twice a minute, so a job is told to stop up to half a minute early.
    """
    resources = write_resources(tmp_path, minutes=12, signal="B:USR2@90")
    (tmp_path / "configs/mine").mkdir(parents=True)
    write_configs(tmp_path / "configs/mine", optimization={"lr": [0.005], "max_epoch": 60})
    (tmp_path / "data").symlink_to(table_folder / "data")
    only = ["--only", "plain", "--run"]
    table(tmp_path, slurm, *only, "--launcher", "slurm", "--resources", resources, out=tmp_path / "jobs")
    run = tmp_path / "jobs/paper/mine/plain/seed-1"
    wait((run / "checkpoint_last.pt").exists, "an epoch is trained")
    [training] = pids(f"fairseq_cli.train .*{run}")
    os.kill(training, signal.SIGSTOP)
    assert not (run / "checkpoint60.pt").exists(), "the training was too fast to be halted"
    number = json.loads((run / "jobs.json").read_text())["train mine/plain/seed-1"]["number"]

    def limit(minutes):
        words = ["scontrol", "update", f"JobId={number}", f"TimeLimit={minutes}"]
        subprocess.run(words, env=slurm, check=True)

    def log():
        return "".join(path.read_text() for path in run.parents[1].glob(f"jobs/{number}_0_log.*"))

    limit(minutes_since_start(number, slurm) + 2)
    wait(lambda: "Caught signal SIGUSR2" in log(), "the job is told to stop")
    limit(12)
    os.kill(training, signal.SIGCONT)
    wait_for_all_jobs(slurm)
    assert log().count("Starting with") == 2
    done = call(tmp_path, *only)
    assert done.returncode == 0, done.stderr[-2000:]
    assert same_weights(run, tmp_path / "results/paper/mine/plain/seed-1")
    shown = table(tmp_path, slurm, "--only", "plain", out=tmp_path / "jobs")
    assert cells(shown, "Plain") == cells(done.stdout, "Plain")


def pids(pattern):
    """Return the numbers of the processes whose command lines match a pattern."""
    done = subprocess.run(["pgrep", "-f", pattern], capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


def minutes_since_start(number, slurm):
    """Return how many whole minutes a job has run."""
    done = subprocess.run(
        ["squeue", "-h", "-j", number, "--format=%M"], capture_output=True, text=True, env=slurm, check=True
    )
    return int(done.stdout.strip().split(":")[-2])


def test_srun_starts_the_workers_of_a_training(table_folder, slurm, tmp_path):
    """Two workers on processors, each with half of the batches, make the updates of one."""
    resources = tmp_path / "resources.yaml"
    resources.write_text(yaml.safe_dump({"gpus": 2, "cpus": 1, "hours": 0.2}))
    words = ["--only", "plain", "--run"]
    # On processors fairseq works with this backend alone.
    options = ["--", "--cpu", "--distributed-backend", "gloo", "--ddp-backend", "legacy_ddp"]
    options += ["--update-freq", "2"]
    two = ["--launcher", "slurm", "--resources", resources]
    table(table_folder, slurm, *words, *two, *options, out=tmp_path / "two")
    wait_for_all_jobs(slurm)
    one = call(table_folder, *words, *options, out=tmp_path / "one")
    assert one.returncode == 0, one.stderr[-2000:]
    found = {
        name: json.loads((tmp_path / name / "paper/mine/plain/seed-1/training.json").read_text())
        for name in ("one", "two")
    }
    assert found["one"]["updates"] == found["two"]["updates"]
    assert found["two"]["valid_perplexity"] == pytest.approx(found["one"]["valid_perplexity"], rel=0.05)
    log = (tmp_path / "two/paper/mine/plain/seed-1/train.log").read_text()
    assert log.startswith("$ srun ") and "--distributed-world-size 2 --update-freq 1" in log
    assert re.search("distributed init \\(rank 1\\): tcp://.* rank 1", log, re.DOTALL)


def test_all_jobs_of_a_large_table_are_submitted(table_folder, slurm, tmp_path):
    """All jobs, of 21 trainings and 22 evaluations, are in the queue of a node that starts none."""
    node = ["scontrol", "update", "NodeName=localhost"]
    given = ["--run", "--launcher", "slurm", "--resources", write_resources(tmp_path, minutes=12)]
    given += ["--seeds", ",".join(map(str, range(1, 8)))]
    subprocess.run([*node, "State=DRAIN", "Reason=test"], env=slurm, check=True)
    try:
        table(table_folder, slurm, *given, out=tmp_path)
        assert len(queue(slurm)) == 7 * 6 + 1
    finally:
        subprocess.run(["scancel", "--state", "PENDING"], env=slurm, check=True)
        wait(lambda: not queue(slurm), "all jobs are cancelled")
        subprocess.run([*node, "State=RESUME"], env=slurm, check=True)
