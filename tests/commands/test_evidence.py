"""Test that `modular-fairseq evidence` makes the registered runs once, records them and tests the claims."""

import contextlib
import io
import json
import lzma
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import yaml
from sacrebleu.metrics import BLEU

from modular_fairseq.runs.corpus import Corpus
from modular_fairseq.runs.evidence import making, processor_time
from modular_fairseq.runs.evidence.by_unit import unpacked
from modular_fairseq.runs.evidence.jobs import Plan
from modular_fairseq.runs.evidence.reading import read_claims
from modular_fairseq_cli import main as cli
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.processes import processor_name
from tests.places import ROOT
from tests.processes import PATIENCE, wait_for
from tests.refusals import refusal

COMMIT = "0123456789abcdef0123456789abcdef01234567"
ANOTHER = COMMIT[::-1]


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
        "differ": ["mae_inference"],
    }
    tuned = alone | {
        "name": "tuning-helps",
        "row": "gates-50",
        "baseline": "untuned",
        "differ": ["mae_finetune", "mae_gate_interval"],
    }
    table = place / "configs/mine/table.yaml"
    content = yaml.safe_load(table.read_text()) | {"start_seed": "same"}
    content["rows"].append({"name": "gates-50", "config": "gates.yaml", "percent": 50, "subset": "valid"})
    table.write_text(yaml.safe_dump(content))
    sums = Corpus(str(place / "data/toy.de-en/bin"), ("de", "en")).contents()
    spec = {
        "commit": COMMIT,
        "scale": "paper",
        "corpora": {"toy.de-en": {"command": "modular-fairseq prepare", "sums": sums}},
        "changes": [],
        "claims": [claim, alone, tuned],
    }
    path = place / "claims.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


def words_of(place, *args):
    command = ["evidence", place / "claims.yaml", "--data", place / "data", "--out", place / "runs", *args]
    return [*map(str, command)]


def evidence(place, *args):
    words = [sys.executable, "-m", "modular_fairseq_cli", *words_of(place, *args)]
    return subprocess.run(words, capture_output=True, text=True, cwd=ROOT, timeout=PATIENCE)


