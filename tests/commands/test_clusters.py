"""Test jobs without a cluster: programs of Slurm are replaced, and jobs in the background are real."""

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from modular_fairseq.runs.cluster import jobs, status
from modular_fairseq.runs.cluster.resources import Resources
from modular_fairseq.training.checkpoints import load_checkpoint
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import only_one
from tests.ablations import ablation, result
from tests.fake_slurm import write_programs
from tests.processes import PATIENCE, wait_for
from tests.table_folders import command

pytest.importorskip("submitit", reason="submitit is missing: pip install 'modular_fairseq[cluster]'")

STEPS = [
    *("train mine/plain/seed-1", "evaluate mine/plain/seed-1 for mine", "train mine/experts/seed-1"),
    *("evaluate mine/experts/seed-1 for mine", "train mine/gates/seed-1"),
    *("evaluate mine/gates/seed-1 for mine", "evaluate mine/untuned/seed-1 for mine"),
]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put programs in the place of Slurm's on PATH, and return the folder where they keep jobs."""
    folder, programs = tmp_path / "slurm", tmp_path / "programs"
    write_programs(programs, folder)
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")
    return folder


def table(place, *args, out="jobs"):
    """Run `modular-fairseq table` in this process."""
    cli.main(command(place, *args, out=out)[3:])


def options_of(slurm):
    """Return the options of each job that was submitted, in their order."""
    texts = [(slurm / f"{n}.sh").read_text() for n in range(1, len(list(slurm.glob("*.sh"))) + 1)]
    return [dict(re.findall(r"^#SBATCH --([\w-]+)(?:=(.*))?$", text, re.MULTILINE)) for text in texts]


def command_of(place, number, out="jobs"):
    """Return the words that the job of this number runs after the name of the table's file."""
    import submitit

    pickle = place / out / "paper/mine/jobs" / f"{number}_submitted.pkl"
    words = submitit.core.utils.DelayedSubmission.load(pickle).function.command
    return words[words.index("table") + 2 :]


def test_a_job_for_each_training_and_evaluation_with_what_it_waits_for(table_folder, slurm, capsys):
    (slurm / "resources.yaml").write_text(
        "{partition: gpu, gpus: 2, nodes: 2, cpus: 3, memory: 1.5, hours: 9, setup: [module load x], "
        "slurm: {constraint: a100}, evaluation: {hours: 2}}"
    )
    given = ["--resources", str(slurm / "resources.yaml"), "--account", "us", "--hours", "10"]
    table(table_folder, "--run", "--launcher", "slurm", *given, "--", "--update-freq", "4", "--fp16")
    shown = capsys.readouterr()
    assert "7 jobs were submitted, 0 are there already" in shown.err
    assert "--status" in shown.out and "mine/table.yaml" in shown.out
    found = options_of(slurm)
    assert [each["job-name"] for each in found] == [name.replace(" ", ":") for name in STEPS]
    assert [each.get("dependency") for each in found] == [
        None,
        "afterok:1",
        None,
        "afterok:3",
        "afterok:3",
        "afterok:5",
        "afterok:3",
    ]
    common = {"partition": "gpu", "account": "us", "mem": "1536M", "constraint": "a100", "requeue": ""}
    training = {"nodes": "2", "gpus-per-node": "1", "ntasks-per-node": "1", "cpus-per-task": "3"}
    for each in found:
        assert common.items() <= each.items() and each["signal"] == "B:USR2@30"
        assert each["kill-on-invalid-dep"] == "yes"
        own = {"time": "600", **training} if each["job-name"].startswith("train") else {"time": "120"}
        assert own.items() <= each.items()
    script = (slurm / "1.sh").read_text()
    assert "\ntrap '' USR2\nmodule load x\n" in script and "\nsrun" not in script and "\nexec " in script
    words = command_of(table_folder, 5)
    assert words[words.index("--train-run") :] == [
        *("--train-run", "mine/gates/seed-1", "--gpus", "2", "--srun"),
        *("--", "--update-freq", "4", "--fp16"),
    ]


