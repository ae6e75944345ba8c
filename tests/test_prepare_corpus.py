"""data-prep/prepare_corpus.py: what it writes for a small corpus, and what it says of a bad one."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / "data-prep" / "prepare_corpus.py"
GERMAN = ["Zwei Hunde laufen.", "Ein Hund läuft, und ein Mann lacht.", "Der Mann sieht die Hunde."]
ENGLISH = ["Two dogs are running.", "A dog's running, and a man is laughing.", "The man sees the dogs."]


@pytest.fixture
def corpus(tmp_path):
    folder = tmp_path / "corpus"
    folder.mkdir()
    for split, repeat in (("train", 5), ("valid", 1), ("test", 1)):
        (folder / f"{split}.de").write_text("\n".join(GERMAN * repeat) + "\n", encoding="utf-8")
        (folder / f"{split}.en").write_text("\n".join(ENGLISH * repeat) + "\n", encoding="utf-8")
    return folder


def prepare(folder, out, *args):
    command = [sys.executable, SCRIPT, folder, "--source-lang", "de", "--target-lang", "en", "--out", out, "--merges", "30", *args]
    return subprocess.run([str(part) for part in command], capture_output=True, text=True)


def lines(path):
    return path.read_text(encoding="utf-8").splitlines()


def test_lower_cased_moses_tokens_and_their_sub_words(corpus, tmp_path):
    assert prepare(corpus, tmp_path / "out").returncode == 0
    assert lines(tmp_path / "out/tok/test.en") == [
        "two dogs are running .",
        "a dog &apos;s running , and a man is laughing .",
        "the man sees the dogs .",
    ]
    assert lines(tmp_path / "out/tok/test.de")[1] == "ein hund läuft , und ein mann lacht ."
    for split, size in (("train", 15), ("valid", 3), ("test", 3)):
        for lang in ("de", "en"):
            sub_words = lines(tmp_path / f"out/bpe/{split}.{lang}")
            assert [line.replace("@@ ", "") for line in sub_words] == lines(tmp_path / f"out/tok/{split}.{lang}")
            assert len(sub_words) == size
    assert len(lines(tmp_path / "out/bpe/codes")) == 31  # a line for the version
    assert lines(tmp_path / "out/raw/test.en") == [line.lower() for line in ENGLISH]


def test_train_pairs_that_are_empty_long_or_unequal_are_left_out_and_test_pairs_never(corpus, tmp_path):
    for split in ("train", "test"):
        for lang, text in (("de", "\nkurz\n" + "a " * 20), ("en", "empty\n" + "b " * 8 + "\n" + "c " * 20)):
            with (corpus / f"{split}.{lang}").open("a", encoding="utf-8") as file:
                file.write(text + "\n")
    result = prepare(corpus, tmp_path / "out", "--max-tokens", "19", "--max-ratio", "7")
    assert "3 pairs left out" in result.stderr
    assert len(lines(tmp_path / "out/tok/train.de")) == 15 and len(lines(tmp_path / "out/tok/test.de")) == 6


def test_compressed_text_is_read(corpus, tmp_path):
    plain = corpus / "train.de"
    (corpus / "train.de.gz").write_bytes(gzip.compress(plain.read_bytes()))
    plain.unlink()
    assert prepare(corpus, tmp_path / "out").returncode == 0
    assert len(lines(tmp_path / "out/tok/train.de")) == 15


def damage_lines(folder):
    (folder / "valid.en").write_text("one line\n")


def damage_empty(folder):
    (folder / "test.de").write_text("\n\n")


def damage_encoding(folder):
    (folder / "train.de").write_bytes("gut\nschön\n".encode("latin-1"))


def damage_missing(folder):
    (folder / "valid.de").unlink()


def damage_gzip(folder):
    (folder / "valid.de").unlink()
    (folder / "valid.de.gz").write_bytes(b"not gzip")


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (damage_lines, "valid.de has 3 lines and {folder}/valid.en has 1: line n of one must translate line n of the other"),
        (damage_empty, "test.de is empty: it must hold one sentence a line"),
        (damage_encoding, "train.de is not UTF-8 (line 2)"),
        (damage_missing, "valid.de is missing: the folder needs train, valid and test text in both languages"),
        (damage_gzip, "valid.de.gz cannot be read"),
    ],
)
def test_a_bad_corpus_is_refused_in_a_sentence_and_nothing_is_written(corpus, tmp_path, damage, sentence):
    damage(corpus)
    result = prepare(corpus, tmp_path / "out")
    assert result.returncode != 0
    message = result.stderr.strip().splitlines()
    assert len(message) == 1 and message[0].startswith("prepare_corpus: ") and sentence.format(folder=corpus) in message[0]
    assert not (tmp_path / "out").exists()
