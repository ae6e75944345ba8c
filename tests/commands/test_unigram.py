"""Test scripts/unigram.py, which shows the perplexity of a model that only knows frequencies."""

import math
from collections import Counter

import pytest

from modular_fairseq_cli.errors import UsageError
from tests.fairseq_commands import run_preprocess
from tests.scripts import script

TRAIN = ["a b", "a a c", "a b c d e f"]
TEST = ["b a", "d"]


def naive(words, text):
    """Return the perplexity of the words of a text for the frequencies of other words, plus one."""
    types = 4 + len(set(" ".join(TRAIN).split()))  # <s>, <pad>, </s>, <unk>
    types += -types % 8  # fairseq-preprocess fills up the dictionary
    seen = Counter(words)
    return math.exp(-sum(math.log((seen[word] + 1) / (len(words) + types)) for word in text) / len(text))


def test_the_perplexities_are_those_of_frequencies(tmp_path, capsys):
    for part, lines in {"train": TRAIN, "valid": TRAIN, "test": TEST}.items():
        (tmp_path / part).write_text("\n".join(lines) + "\n")
    files = [word for part in ("train", "valid", "test") for word in (f"--{part}pref", tmp_path / part)]
    run_preprocess("--only-source", *files, "--destdir", tmp_path / "bin")
    capsys.readouterr()
    script("unigram").main([str(tmp_path / "bin"), "--longest", "4"])
    lines = capsys.readouterr().out.splitlines()
    of_words, of_all = (
        [f"<s> {line} </s>" if ends else line for line in TRAIN[:2]] for ends in (False, True)
    )
    words, symbols = " ".join(of_words).split(), " ".join(of_all).split()
    scored = " ".join(TEST).split()
    ends = ["<s>", "</s>"] * len(TEST)
    expected = [naive(words, scored), naive(symbols, scored), naive(symbols, scored + ends)]
    assert [float(line.split()[-1]) for line in lines[2:5]] == pytest.approx(expected, abs=0.05)
    assert lines[5] == "<s> and </s> are 44.4% of the symbols of the training lines"


def test_a_folder_without_data_is_refused(tmp_path):
    with pytest.raises(UsageError, match="has no dict.txt; give a folder that fairseq-preprocess wrote"):
        script("unigram").main([str(tmp_path)])
    (tmp_path / "dict.txt").write_text("a 1\n")
    with pytest.raises(UsageError, match="has no part train; give a folder"):
        script("unigram").main([str(tmp_path)])