def test_the_same_command_submits_only_what_no_job_works_on(table_folder, slurm, capsys, tmp_path):
    out = str(tmp_path / "again")
    for expected in ("7 jobs were submitted, 0", "0 jobs were submitted, 7", "5 jobs were submitted, 2"):
        table(table_folder, "--run", "--launcher", "slurm", out=out)
        assert expected in capsys.readouterr().err
        alive = [n for n in range(1, 8) if not (expected.startswith("0") and n in (3, 5))]
        (slurm / "queue").write_text("".join(f"{n}|PENDING|Priority\n" for n in alive))
    # Jobs 3 and 5 are gone, so those that wait for them would never start.
    assert (slurm / "cancelled").read_text().split() == ["4", "6", "7"]
    assert [(each["job-name"], each.get("dependency")) for each in options_of(slurm)[7:]] == [
        ("train:mine/experts/seed-1", None),
        ("evaluate:mine/experts/seed-1:for:mine", "afterok:8"),
        ("train:mine/gates/seed-1", "afterok:8"),
        ("evaluate:mine/gates/seed-1:for:mine", "afterok:10"),
        ("evaluate:mine/untuned/seed-1:for:mine", "afterok:8"),
    ]


def test_status_of_each_step(table_copy, slurm, capsys):
    """Of the four runs, one is done, one is trained, one has failed and one waits in the queue."""
    runs = table_copy / "results/paper/mine"
    for path in (runs / "experts/seed-1").glob("test*"):
        path.unlink()
    (runs / "gates/seed-1/training.json").unlink()
    log = table_copy / "job.err"
    log.write_text("submitit ERROR\nmodular-fairseq table: error: out of luck\nslurmstepd: error: killed\n")
    numbers = {STEPS[3]: "4", STEPS[4]: "5", STEPS[6]: "7"}
    for folder, names in (("experts", STEPS[3:4]), ("gates", STEPS[4:5]), ("untuned", STEPS[6:7])):
        content = {name: {"number": numbers[name], "log": str(log)} for name in names}
        (runs / folder / "seed-1").mkdir(exist_ok=True)
        (runs / folder / "seed-1" / jobs.JOBS).write_text(json.dumps(content))
    (runs / "untuned/seed-1/valid.json").unlink()
    (slurm / "queue").write_text("4|RUNNING|None\n7|PENDING|Priority\n")
    table(table_copy, "--status", out="results")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "Table mine: 1 running, 1 queued, 3 done, 1 failed, 1 not begun"
    found = {
        name: " ".join(line.removeprefix(name).split())
        for name in STEPS
        for line in lines
        if line.startswith(name)
    }
    assert found == {
        STEPS[0]: "done",
        STEPS[1]: "done",
        STEPS[2]: "done",
        STEPS[3]: "running 4",
        STEPS[4]: "failed 5 modular-fairseq table: error: out of luck",
        STEPS[5]: "not begun",
        STEPS[6]: "queued 7 Slurm: Priority",
    }


def test_a_run_that_another_process_trains_is_shown_with_its_epoch(table_folder, tmp_path, capsys):
    run = tmp_path / "elsewhere/paper/mine/plain/seed-1"
    run.mkdir(parents=True)
    line = (
        '2026-01-01 10:00:00 | INFO | valid | {"epoch": 2, "valid_ppl": "7.5", "valid_num_updates": "16"}\n'
    )
    (run / "train.log").write_text(line + "something else\n")
    with only_one(run):
        table(table_folder, "--status", out=str(tmp_path / "elsewhere"))
    shown = capsys.readouterr().out
    assert re.search(
        r"train mine/plain/seed-1 +running +epoch 2, update 16: validation perplexity 7.5", shown
    )
    assert "Table mine: 1 running, 6 not begun" in shown
    table(table_folder, "--status", out=str(tmp_path / "elsewhere"))
    assert "Table mine: 1 stopped, 6 not begun" in capsys.readouterr().out


def test_a_job_that_ends_while_slurm_is_asked_has_not_failed(tmp_path, monkeypatch):
    """Its result is there, and Slurm knows it no longer."""
    step = jobs.Step("train a", str(tmp_path), [], Resources())
    (tmp_path / jobs.JOBS).write_text(json.dumps({step.name: {"number": "1", "log": "none"}}))
    ended = []
    monkeypatch.setattr(status, "live", lambda: ended.append(True) or {})
    shown, at_work = status.overview("All", lambda: [step._replace(done=bool(ended))], lambda: None)
    assert shown.startswith("All: 1 done") and not at_work


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--train-run", "mine/plain/seed-1", "--srun"], "needs a job of Slurm"),
        (["--measure-run", "mine/plain/seed-1"], "is not trained yet"),
    ],
)
def test_a_job_uses_the_processors_that_slurm_has_given_it(
    table_folder, tmp_path, monkeypatch, words, sentence
):
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "3")
    monkeypatch.delenv("OMP_NUM_THREADS")
    with pytest.raises(SystemExit, match=sentence):
        table(table_folder, *words, out=str(tmp_path / "none"))
    assert os.environ["OMP_NUM_THREADS"] == "3"
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # so that it is restored