def make(place, *args):
    """Make runs as if the code were an unchanged clone of the registered commit and the claims committed."""
    told = {"rev-parse": COMMIT, "ls-files": "claims.yaml"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(making, "git", lambda folder, word, *more: told.get(word, ""))
        cli.main(words_of(place, "--run", "--commit", COMMIT, *args))


@pytest.fixture(scope="session")
def made(table_folder, tmp_path_factory, fast_commands):
    """Make all runs of the claims, and return their folder and what the command printed."""
    place = tmp_path_factory.mktemp("evidence")
    for name in ("data", "configs"):
        shutil.copytree(table_folder / name, place / name)
    claims(place)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        make(place, "--jobs", "2")
    return place, printed.getvalue()


@pytest.fixture
def place(made, tmp_path):
    """Return a copy of the folder that a test may change. It has records, but no runs."""
    for name in ("data", "configs", "evidence"):
        shutil.copytree(made[0] / name, tmp_path / name)
    text = (made[0] / "claims.yaml").read_text()
    (tmp_path / "claims.yaml").write_text(text.replace(str(made[0]), str(tmp_path)))
    return tmp_path


def record(place, row="experts", seed=1):
    return json.loads((place / f"evidence/mine/{row}/seed-{seed}.json").read_text())


def test_each_run_leaves_a_record_without_text(made):
    place, _ = made
    found = record(place)
    assert found["commit"] == COMMIT and set(found["claims"]) == {"experts-above-plain", "one-expert-loses"}
    assert found["start"] is None and found["settings"]["model.attention_type"] == "mae"
    assert found["corpus"].keys() > {"raw/test.en", "bin/dict.de.txt", "bin/train.de-en.de.bin"}
    assert found["made"]["device"] == "cpu" and found["made"]["processor"] == processor_name()
    assert found["made"]["instructions"] == torch.backends.cpu.get_cpu_capability()
    assert set(record(place, "plain")["claims"]) == {"experts-above-plain"}
    training = json.loads((place / f"runs/{COMMIT}/paper/mine/experts/seed-1/training.json").read_text())
    seconds = json.loads((place / f"runs/{COMMIT}/paper/mine/experts/seed-1" / making.TIME).read_text())
    assert found["training"] == training
    assert seconds > 0 and found["core_minutes"] == round(seconds / 60, 2)
    curve = found["curves"]["valid"]["ppl"]
    assert len(curve) == 4 and curve[-1][0] > training["updates"] / 2
    rows = found["rows"]
    (whole,), (alone,) = (
        next(each for row, each in rows.items() if row.endswith(name))
        for name in ("/experts", "/specialised")
    )
    results = json.loads((place / f"runs/{COMMIT}/paper/mine/experts/seed-1/test.json").read_text())
    assert whole["bleu"] == results["bleu"] and whole["chrf"] == results["chrf"] != alone["chrf"]
    size = len((place / "data/toy.de-en/raw/test.en").read_text().splitlines())
    counts = unpacked(whole["counts"]).tolist()
    assert len(counts) == size
    lengths, references, *matches = map(sum, zip(*counts, strict=True))
    numbers = [sum(max(0, each[0] - n) for each in counts) for n in range(4)]
    assert BLEU.compute_bleu(matches, numbers, lengths, references).score == pytest.approx(whole["bleu"])
    assert {"ppl", "lr", "gate_entropy"} <= found["curves"]["train"].keys()
    assert found["curves"]["train_inner"].keys() == {"ppl"}
    words = set((place / "data/toy.de-en/raw/test.en").read_text().split())
    text = (place / "evidence/mine/experts/seed-1.json").read_text()
    assert words and not [word for word in words if f" {word} " in text or f'"{word}"' in text]


def test_folders_have_neutral_names_and_logs_of_primary_claims_are_kept(made):
    place, _ = made
    command, *others = record(place)["commands"]
    assert str(place) not in " ".join([command, *others])
    folder = f"evidence/runs/{COMMIT}/paper/mine/experts/seed-1/"
    assert command.startswith("fairseq-train evidence/data/toy.de-en/bin ")
    assert f"--user-dir evidence/{COMMIT}/modular_fairseq --save-dir {folder} " in command
    log = lzma.decompress((place / "evidence/mine/experts/seed-1.log.xz").read_bytes()).decode()
    whole = (place / folder.removeprefix("evidence/") / "train.log").read_text()
    assert str(place) in whole and str(place) not in log and "evidence/data/toy.de-en/bin" in log
    assert len(log.splitlines()) == len(whole.splitlines())
    kept = {path.parent.name for path in (place / "evidence/mine").glob("*/*.log.*")}
    assert kept == {"experts", "plain"}  # fine-tuned runs are for secondary claims


def test_a_fine_tuned_run_starts_from_its_own_seed_and_names_the_checkpoint(made):
    place, _ = made
    for row, trains in (("gates-50", True), ("untuned", False)):
        for seed in (1, 2):
            found, start = record(place, row, seed), record(place, "experts", seed)
            assert found["start"] == {
                "run": f"mine/experts/seed-{seed}",
                "weights": start["weights"],
            }
            assert bool(found["curves"]) == trains and found["corpus"] == start["corpus"]
    assert record(place, "untuned", 1)["weights"] == record(place, "experts", 1)["weights"]
    assert record(place, "untuned", 1)["weights"] != record(place, "untuned", 2)["weights"]


def test_the_table_shows_differences_and_verdicts(made):
    place, printed = made
    values = [[record(place, row, seed)["rows"] for seed in (1, 2)] for row in ("experts", "plain")]
    scores = [[next(iter(rows.values()))[0]["bleu"] for rows in side] for side in values]
    gap = sum(scores[0]) / 2 - sum(scores[1]) / 2
    (line,) = [line for line in printed.splitlines() if "experts above plain" in line]
    assert f"{gap:+.2f} [" in line and "primary claims" in printed
    assert "In " in printed and "of 6 runs the last validation was the best" in printed
    for kind in ("txt", "md", "tsv"):
        assert (place / f"evidence/table.{kind}").exists()
    names, *rows = [line.split("\t") for line in (place / "evidence/table.tsv").read_text().splitlines()]
    assert [row[names.index("seeds")] for row in rows] == ["2"] * 3
    assert float(rows[0][names.index("difference")]) == pytest.approx(gap)
    assert rows[0][names.index("verdict")] in ("holds", "fails", "open")
    assert rows[1][names.index("verdict")] == ""


def test_any_two_rows_are_compared(place, capsys):
    cli.main(words_of(place))
    names, row, *_ = [line.split("\t") for line in (place / "evidence/table.tsv").read_text().splitlines()]
    claimed = dict(zip(names, row, strict=True))
    capsys.readouterr()
    for rows, sign, ends in (("experts plain", 1, ("low", "high")), ("plain experts", -1, ("high", "low"))):
        cli.main(words_of(place, "--compare", "mine", *rows.split()))
        text = capsys.readouterr().out
        (line,) = [line for line in text.splitlines() if line.startswith("BLEU ")]
        difference, low, high = (f"{sign * float(claimed[key]):+.2f}" for key in ("difference", *ends))
        assert line.split()[7:] == [difference, f"[{low},", f"{high}]†", "1,", "2", "experts-above-plain"]
        assert f"{rows.replace(' ', ' less ')} in table mine\n" in text and "chrF" in text
    assert "no record is of mine/other; give two rows of these: mine/" in refused(
        place, "--compare", "mine", "plain", "other"
    )


def test_the_page_tells_each_claim_with_its_runs(place, capsys):
    pytest.importorskip("matplotlib")
    (place / "about.md").write_text("These runs are of a toy.\n")
    cli.main(words_of(place, "--page", str(place / "page.md")))
    assert capsys.readouterr().out == f"{place / 'page.md'}: 8 of 8 runs\n"
    page = (place / "page.md").read_text()
    assert "\n\nThese runs are of a toy.\n\n## By paper\n" in page
    cli.main(words_of(place))
    names, *rows = [line.split("\t") for line in (place / "evidence/table.tsv").read_text().splitlines()]
    for row in rows:
        found = dict(zip(names, row, strict=True))
        difference, low, high = (f"{float(found[key]):+.2f}" for key in ("difference", "low", "high"))
        is_marked = float(found["high"]) - float(found["low"]) < 2 * float(found["half_by_sentences"])
        assert is_marked == (found["claim"] == "experts-above-plain")
        shown = f"{difference} [{low}, {high}]{'†' if is_marked else ''}"
        assert f"](#{found['claim']}) (table 1) | BLEU, mine |  | {shown} |" in page
        section = page.partition(f"### {found['claim']}\n")[2].partition("\n### ")[0]
        assert f"difference {shown}\n" in section
        if found["kind"] == "primary":
            assert f"- Verdict: {found['verdict']} (p = {float(found['p_holm']):.3f} for it" in section
        else:  # all of them say "above"
            word = "as claimed" if float(found["low"]) > 0 else "undecided"
            word = "the opposite" if float(found["high"]) < 0 else word
            assert f"- The interval says: {word}\n" in section
        assert (
            f"{place}/evidence/mine/experts/seed-{{1,2}}.json" in section
        ) and f"TEXT --claims {place}/claims.yaml --only mine`" in section
    scores = [record(place, "experts", seed)["rows"]["mine/experts"][0]["bleu"] for seed in (1, 2)]
    mean, deviation = np.mean(scores), np.std(scores, ddof=1)
    assert f"| {mean:.2f} ± {deviation:.2f} |" in page and "Corpus here: `toy.de-en`." in page
    plain, experts = (record(place, row, 1)["training"]["parameters"] for row in ("plain", "experts"))
    assert experts > plain and f"(`--scale paper`, {plain:,} to {experts:,} parameters)" in page
    rows = "--only plain --only experts --seeds 1,2 --run"
    assert f"`modular-fairseq table {place}/configs/mine/table.yaml --scale paper {rows}` trains" in page
    assert "8 of 8 runs are done" in page and "still to be made" not in page and "diverged" not in page
    assert "no runs of both rows" not in page
    pictures = re.findall(r"\(page/(.*?)\)", page)
    assert "mine.plain.ppl.svg" in pictures  # the curves of the rows that the baseline "plain" has
    assert sorted(pictures) == sorted(path.name for path in (place / "page").iterdir())


def test_the_page_names_runs_that_diverged(place):
    pytest.importorskip("matplotlib")
    nothing = {"weights": None, "training": None, "curves": {}, "rows": {}}
    spoil(place, lambda found: found | nothing | {"diverged": True}, "mine/plain/seed-2")
    cli.main(words_of(place, "--page", str(place / "page.md")))
    page = (place / "page.md").read_text()
    assert "These runs diverged, and means and figures leave them out: `mine/plain/seed-2`." in page
    assert "- Verdict: seed 2 diverged\n" in page and "mine.plain.ppl.svg" in page
    with pytest.raises(SystemExit, match="--page : give a file that ends in .md"):
        cli.main(words_of(place, "--page", ""))


def test_the_page_tells_of_changes_of_the_row_that_another_table_trained(place):
    pytest.importorskip("matplotlib")
    spec = edit(place)
    entry = {"date": "2026-11-22", "reason": "It was trained anew.", "before": ANOTHER}
    edit(place, changes=[*spec["changes"], entry | {"rows": ["mine/experts"]}])
    cli.main(words_of(place, "--page", str(place / "page.md")))
    section = (place / "page.md").read_text().partition("### one-expert-loses\n")[2].partition("\n### ")[0]
    assert (
        "it or its rows were [changed](#what-was-changed-after-it-was-registered) on 2026-11-22 (entry 1)"
        in section
    )


def test_the_page_says_why_a_claim_has_no_runs(place):
    pytest.importorskip("matplotlib")
    shutil.rmtree(place / "evidence/mine/plain")
    cli.main(words_of(place, "--page", str(place / "page.md")))
    waiting = (place / "page.md").read_text().partition("no runs of both rows")[2]
    assert "| claim | quantity | difference in the paper |\n" in waiting
    assert "| Experts are better. (table 1) | BLEU, mine |  |\n" in waiting
    text = (place / "claims.yaml").read_text()
    remark = "  remark: (2026-11-30) Two runs take too long.\n  says: Experts are better.\n"
    (place / "claims.yaml").write_text(text.replace("  says: Experts are better.\n", remark, 1))
    cli.main(words_of(place, "--page", str(place / "page.md")))
    waiting = (place / "page.md").read_text().partition("no runs of both rows")[2]
    assert "| claim | quantity | difference in the paper | remark |\n| --- | --- | ---: | --- |\n" in waiting
    assert (
        "| Experts are better. (table 1) | BLEU, mine |  | (2026-11-30) Two runs take too long. |\n"
        in waiting
    )


@pytest.mark.parametrize(("folder", "name"), [("results", "results"), ("results/narrow", "results-narrow")])
def test_a_page_of_results_is_that_of_the_records(tmp_path, monkeypatch, folder, name):
    from modular_fairseq.runs.evidence.page import page

    monkeypatch.chdir(ROOT)
    plan = Plan(read_claims(f"{folder}/claims.yaml"), str(tmp_path), str(tmp_path))
    expected = page(plan, plan.records(f"{folder}/evidence"), name)
    assert (ROOT / f"docs/{name}.md").read_text() == expected, (
        f"make it again: modular-fairseq evidence {folder}/claims.yaml --page docs/{name}.md"
    )
    shown = re.findall(rf"\({name}/(.*?)\)", expected)
    assert sorted(shown) == sorted(path.name for path in (ROOT / "docs" / name).glob("*"))


def test_the_readme_says_what_the_page_of_results_does():
    page = (ROOT / "docs/results.md").read_text().partition("## By paper\n")[2].partition("\n## ")[0]
    lines = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines() if line[:1] == "|"
    ]
    said = {
        paper.split()[0]: primary or f"{secondary} (secondary)" for paper, primary, secondary in lines[2:]
    }
    readme = (ROOT / "README.md").read_text().partition("does it hold here?")[2]
    readme, _, links = readme.partition("\n\n")
    assert "\n[7]: docs/results.md#primary-claims\n[8]: docs/results.md#secondary-claims\n" in links
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in readme.splitlines()[2:]]
    link = re.compile(r"\[([^]]*)\](?:\[7\](?!.*secondary)|\[8\](?=.*secondary))")
    found = {name: link.sub(r"\1", row[-1]) for row in rows for name in said if name in row[0]}
    assert found == {name: text for name, text in said.items() if name != "questions"}


