"""Test that `modular-fairseq score` gives the numbers that the sacrebleu command gives."""

import json
import re

import pytest
from sacrebleu import DATASETS

from modular_fairseq_cli.scoring import (
    read_lines,
)
from modular_fairseq_cli.scoring.metrics import METRICS
from tests.score_files import (
    REFERENCE,
    noisy,
    run_json,
    sacrebleu,
    write_lines,
    write_systems,
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    return write_systems(tmp_path_factory.mktemp("scores"))


def sacrebleu_bootstrap(*args, **environment):
    """Return what `sacrebleu --paired-bs` prints, for each system and metric, and the scores of the baseline.

    An entry has the score, the mean, half of the confidence interval and the p-value, as text.
    """
    text = sacrebleu(*args, "--paired-bs", "-f", "text", **environment)  # as JSON it can print only BLEU
    numbers = re.findall(r"(\d+\.\d{14}) \((\d+\.\d{14}) ± (\d+\.\d{14})\)", text)
    p_values = re.findall(r"\(p = (\d\.\d{4})\)", text)
    entries = [[*numbers, p] for numbers, p in zip(numbers[3:], p_values, strict=True)]
    return [entries[start : start + 3] for start in range(0, len(entries), 3)], [
        float(score) for score, _, _ in numbers[:3]
    ]


def assert_equals_command(ours, printed):
    theirs = json.loads(printed)
    assert [each["name"] for each in theirs] == ["BLEU", "chrF2", "TER"]
    for name, each in zip(("bleu", "chrf", "ter"), theirs, strict=True):
        assert float(f"{ours[name]:.14f}") == each["score"]
        assert ours[f"{name}_signature"] == each["signature"]
        assert 5 < ours[name] < 95


def test_output_of_generate_scores_as_the_command_scores_its_detokenized_text(files, tmp_path):
    found = run_json(tmp_path, "--reference", files / "test.en", files / "a1.out")
    assert_equals_command(found["files"][0], sacrebleu(files / "test.en", "-i", files / "a1.txt"))


@pytest.mark.parametrize(
    "options, theirs",
    [
        (["--lowercase"], ["-lc", "--chrf-lowercase"]),
        (["--tokenize", "intl"], ["-tok", "intl"]),
        (["--tokenize", "char"], ["-tok", "char"]),
        (["--target-lang", "zh"], ["-l", "en-zh"]),
    ],
)
def test_options_are_those_of_the_command(files, tmp_path, options, theirs):
    found = run_json(tmp_path, "--reference", files / "test.en", files / "b1.txt", *options)
    assert_equals_command(found["files"][0], sacrebleu(files / "test.en", *theirs, "-i", files / "b1.txt"))


@pytest.mark.parametrize("name", ["test.en", "test.en.gz"])
def test_carriage_returns_and_spaces_at_line_ends_are_dropped_as_by_the_command(tmp_path, name):
    reference = write_lines(tmp_path / name, REFERENCE, end=" \r\n")
    text = write_lines(tmp_path / "a.txt", noisy(REFERENCE, 7), end="\t\u2028\n")
    found = run_json(tmp_path, "--reference", reference, text)
    assert found["sentences"] == len(REFERENCE)
    assert_equals_command(found["files"][0], sacrebleu(reference, "-i", text))
    assert read_lines(reference) == read_lines(write_lines(tmp_path / "plain.en", REFERENCE)) == REFERENCE
    plain = tmp_path / "plain.en"
    assert run_json(tmp_path, "--reference", plain, text)["files"] == found["files"]


@pytest.mark.parametrize("seed", [None, "7"])
def test_paired_bootstrap_is_that_of_the_command(files, tmp_path, monkeypatch, seed):
    environment = {"SACREBLEU_SEED": seed} if seed else {}
    monkeypatch.delenv("SACREBLEU_SEED", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    found = run_json(
        tmp_path,
        "--reference",
        files / "test.en",
        files / "a1.out",
        files / "a2.out",
        "--baseline",
        files / "b1.out",
        "--samples",
        60,
    )
    texts = [files / f"{name}.txt" for name in ("b1", "a1", "a2")]
    theirs, baseline = sacrebleu_bootstrap(
        files / "test.en", "-i", *texts, "--paired-bs-n", 60, **environment
    )
    assert len(found["baselines"]) == 1
    for ours, expected in zip(found["baselines"][0]["bootstrap"], theirs, strict=True):
        for name, numbers, base in zip(METRICS, expected, baseline, strict=True):
            entry = ours[name]
            assert [
                *(f"{entry[key]:.14f}" for key in ("score", "mean", "ci")),
                f"{entry['p_value']:.4f}",
            ] == numbers
            assert entry["difference"] == pytest.approx(entry["score"] - base, abs=1e-12)
            assert f"bs:60|seed:{seed or 12345}" in entry["signature"]
            assert 1 / 61 < entry["p_value"] < 1


def test_references_of_sacrebleu(tmp_path, monkeypatch):
    folder = tmp_path / "wmt14/full"
    folder.mkdir(parents=True)
    for field in DATASETS["wmt14/full"].fieldnames("en-de"):
        write_lines(
            folder / f"wmt14_full.en-de.{field}", REFERENCE if field == "ref" else ["x"] * len(REFERENCE)
        )
    text = write_lines(tmp_path / "a.txt", noisy(REFERENCE, 8))
    monkeypatch.setattr(DATASETS["wmt14/full"], "_outdir", str(folder))
    found = run_json(tmp_path, "--test-set", "wmt14/full", "-l", "en-de", text)
    assert found["reference"] == "wmt14/full en-de" and found["language"] == "de"
    theirs = sacrebleu("-t", "wmt14/full", "-l", "en-de", "-i", text, SACREBLEU=str(tmp_path))
    assert_equals_command(found["files"][0], theirs)


def test_one_sentence_is_a_test_set(tmp_path):
    reference, a, b = (
        write_lines(tmp_path / name, [line])
        for name, line in (("r.en", "So it goes on."), ("a", "So it goes."), ("b", "So on."))
    )
    found = run_json(tmp_path, "--reference", reference, a, "--baseline", b, "--samples", 10)
    (((bleu, _, _, p), *_),), _ = sacrebleu_bootstrap(reference, "-i", b, a, "--paired-bs-n", 10)
    assert f"{found['baselines'][0]['bootstrap'][0]['bleu']['p_value']:.4f}" == p
    assert f"{found['files'][0]['bleu']:.14f}" == bleu and 10 < float(bleu) < 90