def test_a_run_whose_last_attempt_failed_is_shown_with_its_message(table_folder, tmp_path, capsys):
    out = tmp_path / "elsewhere"
    run = out / "paper/mine/plain/seed-1"
    with pytest.raises(SystemExit):
        table(table_folder, "--run", "--only", "plain", "--", "--train-subset", "none", out=str(out))
    capsys.readouterr()
    table(table_folder, "--status", "--", "--train-subset", "none", out=str(out))
    shown = capsys.readouterr().out
    assert "Table mine: 1 failed, 6 not begun" in shown
    assert re.search(r"train mine/plain/seed-1 +failed +mine/plain/seed-1: fairseq-train failed", shown)
    with only_one(run):
        table(table_folder, "--status", "--", "--train-subset", "none", out=str(out))
    assert "Table mine: 1 running, 6 not begun" in capsys.readouterr().out


def test_jobs_are_unknown_without_squeue_and_cancelled_without_a_log(tmp_path, monkeypatch):
    step = jobs.Step("train a", str(tmp_path), [], Resources())
    (tmp_path / jobs.JOBS).write_text(json.dumps({step.name: {"number": "7", "log": str(tmp_path / "no")}}))
    monkeypatch.setattr(jobs.shutil, "which", lambda name: None)
    shown, at_work = status.overview("All", lambda: [step], lambda: None)
    assert shown.startswith("All: 1 unknown") and "no squeue on this machine" in shown and not at_work
    monkeypatch.setattr(status, "live", dict)
    shown, _ = status.overview("All", lambda: [step], lambda: None)
    assert shown.startswith("All: 1 failed") and "the job was cancelled before it began" in shown


def test_a_display_survives_a_look_at_which_slurm_fails(capsys, monkeypatch):
    looks = iter([("first\n", True), UsageError("squeue failed"), ("second\n", False)])
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(status.time, "sleep", lambda seconds: None)

    def look():
        found = next(looks)
        if isinstance(found, UsageError):
            raise found
        return found

    status.watch(look, "the same")
    found = capsys.readouterr()
    assert found.out.count("first") == 2 and found.out.endswith("second\n") and "squeue failed" in found.err


def test_jobs_can_be_shown_without_submitting_them(table_folder, slurm, capsys, tmp_path):
    (slurm / "resources.yaml").write_text("{partition: gpu, cpus: 3, slurm: {constraint: a100}}")
    given = ["--launcher", "slurm", "--resources", str(slurm / "resources.yaml")]
    table(table_folder, "--dry-run", *given, out=str(tmp_path / "none"))
    lines = capsys.readouterr().out.splitlines()
    assert [name for name in STEPS if any(line.startswith(name) for line in lines)] == STEPS
    last = next(line for line in lines if line.startswith(STEPS[5]))
    assert STEPS[4] in last and "partition=gpu" in last and "cpus-per-task=3" in last
    assert "gpus-per-node=1" in last and "constraint=a100" in last and "time=1440" in last
    assert not options_of(slurm) and not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("slurm: {dependency: afterok:9}", "slurm sets dependency, which jobs have already; leave it out"),
        ("slurm: {cpus_per_task: 9}", "slurm sets cpus-per-task, which jobs have already"),
        ("slurm: {signal: INT@90}", "slurm: signal is 'INT@90'; it must be B:USR2@ and the seconds before"),
        ("slurm: {requeue: false}", "slurm sets requeue, which jobs have already"),
        ("slurm: {exclusive: false}", "slurm: exclusive is False; it must be text or a number, or true for"),
        ("slurm: {exclude: [a, b]}", "slurm: exclude is \\['a', 'b'\\]; it must be text or a number"),
        ("slurm: {1: 2}", "slurm has the key 1; give the name of an option of sbatch"),
        ("hours: 1.0e+300", "hours is 1e\\+300; it must be at most 876000, which is a century"),
    ],
)
def test_resources_that_would_break_a_job_are_refused(table_folder, slurm, tmp_path, content, sentence):
    (tmp_path / "resources.yaml").write_text(content)
    with pytest.raises(SystemExit, match=f"resources.yaml: {sentence}"):
        table(
            table_folder,
            *("--run", "--launcher", "slurm", "--resources", str(tmp_path / "resources.yaml")),
            out=str(tmp_path / "none"),
        )
    assert not options_of(slurm)