def test_runs_with_records_are_not_made_again(place, capsys):
    before = (place / "evidence/mine/plain/seed-2.json").read_bytes()
    make(place)
    assert "experts above plain" in capsys.readouterr().out
    assert not (place / "runs").exists()
    assert (place / "evidence/mine/plain/seed-2.json").read_bytes() == before


def test_a_run_whose_pair_was_made_on_another_device_is_left_out(place, capsys):
    pair = place / "evidence/mine/plain/seed-2.json"
    made = {"device": "cuda", "date": "2026-11-22"}
    pair.write_text(json.dumps(record(place, "plain", 2) | {"made": made}))
    missing = place / "evidence/mine/experts/seed-2.json"
    missing.unlink()
    make(place)
    said = (
        "1 of 1 runs are left out, such as mine/experts/seed-2: mine/plain/seed-2 of the same claim and seed"
    )
    assert said in capsys.readouterr().err and not missing.exists()


def test_a_run_that_was_begun_elsewhere_is_refused(made, place, capfd):
    """Its record could name one device and one version of torch only."""
    begun = Path(f"runs/{COMMIT}/paper/mine/plain/seed-2/begun.json")
    said = json.loads((made[0] / begun).read_text())
    whole = record(place, "plain", 2)["made"]
    assert said == {name: value for name, value in whole.items() if name != "date"} and not said["gpu"]
    begun = place / begun
    begun.parent.mkdir(parents=True)
    begun.write_text(json.dumps(said | {"device": "cuda", "torch": "1.0", "of a later version": 2}))
    (place / "evidence/mine/plain/seed-2.json").unlink()
    with pytest.raises(SystemExit, match="these runs failed: mine/plain/seed-2"):
        make(place)
    said = (
        "mine/plain/seed-2 was begun with device cuda, torch 1.0, of a later version 2; go on with it there"
    )
    assert (
        f"{said}, or remove {begun.parent} to" in capfd.readouterr().err
        and not (place / "evidence/mine/plain/seed-2.json").exists()
    )


