"""Test that `modular-fairseq evidence` makes the registered runs once, records them and tests the claims."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml

from modular_fairseq.runs.corpus import Corpus
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from tests.places import ROOT

COMMIT = "0123abc"


def claims(place):
    """Write claims.yaml about the table of `table_folder`, with seeds 1 and 2."""
    claim = {
        "name": "experts-above-plain",
        "registered": "2026-11-22",
        "kind": "primary",
        "paper": "table 1",
        "says": "Experts are better.",
        "table": str(place / "configs/mine/table.yaml"),
        "quantity": "bleu",
        "row": "experts",
        "baseline": "plain",
        "expected": "above",
        "seeds": [1, 2],
        "differ": ["attention_type", "mae_*"],
    }
    alone = claim | {
        "name": "one-expert-loses",
        "kind": "secondary",
        "row": "specialised",
        "baseline": "experts",
        "differ": [],
    }
    sums = Corpus(str(place / "data/toy.de-en/bin"), ("de", "en")).sums()
    spec = {
        "commit": COMMIT,
        "scale": "paper",
        "corpora": {"toy.de-en": {"command": "modular-fairseq prepare", "sums": sums}},
        "changes": [],
        "claims": [claim, alone],
    }
    path = place / "claims.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def evidence(place, *args):
    command = ["evidence", place / "claims.yaml", "--data", place / "data", "--out", place / "runs", *args]
    words = [sys.executable, "-m", "modular_fairseq_cli", *map(str, command)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT)


@pytest.fixture(scope="session")
def made(table_folder, tmp_path_factory, fast_commands):
    """Make all runs of the claims, and return their folder and the finished process."""
    place = tmp_path_factory.mktemp("evidence")
    for name in ("data", "configs"):
        shutil.copytree(table_folder / name, place / name)
    claims(place)
    done = evidence(place, "--run", "--commit", COMMIT, "--jobs", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    return place, done


@pytest.fixture
def place(made, tmp_path):
    """Return a copy of the folder that a test may change. It has records, but no runs."""
    for name in ("data", "configs", "evidence"):
        shutil.copytree(made[0] / name, tmp_path / name)
    shutil.copy(made[0] / "claims.yaml", tmp_path)
    return tmp_path


def record(place, row="experts", seed=1):
    return json.loads((place / f"evidence/mine/{row}/seed-{seed}.json").read_text())


def test_each_run_leaves_a_record_without_text(made):
    place, _ = made
    found = record(place)
    assert found["commit"] == COMMIT and set(found["claims"]) == {"experts-above-plain", "one-expert-loses"}
    assert found["made"]["device"] == "cpu"
    assert set(record(place, "plain")["claims"]) == {"experts-above-plain"}
    training = json.loads((place / "runs/paper/mine/experts/seed-1/training.json").read_text())
    assert found["training"] == training and found["core_minutes"] > 0
    curve = found["curves"]["valid"]["ppl"]
    assert len(curve) == 4 and curve[-1][0] > training["updates"] / 2
    rows = found["rows"]
    (whole,), (alone,) = (
        next(each for row, each in rows.items() if row.endswith(name))
        for name in ("/experts", "/specialised")
    )
    results = json.loads((place / "runs/paper/mine/experts/seed-1/test.json").read_text())
    assert whole["bleu"] == results["bleu"] and whole["chrf"] == results["chrf"] != alone["chrf"]
    size = len((place / "data/toy.de-en/raw/test.en").read_text().splitlines())
    assert len(whole["by_sentence"]) == size
    assert abs(sum(whole["by_sentence"]) / size - whole["bleu"]) < 5
    words = set((place / "data/toy.de-en/raw/test.en").read_text().split())
    text = (place / "evidence/mine/experts/seed-1.json").read_text()
    assert words and not [word for word in words if f" {word} " in text or f'"{word}"' in text]


def test_the_table_shows_differences_and_verdicts(made):
    place, done = made
    values = [[record(place, row, seed)["rows"] for seed in (1, 2)] for row in ("experts", "plain")]
    scores = [[next(iter(rows.values()))[0]["bleu"] for rows in side] for side in values]
    gap = sum(scores[0]) / 2 - sum(scores[1]) / 2
    (line,) = [line for line in done.stdout.splitlines() if "experts above plain" in line]
    assert f"{gap:+.2f} [" in line and "primary claims" in done.stdout
    for kind in ("txt", "md", "tsv"):
        assert (place / f"evidence/table.{kind}").exists()
    names, *rows = [line.split("\t") for line in (place / "evidence/table.tsv").read_text().splitlines()]
    assert [row[names.index("seeds")] for row in rows] == ["2", "2"]
    assert float(rows[0][names.index("difference")]) == pytest.approx(gap)
    assert rows[0][names.index("verdict")] in ("holds", "fails", "open")
    assert rows[1][names.index("verdict")] == ""


def test_runs_with_records_are_not_made_again(place):
    before = (place / "evidence/mine/plain/seed-2.json").read_bytes()
    done = evidence(place, "--run", "--commit", COMMIT)
    assert done.returncode == 0 and "experts above plain" in done.stdout, done.stderr[-2000:]
    assert not (place / "runs").exists()
    assert (place / "evidence/mine/plain/seed-2.json").read_bytes() == before


def test_status_counts_runs_in_their_order(place, capsys):
    def status():
        cli.main(["evidence", str(place / "claims.yaml"), "--data", str(place / "data"), "--status"])
        return capsys.readouterr().out

    assert "primary: 4 of 4 runs are done" in status() and "all runs are done" in status()
    for row in ("plain", "experts"):
        (place / f"evidence/mine/{row}/seed-2.json").unlink()
    text = status()
    assert "primary: 2 of 4 runs are done\nsecondary: 0 of 0 runs are done" in text
    assert "next: mine/plain/seed-2, mine/experts/seed-2" in text and "core-hours were spent" in text


def change(place, **changes):
    """Give claims.yaml other values."""
    path = place / "claims.yaml"
    path.write_text(yaml.safe_dump(yaml.safe_load(path.read_text()) | changes))


def test_a_record_without_a_row_that_is_needed_is_not_done(place):
    path = place / "evidence/mine/experts/seed-2.json"
    found = json.loads(path.read_text())
    found["rows"] = {row: each for row, each in found["rows"].items() if not row.endswith("/specialised")}
    path.write_text(json.dumps(found))
    assert "primary: 3 of 4 runs are done" in evidence(place, "--status").stdout


def refused(place, *args):
    with pytest.raises(SystemExit) as error:
        cli.main(["evidence", str(place / "claims.yaml"), "--data", str(place / "data"), *args])
    return str(error.value)


def test_results_of_another_commit_or_corpus_are_refused(place):
    change(place, commit="beef")
    assert "was made by commit 0123abc, but" in refused(place) and "registers beef" in refused(place)
    assert "--commit 0123abc:" in refused(place, "--run", "--commit", COMMIT)
    moved = {"date": "2026-12-24", "reason": "a defect of MAE", "before": COMMIT}
    change(place, commit="beef", changes=[moved])
    assert evidence(place).returncode == 0
    change(place, commit="beef", changes=[moved | {"rows": ["mine/experts"]}])
    done = evidence(place, "--status")
    assert "primary: 2 of 4 runs are done" in done.stdout, done.stderr[-2000:]
    change(place, corpora={"toy.de-en": {"command": "x", "sums": {"train de": "other"}}})
    assert "is of another corpus toy.de-en than" in refused(place)


def test_claims_that_were_changed_after_a_run_are_refused(place):
    spec = yaml.safe_load((place / "claims.yaml").read_text())
    spec["claims"][0]["margin"] = 0.5
    (place / "claims.yaml").write_text(yaml.safe_dump(spec))
    assert "claim experts-above-plain was changed after the run mine/plain/seed-1 was made" in refused(place)
    spec["changes"] = [{"date": "2020-01-01", "reason": "too early", "claims": ["experts-above-plain"]}]
    (place / "claims.yaml").write_text(yaml.safe_dump(spec))
    assert "was changed after" in refused(place)
    spec["changes"][0]["date"] = "2999-01-01"
    (place / "claims.yaml").write_text(yaml.safe_dump(spec))
    assert evidence(place).returncode == 0
    spec["claims"].append(spec["claims"][1] | {"name": "late", "quantity": "chrf"})
    (place / "claims.yaml").write_text(yaml.safe_dump(spec))
    assert "claim late was registered after the run mine/experts/seed-1 was made" in refused(place)


def test_rows_that_do_not_exist_or_differ_in_more_are_refused(place):
    spec = yaml.safe_load((place / "claims.yaml").read_text())
    spec["claims"][0]["differ"] = ["attention_type"]
    (place / "claims.yaml").write_text(yaml.safe_dump(spec))
    assert "rows experts and plain differ in mae_gate_interval" in refused(place)
    spec["claims"][0] |= {"row": "exprts"}
    (place / "claims.yaml").write_text(yaml.safe_dump(spec))
    assert "names the row exprts, which table" in refused(place)


@pytest.mark.parametrize(
    "words", [["--jobs", "2"], ["--device", "cpu"], ["--commit", COMMIT], ["--status", "--device", "cpu"]]
)
def test_options_of_run_are_refused_without_it(place, words):
    option, value = words[-2:]
    assert f"{option} {value} has no effect without --run; leave it out" in refused(place, *words)


def test_a_corpus_that_differs_is_refused_before_any_run(place):
    shutil.rmtree(place / "evidence")
    change(place, corpora={"toy.de-en": {"command": "x", "sums": {"train de": "other"}}})
    assert "differs from the corpus toy.de-en that" in refused(place, "--run", "--commit", COMMIT)
    assert "there are no records in" in refused(place)


def test_corpora_are_prepared_by_their_registered_commands(tmp_path, monkeypatch):
    called = []
    monkeypatch.setattr(
        "modular_fairseq.runs.evidence.command.call_command", lambda *words: called.append(words)
    )
    (tmp_path / "claims.yaml").write_text(
        yaml.safe_dump(
            {
                **{"commit": COMMIT, "scale": "cpu", "changes": [], "claims": []},
                "corpora": {
                    "c": {"command": "modular-fairseq prepare raw {text}/c --out {data}/c", "sums": {}}
                },
            }
        )
    )
    cli.main(["evidence", str(tmp_path / "claims.yaml"), "--data", "D", "--prepare", "T x"])
    assert called == [("prepare", "raw", "T x/c", "--out", "D/c")]


def test_a_gpu_gets_as_many_runs_as_fit(monkeypatch):
    from modular_fairseq.runs.evidence import command

    assert command.default_jobs("cpu") == 1
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="--device cuda: torch sees no GPU; use --device cpu"):
        command.default_jobs("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(command, "processors", lambda: 16)
    for free, jobs in ((139, 16), (13, 3), (2, 1)):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda free=free: (free * 2**30, 140 * 2**30))
        assert command.default_jobs("cuda") == jobs


def test_the_claims_of_the_project_can_be_read_and_planned(tmp_path):
    from modular_fairseq.runs.evidence.claims import read_claims
    from modular_fairseq.runs.evidence.jobs import Plan

    register = read_claims(ROOT / "results/claims.yaml")
    plan = Plan(register, str(tmp_path), str(tmp_path))
    primary = [job for job in plan.jobs if job.primary]
    assert [job.seed for job in primary] == sorted(job.seed for job in primary)
    assert len(primary) == 5 * 7
    with pytest.raises(UsageError):
        plan.row(register.claims[0], "none")