def test_jobs_have_further_options_of_sbatch(tmp_path, table_folder, slurm):
    (tmp_path / "resources.yaml").write_text("slurm: {exclusive: true, nice: 5, qos: low}")
    given = ["--launcher", "slurm", "--resources", str(tmp_path / "resources.yaml"), "--only", "plain"]
    table(table_folder, "--run", *given, out=str(tmp_path / "more"))
    assert all(
        {"exclusive": "", "nice": "5", "qos": "low"}.items() <= each.items() for each in options_of(slurm)
    )
    assert len(options_of(slurm)) == 2


def test_an_evaluation_that_runs_stays_if_its_training_ends_while_slurm_is_asked(
    tmp_path, slurm, monkeypatch
):
    """The training is done when the steps are looked at, so nothing is submitted again or cancelled."""
    training = jobs.Step("train a", str(tmp_path / "a"), ["true"], Resources(gpus=0))
    evaluation = training._replace(name="evaluate a", after=[training.name])
    (tmp_path / "a").mkdir()
    known = {step.name: {"number": n, "log": ""} for step, n in ((training, "1"), (evaluation, "2"))}
    (tmp_path / "a" / jobs.JOBS).write_text(json.dumps(known))
    asked = []
    monkeypatch.setattr(jobs, "live", lambda: asked.append(True) or {"2": ("RUNNING", "None")})
    look = lambda: [training._replace(done=bool(asked)), evaluation]  # noqa: E731
    jobs.submit(look, str(tmp_path / "jobs"))
    assert not (slurm / "cancelled").exists() and not options_of(slurm)


def test_ctrl_c_ends_the_display_alone(capsys, monkeypatch):
    shown = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(status.time, "sleep", lambda seconds: shown.append(seconds))

    def look():
        if len(shown) == 2:
            raise KeyboardInterrupt
        return f"look {len(shown)}\n", True

    with pytest.raises(SystemExit) as ended:
        status.watch(look, "the same")
    found = capsys.readouterr()
    assert ended.value.code == 130 and "look 0" in found.out and "look 1" in found.out
    assert "the jobs go on; this command shows them again: the same" in found.err


def test_a_job_in_the_background_makes_the_table(
    table_folder, finished_table, real_commands, tmp_path, capsys
):
    """It has begun when the command returns, keeps none of its output open, and ignores Ctrl-C."""
    out = str(tmp_path / "background")
    words = command(table_folder, "--run", "--launcher", "local", "--only", "plain", out=out)
    started = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )
    shown = started.communicate(timeout=PATIENCE)  # until the end of both pipes
    assert started.returncode == 0, shown[1]
    logs = str(tmp_path / "background/paper/mine/jobs")
    process = jobs.background(logs)
    assert process is not None
    assert "a job in the background was started" in shown[1] and f"kill -KILL {process}" in shown[1]
    os.killpg(started.pid, signal.SIGINT)
    with pytest.raises(SystemExit, match="a job in the background works on this already"):
        table(table_folder, "--run", "--launcher", "local", "--only", "plain", out=out)
    table(table_folder, "--status", "--only", "plain", out=out)
    assert f"Table mine, in the background as process {process}: " in capsys.readouterr().out
    wait_for(lambda: jobs.background(logs) is None)
    ours, theirs = (
        load_checkpoint(folder / "paper/mine/plain/seed-1/averaged.pt")["model"]
        for folder in (tmp_path / "background", table_folder / "results")
    )
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    capsys.readouterr()
    table(table_folder, "--status", "--only", "plain", out=out)
    assert "Table mine: 2 done" in capsys.readouterr().out


