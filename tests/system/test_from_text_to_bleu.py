"""From text to BLEU: models learn a small task, and the script does all steps."""

import json
import os
import subprocess

import pytest

from tests.fairseq_commands import (
    binarize,
    run_generate,
    run_train,
    write_reversal_corpus,
)
from tests.places import ROOT


@pytest.mark.parametrize(
    "arch",
    [
        "modular_transformer",
        "mae_transformer",
        "dma_transformer",
        "multistream_transformer",
        "tim_transformer",
    ],
)
def test_a_tiny_model_learns_to_reverse(tmp_path, arch):
    write_reversal_corpus(tmp_path, train_pairs=2000)
    binarize(tmp_path, tmp_path / "bin")
    recipe = ["--optimizer", "adam", "--adam-betas", "(0.9,0.98)", "--max-tokens", "500", "--dropout", "0"]
    recipe += [
        "--criterion",
        *(
            ["modular_cross_entropy", "--aux-warmup-updates", "200"]
            if arch.startswith("dma")
            else ["cross_entropy"]
        ),
    ]
    recipe += [
        "--lr-scheduler",
        "polynomial_decay",
        "--lr",
        "4e-3",
        "--warmup-updates",
        "60",
        "--total-num-update",
        "420",
    ]
    gates = ["--mae-gate-interval", "2"] if arch.startswith("mae") else []
    run_train(
        tmp_path / "bin",
        "--arch",
        f"{arch}_tiny_cpu",
        *gates,
        "--max-update",
        420,
        "--no-epoch-checkpoints",
        "--save-dir",
        tmp_path / "checkpoints",
        common=recipe,
    )
    hypotheses, _ = run_generate(tmp_path / "bin", tmp_path / "checkpoints" / "checkpoint_last.pt")
    references = (tmp_path / "test.en").read_text().splitlines()
    right = sum(h == r for h, r in zip(hypotheses, references, strict=True))
    assert right >= 10, f"{right} of 12 test sentences"


def test_from_text_to_bleu_with_the_script(tmp_path):
    """scripts/train_and_score.sh on a small corpus; the second call has nothing left to train."""
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    write_reversal_corpus(corpus)
    size = [
        "--encoder-layers",
        "1",
        "--decoder-layers",
        "1",
        "--encoder-embed-dim",
        "32",
        "--decoder-embed-dim",
        "32",
        "--max-epoch",
        "1",
    ]
    command = [
        "bash",
        "scripts/train_and_score.sh",
        corpus,
        "de",
        "en",
        tmp_path / "out",
        "mae_transformer",
        *size,
    ]
    trained = set()
    for _ in range(2):
        result = subprocess.run(
            [str(part) for part in command],
            cwd=ROOT,
            env={**os.environ, "NAME": "run"},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert result.returncode == 0, result.stderr
        assert "nrefs:1|case:mixed" in result.stdout
        trained.add((tmp_path / "out/run/checkpoint1.pt").stat().st_mtime_ns)
    assert len(trained) == 1
    assert json.loads((tmp_path / "out/run/score.json").read_text())["sentences"] == 12
