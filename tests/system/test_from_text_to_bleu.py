"""Test that the script does all steps from text to BLEU."""

import json
import os
import subprocess

from tests.fairseq_commands import write_reversal_corpus
from tests.places import ROOT
from tests.processes import PATIENCE


def test_from_text_to_bleu_with_the_script(tmp_path):
    """scripts/train_and_score.sh runs on a small corpus. A second call has nothing left to train."""
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
        "--name",
        "run",
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
            capture_output=True,
            text=True,
            timeout=PATIENCE,
            env={**os.environ, "SIZE": "--encoder-layers 2"},
        )
        assert 'warning: the variable SIZE has no effect; give --size="WORDS"' in result.stderr
        assert "GENERATE" not in result.stderr
        assert result.returncode == 0, result.stderr
        assert "nrefs:1|case:mixed" in result.stdout
        trained.add((tmp_path / "out/run/checkpoint1.pt").stat().st_mtime_ns)
    assert len(trained) == 1
    assert json.loads((tmp_path / "out/run/score.json").read_text())["sentences"] == 12