def test_trials_of_an_ablation_are_followed_by_a_job_that_goes_on(
    tmp_path, slurm, capsys, monkeypatch, ablation_data
):
    folder = tmp_path / "ablation"
    first = ablation(folder, data=ablation_data)
    with first.begun():
        pass
    again = ["ablate", "--out", str(folder), "--launcher", "slurm", "--partition", "p", "--gpus", "0"]
    cli.main(again)
    assert "6 jobs were submitted" in capsys.readouterr().err
    found = options_of(slurm)
    assert not any("gpus-per-node" in each for each in found)
    assert [each["job-name"].split(":")[-1] for each in found[:2]] == [
        "baseline-seed1",
        "residual_connections-seed1",
    ]
    assert found[5]["dependency"] == "afterany:1:2:3:4:5" and found[5]["partition"] == "p"
    (slurm / "queue").write_text("6|RUNNING|None\n")
    for trial in list(first.known())[:4]:
        os.makedirs(trial.run.folder, exist_ok=True)
        (tmp_path / "ablation" / trial.run.name / "result.json").write_text(json.dumps(result(5.0)))
    with pytest.raises(SystemExit, match="multihead-seed1 failed; --status says why, and the same command"):
        cli.main([*again, "--go-on"])
    last = list(first.known())[4]
    (tmp_path / "ablation" / last.run.name / "result.json").write_text(json.dumps(result(4.0)))
    with monkeypatch.context() as job:
        job.setenv("SLURM_JOB_ID", "6")
        cli.main([*again, "--go-on"])
    assert "4 jobs were submitted" in capsys.readouterr().err
    assert options_of(slurm)[9]["dependency"] == "afterany:7:8:9"
    import submitit

    pickle = folder / "jobs/10_submitted.pkl"
    words = submitit.core.utils.DelayedSubmission.load(pickle).function.command
    assert words[words.index("--go-on") :] == ["--go-on", "--gpus", "0", "--partition", "p"]
    (slurm / "queue").write_text("7|RUNNING|None\n")
    cli.main(["ablate", "--out", str(folder), "--status"])
    shown = capsys.readouterr().out
    assert re.search(r"submit the next iteration +failed +10 ", shown) and " 1 running, " in shown


def test_an_ablation_has_no_jobs_that_only_evaluate(tmp_path, slurm, ablation_data):
    folder = tmp_path / "ablation"
    with ablation(folder, data=ablation_data).begun():
        pass
    (tmp_path / "resources.yaml").write_text("{hours: 3, evaluation: {hours: 2, partition: p}}")
    words = ["ablate", "--out", str(folder), "--launcher", "slurm", "--resources"]
    with pytest.raises(SystemExit, match="resources.yaml: hours of evaluation have no effect on an ablation"):
        cli.main([*words, str(tmp_path / "resources.yaml")])


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        (["--launcher", "slurm"], "--launcher slurm has no effect without making runs; leave it out"),
        (["--run", "--launcher", "slurm", "--jobs", "2"], "--jobs has no effect with --launcher slurm"),
        (["--run", "--partition", "p"], "--partition has no effect without --launcher slurm; leave it out"),
        (["--status", "--gpus", "1"], "--gpus 1 has no effect without making runs; leave it out"),
        (["--run", "--gpus", "0"], "--gpus 0: the number must be at least 1"),
        (["--run", "--gpus", "99"], "--gpus 99: torch sees [0-9]+ on this machine; give at most as many"),
        (["--dry-run", "--launcher", "local"], "--launcher local has no effect without making runs"),
        (
            ["--dry-run", "--", "--update-freq", "x"],
            "fairseq-train refuses its options: argument --update-freq",
        ),
        (["--dry-run", "--", "--update-freq", "-8"], "--update-freq -8: give a whole number of batches"),
        (["--dry-run", "--gpus", "2"], "2 GPUs cannot share --update-freq 1, .* give --gpus 1$"),
        (
            ["--dry-run", "--gpus", "5", "--", "--update-freq", "4"],
            "5 GPUs cannot share --update-freq 4, the batches of an update; give --gpus 1 or 2 or 4$",
        ),
        (["--run", "--launcher", "slurm", "--resources", "nowhere"], "nowhere: cannot be read .*example$"),
        (["--run", "--launcher", "slurm", "--hours", "nan"], "hours is nan; it must be more than 0, and fin"),
        (["--run", "--launcher", "slurm", "--hours", "inf"], "hours is inf; it must be more than 0, and fin"),
        (["--train-run", "mine/other/seed-1"], "table.yaml: there is no run mine/other/seed-1 any more"),
        (["--run", "--", "--distributed-world-size", "2"], "cannot be given after the --"),
        (["--train-run", "mine/gates/seed-1"], "starts from mine/experts/seed-1, which is not finished"),
        (["--measure-run", "mine/plain/seed-1"], "plain/seed-1 is not trained yet, so it cannot be measured"),
        (
            ["--train-run", "mine/plain/seed-1", "--srun"],
            "--srun: mine/plain/seed-1 needs a job of Slurm with 1 tasks; here are none",
        ),
    ],
)
def test_what_cannot_work_is_refused(table_folder, args, sentence, tmp_path):
    with pytest.raises(SystemExit, match=sentence):
        table(table_folder, *args, out=str(tmp_path / "none"))
    assert not (tmp_path / "none").exists() or not list((tmp_path / "none").rglob("*.pt"))