def test_a_run_is_refused_if_nothing_says_where_it_was_begun(place, capfd):
    last = place / f"runs/{COMMIT}/paper/mine/plain/seed-2/checkpoint_last.pt"
    last.parent.mkdir(parents=True)
    last.write_bytes(b"")
    (place / "evidence/mine/plain/seed-2.json").unlink()
    with pytest.raises(SystemExit, match="these runs failed: mine/plain/seed-2"):
        make(place)
    said = "mine/plain/seed-2 has a checkpoint, and no begun.json says on which machine it was begun; remove"
    assert said in capfd.readouterr().err and last.exists()


def test_a_lost_checkpoint_that_is_fine_tuned_is_made_again_without_its_record(place):
    path = place / "evidence/mine/experts/seed-2.json"
    before = path.read_bytes()
    (place / "evidence/mine/gates-50/seed-2.json").unlink()
    make(place)
    assert path.read_bytes() == before
    assert record(place, "gates-50", 2)["start"]["weights"] == record(place, "experts", 2)["weights"]
    assert not (place / f"runs/{COMMIT}/paper/mine/experts/seed-2/test.json").exists()
    assert not (place / f"runs/{COMMIT}/paper/mine/plain").exists()


def start_of(place):
    """Make a run that starts from experts/seed-2 again, and return the folder of the latter."""
    (place / "evidence/mine/gates-50/seed-2.json").unlink()
    make(place)
    (place / "evidence/mine/gates-50/seed-2.json").unlink()
    return place / f"runs/{COMMIT}/paper/mine/experts/seed-2"