def test_a_job_without_gpus_has_one_node():
    with pytest.raises(UsageError, match="nodes is 2; a job without GPUs has one node, so give nodes 1"):
        Resources(gpus=0, nodes=2)
    assert Resources(gpus=0, nodes=1).workers == 1


def test_without_slurm_there_is_a_sentence(table_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(jobs.shutil, "which", lambda name: None)
    with pytest.raises(SystemExit, match="there is no sbatch on this machine; log in to the cluster"):
        table(table_folder, "--run", "--launcher", "slurm", out=str(tmp_path / "none"))


def test_an_update_has_as_many_batches_with_several_gpus(table_folder, capsys):
    table(table_folder, "--dry-run", "--gpus", "2", "--", "--update-freq", "8")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fairseq-train")]
    assert len(lines) == 3
    for line in lines:
        assert "--distributed-world-size 2 --update-freq 4" in line


@pytest.mark.parametrize(
    ("gpus", "options", "given"),
    [
        (2, [], False),
        (4, [], True),
        (4, ["--ddp-backend", "legacy_ddp"], False),
        (4, ["--find-unused-parameters"], True),
    ],
)
def test_gradients_keep_their_order_from_three_workers_on(table_folder, capsys, gpus, options, given):
    """A training that is continued otherwise differs by rounding (docs/reliability.md)."""
    table(table_folder, "--dry-run", "--gpus", str(gpus), "--", "--update-freq", "8", *options)
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("fairseq-train")]
    assert lines and all(line.count("--find-unused-parameters") == given for line in lines)


def test_a_job_ends_with_its_command_and_its_log_says_why(tmp_path, capfd):
    """The process of a job shows the error of its command, and no traceback."""
    from modular_fairseq_cli.cluster_task import Task

    program = [sys.executable, "-c", "import sys; sys.exit('no luck')"]
    task = Task(program, str(tmp_path), str(tmp_path), hours=1)
    with pytest.raises(SystemExit) as ended:
        task()
    shown = capfd.readouterr()
    assert ended.value.code == 1 and "no luck" in shown.err and "Traceback" not in shown.err + shown.out


def test_a_job_waits_for_a_process_that_only_looks_at_its_lock(tmp_path):
    from modular_fairseq_cli.cluster_task import Task

    lock = tmp_path / "lock"
    lock.touch()
    with open(lock) as looks:
        fcntl.flock(looks, fcntl.LOCK_SH)
        threading.Timer(0.2, fcntl.flock, (looks, fcntl.LOCK_UN)).start()
        Task([sys.executable, "-c", ""], str(tmp_path), str(tmp_path), 1.0, str(lock))()
    assert lock.read_text() == str(os.getpid())


def test_a_job_that_saved_nothing_in_its_time_is_not_started_again(tmp_path, capsys):
    from modular_fairseq_cli.cluster_task import Task

    task = Task([sys.executable, "-c", ""], str(tmp_path), str(tmp_path / "run"), hours=0.01)
    task()
    task.began -= 36
    assert task.checkpoint() is None
    assert "the job has saved nothing in its 0.01 hours" in capsys.readouterr().err
    (tmp_path / "run").mkdir()
    (tmp_path / "run/checkpoint_last.pt").touch()
    assert task.checkpoint().function is task
    task.before, task.began = task.saved(), time.time()  # it was pre-empted early
    task.hours = 1.0
    assert task.checkpoint().function is task