def test_a_start_that_is_not_finished_is_made_again(place, capfd):
    folder = start_of(place)
    (folder / "training.json").unlink()  # as after a kill, with the best checkpoint so far
    make(place)
    assert (folder / "training.json").exists()
    (place / "evidence/mine/gates-50/seed-2.json").unlink()
    (folder / "averaged.pt").unlink()
    make(place)
    assert (folder / "averaged.pt").exists() and (folder / "training.json").exists()
    (place / "evidence/mine/gates-50/seed-2.json").unlink()
    (folder / "averaged.pt").unlink()
    path = place / "evidence/mine/experts/seed-2.json"
    content = json.loads(path.read_text())
    content["weights"] = "another"
    path.write_text(json.dumps(content))
    assert "the record mine/untuned/seed-2 starts from another model than" in refused(place)
    (place / "evidence/mine/untuned/seed-2.json").unlink()
    with pytest.raises(SystemExit, match="these runs failed: mine/experts/seed-2, mine/"):
        make(place)
    said = capfd.readouterr().err
    assert "mine/experts/seed-2 was made again and gave another model than its record says" in said


def test_runs_use_this_code_and_the_claims_as_they_were_and_no_gpu(place, tmp_path, monkeypatch):
    (tmp_path / "modular_fairseq_cli").mkdir()
    (tmp_path / "modular_fairseq_cli/__init__.py").write_text("raise SystemExit('the code in this folder')")
    monkeypatch.chdir(tmp_path)
    path = place / "evidence/mine/plain/seed-2.json"
    path.unlink()
    before, check = (place / "claims.yaml").read_bytes(), making.compare

    def change_claims(*args):
        check(*args)
        monkeypatch.setattr(making.subprocess, "run", start)

    run, gpus = making.subprocess.run, []

    def start(*args, **kwargs):
        gpus.append(kwargs["env"].get("CUDA_VISIBLE_DEVICES"))
        (place / "claims.yaml").write_text("another: branch")
        done = run(*args, **kwargs)
        (place / "claims.yaml").write_bytes(before)
        return done

    monkeypatch.setattr(making, "compare", change_claims)
    make(place, "--device", "cpu")
    assert gpus == [""]
    assert path.exists() and (place / f"runs/{COMMIT}/claims.yaml").read_bytes() == before
    assert not (place / f"runs/{COMMIT}/paper/mine/plain/seed-2/checkpoint_last.pt").exists()


def test_processor_time_counts_processes_that_still_run(tmp_path, monkeypatch):
    path = tmp_path / "seconds.json"
    path.write_text("100.0")
    monkeypatch.setattr(processor_time, "INTERVAL", 0.1)
    busy = "while time.process_time() < 1: pass\nprint('used', flush=True)\ninput()"
    with (
        processor_time.measured(str(path)),
        subprocess.Popen(
            [sys.executable, "-c", f"import time\n{busy}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout.readline() == "used\n"
        if sys.platform == "linux":
            wait_for(lambda: json.loads(path.read_text()) > 100.9, process)
        process.communicate("\n")
    assert 100.9 < json.loads(path.read_text()) < 110


def test_a_run_that_diverges_is_recorded_and_not_made_again(place, capfd):
    for row in ("plain", "experts"):
        config = place / f"configs/mine/{row}.yaml"
        content = yaml.safe_load(config.read_text())
        content["optimization"]["lr"] = [1e30]
        config.write_text(yaml.safe_dump(content))
    shutil.rmtree(place / "evidence")
    make(place)
    assert "mine/plain/seed-1: the training diverged (gradients are Nan/Inf)" in capfd.readouterr().err
    for row in ("experts", "gates-50"):
        found = record(place, row, 2)
        assert found["diverged"] and found["training"] is None and found["rows"] == {}
    assert not (place / f"runs/{COMMIT}/paper/mine/gates-50/seed-2/train.log").exists()
    notes = (place / "evidence/table.txt").read_text()
    assert (
        "seed 1 diverged, seed 2 diverged" in notes
        and "mine/plain/seed-1, mine/experts/seed-1, mine/plain/seed-2" in notes
    )
    shutil.rmtree(place / "runs")
    make(place)
    assert not (place / "runs").exists()


def test_status_counts_runs_in_their_order(place, capsys):
    def status():
        cli.main(["evidence", str(place / "claims.yaml"), "--data", str(place / "data"), "--status"])
        return capsys.readouterr().out

    assert "primary: 4 of 4 runs are done" in status() and "all runs are done" in status()
    for row in ("plain", "experts"):
        (place / f"evidence/mine/{row}/seed-2.json").unlink()
    text = status()
    assert "primary: 2 of 4 runs are done\nsecondary: 4 of 4 runs are done" in text
    assert "next: mine/plain/seed-2, mine/experts/seed-2" in text and "core-hours were spent" in text


def test_only_takes_the_runs_of_a_table_and_those_that_they_start_from(place, capsys):
    """The claims have fine-tuned rows of the table other, and not the row that those start from."""
    shutil.copytree(place / "configs/mine", place / "configs/other")
    spec = yaml.safe_load((place / "claims.yaml").read_text())
    another = spec["claims"][2] | {"name": "again", "table": str(place / "configs/other/table.yaml")}
    edit(place, claims=[*spec["claims"], another])

    def status(*args):
        cli.main([*words_of(place, "--status"), *args])
        return capsys.readouterr().out

    assert "secondary: 4 of 10 runs are done" in status()
    assert "all runs are done" in status("--only", "mine")
    text = status("--only", "other")
    counts = "primary: 0 of 0 runs are done\nsecondary: 0 of 6 runs are done\n"
    assert text.startswith(f"{counts}next: other/experts/seed-1, ")
    assert status("--only", "other", "--only", "mine") == status()


def edit(place, **changes):
    """Change claims.yaml, and return its content."""
    spec = yaml.safe_load((place / "claims.yaml").read_text()) | changes
    (place / "claims.yaml").write_text(yaml.safe_dump(spec))
    return spec


def test_a_record_without_a_row_that_is_needed_is_not_done(place):
    path = place / "evidence/mine/experts/seed-2.json"
    found = json.loads(path.read_text())
    found["rows"] = {row: each for row, each in found["rows"].items() if not row.endswith("/specialised")}
    path.write_text(json.dumps(found))
    assert "primary: 3 of 4 runs are done" in evidence(place, "--status").stdout


def refused(place, *args):
    return refusal(cli.main, ["evidence", str(place / "claims.yaml"), "--data", str(place / "data"), *args])


def test_a_table_that_no_claim_names_is_refused(place):
    told = refused(place, "--status", "--only", "mine", "--only", "mae-9")
    assert "--only mae-9: the claims have runs of mine; give one of them" in told


def test_a_run_that_no_claim_needs_is_refused(place):
    given = ["--one", "%s", "--results", str(place / "evidence")]
    assert "--one %s: the claims need no such run" in refused(place, *given, "--commit", COMMIT)


def test_a_run_without_the_commit_that_its_record_states_is_refused(place):
    given = ["--one", "mine/plain/seed-1", "--results", str(place / "evidence")]
    assert "--one mine/plain/seed-1 needs --commit HASH" in refused(place, *given)


def test_results_of_another_commit_or_corpus_are_refused(place):
    edit(place, commit=ANOTHER)
    assert f"was made by commit {COMMIT}, but" in refused(place)
    moved = {"date": "2026-11-22", "reason": "a defect of MAE", "before": COMMIT}
    edit(place, commit=ANOTHER, changes=[moved])
    assert evidence(place).returncode == 0
    edit(place, commit=ANOTHER, changes=[moved | {"rows": ["mine/experts"]}])
    done = evidence(place, "--status")  # the rows that were fine-tuned from experts do not count either
    text = "primary: 2 of 4 runs are done\nsecondary: 0 of 4 runs are done"
    assert text in done.stdout, done.stderr[-2000:]
    edit(place, changes=[moved | {"rows": ["mine/exprts"]}])
    assert "a change names the row mine/exprts, which is not trained for any claim; give" in refused(place)
    edit(
        place,
        commit=COMMIT,
        changes=[],
        corpora={"toy.de-en": {"command": "x", "sums": {"raw/test.en": "other"}}},
    )
    assert "is of another corpus toy.de-en than" in refused(place)


def test_other_code_and_claims_that_are_not_committed_are_refused(place, monkeypatch):
    run = ("--run", "--commit")
    assert f"--commit {ANOTHER}:" in refused(place, *run, ANOTHER)
    told = {"rev-parse": ANOTHER, "ls-files": "claims.yaml", "status": ""}
    monkeypatch.setattr(making, "git", lambda folder, word, *more: told[word])
    assert f"is commit {ANOTHER}, but" in refused(place, *run, COMMIT)
    told |= {"rev-parse": COMMIT, "status": " M file"}
    assert "is changed, but" in refused(place, *run, COMMIT)
    told |= {"status": "", "ls-files": ""}
    assert "claims.yaml has changes that were not committed" in refused(place, *run, COMMIT)
    edit(place, commit="none")
    assert "names no commit yet, so no run can be made" in refused(place, *run, "none")


def test_git_says_nothing_outside_of_a_repository(tmp_path):
    words = (str(tmp_path), "rev-parse", "--is-inside-work-tree")
    assert making.git(*words) == ""
    making.git(str(tmp_path), "init")
    assert making.git(*words) == "true"


def test_a_row_or_table_that_has_changed_since_is_refused(place):
    rows = [path for path in (place / "configs/mine").iterdir() if path.name != "table.yaml"]
    texts = {row: row.read_text() for row in rows}

    def replace(old, new):
        for row, text in texts.items():
            assert old in text
            row.write_text(text.replace(old, new))

    replace("- 0.005", "- 0.006")
    assert "was made with optimization.lr [0.005], but its row has [0.006] now" in refused(place)
    replace("max_tokens: 60", "max_tokens: 60\n  required_batch_size_multiple: 8")
    assert evidence(place).returncode == 0  # such as an option that rows name since then, with its default
    replace("max_tokens: 60", "max_tokens: 60\n  required_batch_size_multiple: 1")
    assert "was made with dataset.required_batch_size_multiple not given, but its row has 1" in refused(place)
    replace("beam: 2", "beam: 3")
    assert "measured row" in refused(place) and "in another way than its table says now" in refused(place)


def test_claims_that_were_changed_after_a_run_are_refused(place):
    spec = edit(place)
    spec["claims"][0]["margin"] = 0.5
    edit(place, **spec)
    said = refused(place)
    assert "claim experts-above-plain was changed after the run mine/experts/seed-1 was made" in said
    digest = re.search(r'with `claims: {experts-above-plain: "(\w+)"}`$', said)[1]
    entry = {"date": "2026-11-22", "reason": "a misprint", "claims": {"experts-above-plain": digest}}
    edit(place, changes=[entry])
    assert evidence(place).returncode == 0
    spec["claims"][0]["margin"] = 0.6  # the entry explains one change, not another one
    edit(place, claims=spec["claims"])
    assert "was changed after" in refused(place)
    spec["claims"][0]["margin"] = 0.5
    spec["claims"].append(spec["claims"][1] | {"name": "late", "quantity": "chrf"})
    edit(place, claims=spec["claims"])
    assert "claim late was added after the run mine/experts/seed-1 was made" in refused(place)


def test_a_claim_cannot_be_moved_to_rows_without_records(place):
    for path in (place / "evidence/mine").glob("gates-50/*.json"):
        path.unlink()
    spec = edit(place)
    spec["claims"][0] = spec["claims"][2] | {"name": "experts-above-plain"}
    edit(place, claims=spec["claims"])
    assert "claim experts-above-plain was changed after the run mine/experts/seed-1 was made" in refused(
        place
    )


def spoil(place, change, name="mine/experts/seed-2"):
    """Change the record of a run."""
    path = place / f"evidence/{name}.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(change(found)))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda found: [], "seed-2.json: corpus is missing or has another type"),
        (
            lambda found: {key: found[key] for key in found if key != "curves"},
            "seed-2.json: curves is missing",
        ),
        (lambda found: found | {"claims": None}, "seed-2.json: claims is missing or has another type"),
        (lambda found: found | {"rows": None}, "seed-2.json: rows is missing or has another type"),
        (
            lambda found: {
                **found,
                "rows": {
                    row: [{key: each[key] for key in each if key != "counts"} for each in measurements]
                    for row, measurements in found["rows"].items()
                },
            },
            "has no `how` or `counts`; restore it, or remove it to make the run again",
        ),
        (
            lambda found: {
                **found,
                "rows": {
                    row: [each | {"counts": each["counts"][:-8]} for each in measurements]
                    for row, measurements in found["rows"].items()
                },
            },
            "cannot be read (",
        ),
        (
            lambda found: {
                **found,
                "rows": {
                    row: [each | {"bleu": each["bleu"] + 1} for each in measurements]
                    for row, measurements in found["rows"].items()
                },
            },
            ", but its sentences or parts give ",
        ),
        (lambda found: found | {"weights": None}, "are null, though the run did not diverge"),
        (lambda found: found | {"made": {"date": "2026-11-30"}}, "made has no device; restore it, or remove"),
        (
            lambda found: found | {"rows": dict.fromkeys(found["rows"], [])},
            "in another way than its table says now",
        ),
    ],
)
def test_a_record_that_is_not_whole_is_refused(place, change, sentence):
    spoil(place, change)
    assert sentence in refused(place)


def test_two_seeds_with_the_same_weights_are_refused(place):
    weights = record(place)["weights"]
    spoil(place, lambda found: found | {"weights": weights})
    assert "the records mine/experts/seed-1 and mine/experts/seed-2 have the same weights" in refused(place)


def test_a_claim_that_was_removed_after_a_run_is_refused(place):
    spec = edit(place)
    edit(place, claims=spec["claims"][1:])
    assert "claim experts-above-plain was removed after the run mine/experts/seed-1 was made" in refused(
        place
    )
    entry = {"date": "2026-11-22", "reason": "a misunderstanding", "removed": ["experts-above-plain"]}
    edit(place, claims=spec["claims"][1:], changes=[entry])
    assert evidence(place).returncode == 0


def test_rows_that_do_not_exist_or_differ_in_more_are_refused(place):
    spec = edit(place)
    spec["claims"][0]["differ"] = ["attention_type"]
    edit(place, **spec)
    assert "rows experts and plain differ in mae_gate_interval" in refused(place)
    spec["claims"][0]["differ"] = ["attention_type", "mae_*"]
    spec["claims"][1]["differ"] = ["mae_gate_lr"]
    edit(place, **spec)
    assert "rows specialised and experts differ in mae_inference, which the claim does" in refused(place)
    spec["claims"][1]["differ"] = ["mae_inference"]
    spec["claims"][2] |= {"baseline": "experts", "differ": ["[a-z]*"]}
    edit(place, **spec)
    assert "row gates-50 has percent 50, and row experts has 100; compare rows" in refused(place)
    spec["claims"][0] |= {"row": "exprts"}
    edit(place, **spec)
    assert "names the row exprts, which table" in refused(place)


@pytest.mark.parametrize(
    "words",
    [
        ["--jobs", "2"],
        ["--only", "mine"],
        ["--device", "cpu"],
        ["--commit", COMMIT],
        ["--status", "--device", "cpu"],
    ],
)
def test_options_of_run_are_refused_without_it(place, words):
    option, value = words[-2:]
    others = {"--jobs": " and --status", "--only": ", --status and --prepare"}.get(option, "")
    assert f"{option} {value} has no effect without --run{others}; leave it out" in refused(place, *words)


def test_a_corpus_that_differs_is_refused_before_any_run(place):
    shutil.rmtree(place / "evidence")
    right = yaml.safe_load((place / "claims.yaml").read_text())["corpora"]["toy.de-en"]["sums"]
    for sums, said in (
        (right | {"raw/test.en": "0"}, "the corpus toy.de-en differs in raw/test.en from the one that"),
        (right | {"raw/more": "0"}, "the corpus toy.de-en differs in raw/more from the one that"),
        ({}, "registers no digests of the corpus toy.de-en; copy those that --prepare TEXT prints"),
    ):
        edit(place, corpora={"toy.de-en": {"command": "x", "sums": sums}})
        with pytest.raises(SystemExit, match=said):
            make(place)
    assert "there are no records in" in refused(place)
    shutil.rmtree(place / "data")
    with pytest.raises(SystemExit, match="data/toy.de-en/bin does not exist; prepare it by --prepare TEXT"):
        make(place)


def test_corpora_are_prepared_by_their_registered_commands(tmp_path, monkeypatch, capsys):
    called = []
    for name, text in (("bin/dict.de.txt", "a 1"), ("raw/test.en", "a"), ("bin/preprocess.log", "x")):
        (tmp_path / "D/c" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "D/c" / name).write_text(text)
    monkeypatch.setattr(
        "modular_fairseq.runs.evidence.corpora.call_command", lambda *words: called.append(words)
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
    data = str(tmp_path / "D")
    words = ["evidence", str(tmp_path / "claims.yaml"), "--data", data, "--prepare", "T x"]
    cli.main(words)
    assert called == [("prepare", "raw", "T x/c", "--out", f"{data}/c")]
    printed = yaml.safe_load(capsys.readouterr().out)
    assert printed["c"]["sums"].keys() == {"bin/dict.de.txt", "raw/test.en"}
    spec = yaml.safe_load((tmp_path / "claims.yaml").read_text())
    spec["corpora"]["c"]["sums"] = printed["c"]["sums"]
    (tmp_path / "claims.yaml").write_text(yaml.safe_dump(spec))
    cli.main(words)
    assert len(called) == 1  # no claim needs it, and its digests are known
    job = SimpleNamespace(run=SimpleNamespace(corpus=Corpus(f"{data}/c/bin")))
    chosen = []
    monkeypatch.setattr(Plan, "jobs_of", lambda plan, tables: chosen.append(tables) or [job])
    cli.main([*words, "--only", "a", "--only", "b"])
    assert len(called) == 2 and chosen == [["a", "b"]]
    (tmp_path / "D/c/raw/test.en").write_text("b")
    with pytest.raises(SystemExit, match="the corpus c differs in raw/test.en from the one that"):
        cli.main(words)


def test_a_gpu_gets_as_many_runs_as_fit(monkeypatch):
    assert making.default_jobs("cpu") == 1
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(UsageError, match="--device cuda: torch sees no GPU; use --device cpu"):
        making.default_jobs("cuda")
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(making, "processors", lambda: 16)
    for free, jobs in ((139, 16), (13, 3), (2, 1)):
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda free=free: (free * 2**30, 140 * 2**30))
        assert making.default_jobs("cuda") == jobs


@pytest.mark.parametrize(("folder", "of_primary"), [("results", 5 * 8), ("results/narrow", 0)])
def test_the_claims_of_the_project_can_be_read_and_planned(tmp_path, folder, of_primary):
    from modular_fairseq.runs.evidence.records import recorded

    register = read_claims(ROOT / folder / "claims.yaml")
    plan = Plan(register, str(tmp_path), str(tmp_path))
    primary = [job for job in plan.jobs if job.primary]
    assert [job.seed for job in primary] == sorted(job.seed for job in primary)
    assert len(primary) == of_primary
    made = recorded(ROOT / folder / "evidence")
    counted = plan.records(str(ROOT / folder / "evidence"))
    assert counted and counted.keys() <= made.keys()
    for name in made.keys() - counted.keys():
        assert made[name]["commit"] in register.outdated(name.rpartition("/seed-")[0])
    with pytest.raises(UsageError, match="names the row none, which table multi30k does not have"):
        plan.row(register.claims[0], "none")


def test_a_claim_about_a_table_that_searches_is_refused(place):
    table = place / "configs/mine/table.yaml"
    searching = yaml.safe_load(table.read_text()) | {"search": {"optimization.lr": [0.001, 0.002]}}
    for row in searching["rows"]:
        row["subset"] = "valid"
    table.write_text(yaml.safe_dump(searching))
    done = evidence(place)
    assert done.returncode == 1
    assert "trains each row with several values (search), and a claim is about one" in done.stderr
