"""Tests of `modular-fairseq prepare` and data-prep/prepare-*.sh, from archives as they are published to bin/.

They check what is written and refused, and that a run that was killed ends with the same files.

The scripts run in a copy of the repository's root, in which scripts/setup.sh does nothing and .venv is this
Python. Where a recipe has the checksum of an official archive, the copy has the checksum of a small one.
"""

import gzip
import hashlib
import json
import os
import re
import shutil
import signal
import struct
import subprocess
import zipfile
from collections import Counter

import pytest
import yaml
from sentencepiece import SentencePieceProcessor

from modular_fairseq_cli.corpora.settings import like
from modular_fairseq_cli.corpora.subwords import learn_pieces
from modular_fairseq_cli.files import lock
from tests.places import ROOT
from tests.prepared_corpora import (
    DOCUMENTS,
    TOY,
    all_files,
    command,
    lines,
    prepare,
    sentence,
    sides,
    talks_members,
    write_documents,
    write_tar,
)
from tests.processes import processes_of, wait_for


def sentences_in(index):
    return struct.unpack("<9sQBQ", index.read_bytes()[:26])[3]


def start_and_stop_after(root, word, script, *args, **env):
    """Start a script, kill it after the first line that contains `word`, and return that line."""
    environment = {**os.environ, **{name: str(value) for name, value in env.items()}}
    process = subprocess.Popen(
        command(root, script, *args),
        env=environment,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        said = next((line for line in process.stderr if word in line), "")
        os.killpg(process.pid, signal.SIGKILL)
    return said


def refusal(result, code=1):
    """Return the last sentence of a script that failed, and check that it printed no traceback."""
    assert result.returncode == code, result.stderr
    assert "Traceback" not in result.stderr
    last = result.stderr.splitlines()[-1]
    assert last.startswith("prepare-")
    assert ": error: " in last
    return last.partition(": error: ")[2]


def test_talks_are_tokenized_cleaned_and_split_as_in_the_recipe(talks):
    out, _ = talks
    tokens = [
        (de, en)
        for de, en in TOY["train"]
        if max(len(de.split()), len(en.split())) <= 1.5 * min(len(de.split()), len(en.split()))
    ]
    assert 400 < len(tokens) < 480
    expected = {
        "valid": sides(tokens[22::23]),
        "train": sides([pair for i, pair in enumerate(tokens) if i % 23 != 22]),
        "test": sides(TOY["test"]),
    }
    for split, both in expected.items():
        for lang, text in both.items():
            assert lines(out / f"tok/{split}.{lang}") == text
            sub_words = lines(out / f"bpe/{split}.{lang}")
            assert [line.replace("@@ ", "") for line in sub_words] == text
            assert sentences_in(out / f"bin/{split}.de-en.{lang}.idx") == len(text)
            if split != "train":
                assert lines(out / f"raw/{split}.{lang}") == [sentence(words).lower() for words in text]
    assert lines(out / "text/train.de") == [
        sentence(words) if i % 20 < 2 else f" {sentence(words)} "
        for i, words in enumerate(sides(TOY["train"])["de"])
    ]


def test_merges_are_joint_and_dictionaries_separate(talks):
    out, _ = talks
    assert len(lines(out / "bpe/codes")) == 201  # the first line is the version
    for lang in ("de", "en"):
        counts = Counter(" ".join(lines(out / f"bpe/train.{lang}")).split())
        words = [line.split() for line in lines(out / f"bin/dict.{lang}.txt") if "madeupword" not in line]
        assert {word: int(count) for word, count in words} == counts
    settings = json.loads((out / "settings").read_text())
    assert (
        settings["bpe_merges"] == 200
        and settings["dictionaries"] == "separate"
        and settings["lowercase"] is True
    )
    assert (settings["source_lang"], settings["target_lang"], settings.get("like")) == ("de", "en", None)


def test_what_is_fetched_is_said_first_and_its_sum_recorded(talks, talks_archive):
    out, result = talks
    first = result.stderr.splitlines()
    assert first[0] == f"prepare-iwslt14-de-en: prepares iwslt14.de-en in {out}"
    assert first[1].startswith(f"  fetches file://{talks_archive} (size not published, no checksum published")
    assert first[2] == "  licence: TED talks, CC BY-NC-ND"
    found = hashlib.sha256(talks_archive.read_bytes()).hexdigest()
    archives = out.parent / "archives"
    assert (archives / "de-en.tgz.sha256").read_text() == f"{found}  de-en.tgz\n"
    assert "no checksum is published" in result.stderr and found in result.stderr
    assert (archives / "de-en.tgz").read_bytes() == talks_archive.read_bytes()
    assert sorted(path.name for path in archives.iterdir()) == [
        ".de-en.tgz.lock",
        "de-en.tgz",
        "de-en.tgz.sha256",
    ]


def test_corpora_beside_each_other_share_an_archive_and_compare_its_sum(
    scripts_root, talks, talks_archive, tmp_path
):
    """A second data set downloads nothing.

    Another file of the same name is refused, whether it is in archives/, given or downloaded.
    """
    shutil.copytree(talks[0].parent / "archives", tmp_path / "archives")
    nowhere = {"IWSLT14_URL": f"file://{tmp_path}/nowhere"}
    shared = tmp_path / "archives/de-en.tgz"
    args = ("iwslt14-de-en", "--bpe-merges", 200, "--workers", 1, "--out")
    result = prepare(scripts_root, *args, tmp_path / "one", **nowhere)
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[1] == f"  de-en.tgz exists: {shared}"
    assert all_files(tmp_path / "one") == all_files(talks[0])

    (tmp_path / "given").mkdir()
    other = write_tar(tmp_path / "given/de-en.tgz", talks_members(TOY["train"][:-1], TOY["test"]))
    content = other.read_bytes()
    first = hashlib.sha256(talks_archive.read_bytes()).hexdigest()
    told = f"but the first de-en.tgz had {first}, as recorded in {shared}.sha256; give that file"
    assert refusal(prepare(scripts_root, *args, tmp_path / "two", "--archive", other)).endswith(told)
    assert shared.read_bytes() == talks_archive.read_bytes() and other.read_bytes() == content
    shared.write_bytes(content)
    assert refusal(prepare(scripts_root, *args, tmp_path / "two", **nowhere)).endswith(told)
    shared.unlink()
    assert refusal(
        prepare(scripts_root, *args, tmp_path / "two", IWSLT14_URL=f"file://{other.parent}")
    ).endswith(told)
    assert sorted(path.name for path in shared.parent.iterdir()) == [".de-en.tgz.lock", "de-en.tgz.sha256"]
    assert list((tmp_path / "two").iterdir()) == [tmp_path / "two/.lock"]


def test_a_finished_folder_is_left_alone(scripts_root, talks):
    out, _ = talks
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    result = prepare(scripts_root, "iwslt14-de-en", "--out", out, "--bpe-merges", 200)
    assert (result.returncode, result.stderr) == (
        0,
        f"prepare-iwslt14-de-en: {out} is already prepared; nothing to do\n",
    )
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*") if path.name != ".lock"} == {
        path: time for path, time in before.items() if path.name != ".lock"
    }


def test_a_folder_that_has_its_text_fetches_nothing(scripts_root, talks, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(talks[0], copy)
    shutil.rmtree(copy / "bin")
    result = prepare(scripts_root, "iwslt14-de-en", "--out", copy, "--bpe-merges", 200)
    assert result.returncode == 0 and "fetches" not in result.stderr
    assert f"continues in {copy}, which has its text already" in result.stderr


def test_words_that_fairseq_takes_for_its_symbols_are_counted(scripts_root, documents, tmp_path):
    for split in DOCUMENTS:
        (documents / f"{split}.txt").write_text("a <unk> b </s>\n<s> c<s> d\n\n<pad>\te\n")
    result = prepare(scripts_root, "text", documents, "--out", tmp_path / "out", "--words")
    assert result.returncode == 0
    assert "/text/test.txt: 3 of its words are <s>, </s> or <pad>, which fairseq takes for" in result.stderr


def test_other_settings_are_refused_by_name(scripts_root, talks):
    out, _ = talks
    result = prepare(scripts_root, "iwslt14-de-en", "--out", out, "--bpe-merges", 201)
    assert (
        refusal(result)
        == f"{out} was prepared with bpe merges 200 (now 201); give another folder, or remove text, "
        f"raw, tok, bpe, bin and settings from {out}"
    )


@pytest.mark.parametrize("stage", ["tok", "bpe", "bin"])
def test_nothing_outlives_a_killed_run_and_a_second_one_takes_over(
    scripts_root, talks_archive, tmp_path, stage
):
    """Only the main process is killed. Its workers and fairseq-preprocess must end by themselves."""
    out = tmp_path / "out"
    shutil.copytree(talks_archive.parent, tmp_path / "given")
    args = command(
        scripts_root, "iwslt14-de-en", "--out", out, "--archive", tmp_path / "given/de-en.tgz", "--workers", 2
    )
    process = subprocess.Popen(args, stderr=subprocess.DEVNULL, start_new_session=True)
    wait_for(lambda: list(out.glob(f"{stage}.part*/*")), process)
    process.kill()  # the shell has been replaced by the program
    process.wait()
    assert processes_of(tmp_path) == []
    result = prepare(
        scripts_root,
        "iwslt14-de-en",
        "--out",
        out,
        "--bpe-merges",
        100000000,
        "--archive",
        tmp_path / "given/de-en.tgz",
    )
    assert "was prepared with bpe merges 10000 (now 100000000)" in refusal(result)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda m: m.update({"../evil": "x"}),
            "de-en.tgz has the member '../evil', whose name leads out of the folder; it is refused",
        ),
        (
            lambda m: m.update({"TMP/evil": "x"}),
            "de-en.tgz has the member 'TMP/evil', whose name leads out of the folder; it is refused",
        ),
        (
            lambda m: m.pop("de-en/IWSLT14.TED.tst2011.de-en.en.xml"),
            "de-en.tgz has no member de-en/IWSLT14.TED.tst2011.de-en.en.xml",
        ),
        (
            lambda m: m.update({"de-en/train.tags.de-en.en": m["de-en/train.tags.de-en.en"] + "more\n"}),
            "de-en.tgz, de-en/train.tags.de-en.de has 480 lines and de-en.tgz, de-en/train.tags.de-en.en has "
            "481",
        ),
        (
            lambda m: m.update(
                {"de-en/train.tags.de-en.de": m["de-en/train.tags.de-en.de"].encode() + b"a\n\xff\n"}
            ),
            f"de-en.tgz, de-en/train.tags.de-en.de, line {480 + 24 * 3 + 2}: is not UTF-8",
        ),
        (
            lambda m: m.update(
                {
                    k: v.replace('<seg id="3"> ', '<seg id="3"></seg>')
                    for k, v in m.items()
                    if "tst2010.de-en.en" in k
                }
            ),
            "de-en.tgz, de-en/IWSLT14.TED.tst2010.de-en.en.xml (sentences), line 3: is empty",
        ),
    ],
    ids=["parent", "absolute", "missing member", "line counts", "bad UTF-8", "empty test sentence"],
)
def test_a_bad_archive_of_talks_is_refused_and_nothing_half_made_stays(scripts_root, tmp_path, change, said):
    members = talks_members(TOY["train"], TOY["test"])
    change(members)
    members = {name.replace("TMP", str(tmp_path)): text for name, text in members.items()}
    archive = write_tar(tmp_path / "de-en.tgz", members)
    assert refusal(
        prepare(scripts_root, "iwslt14-de-en", "--out", tmp_path / "out", "--archive", archive)
    ).startswith(said.replace("TMP", str(tmp_path)))
    assert [path.name for path in (tmp_path / "out").iterdir()] == [".lock"]
    assert [path.name for path in (tmp_path / "archives").iterdir()] == [".de-en.tgz.lock"]
    assert not (tmp_path / "evil").exists()


def test_a_truncated_archive_is_refused_and_the_right_one_goes_on(scripts_root, talks_archive, tmp_path):
    whole = talks_archive.read_bytes()
    archive = tmp_path / "de-en.tgz"
    archive.write_bytes(whole[: len(whole) // 2])
    said = refusal(prepare(scripts_root, "iwslt14-de-en", "--out", tmp_path / "out", "--archive", archive))
    assert said.startswith(f"{archive} is damaged or cut short")
    url = f"file://{tmp_path}"
    said = refusal(prepare(scripts_root, "iwslt14-de-en", "--out", tmp_path / "out", IWSLT14_URL=url))
    assert said.startswith(f"{tmp_path / 'archives/de-en.tgz'} is damaged or cut short")
    assert archive.read_bytes() == whole[: len(whole) // 2]
    assert [path.name for path in (tmp_path / "archives").iterdir()] == [".de-en.tgz.lock"]
    result = start_and_stop_after(
        scripts_root,
        "sha256",
        "iwslt14-de-en",
        "--out",
        tmp_path / "out",
        IWSLT14_URL=f"file://{talks_archive.parent}",
    )
    assert (
        hashlib.sha256(whole).hexdigest() in result
        and (tmp_path / "archives/de-en.tgz").read_bytes() == whole
    )


def write_folder(folder, change=lambda texts: None):
    """Write raw text into a folder. `change` may edit the texts, which are keyed by file name."""
    folder.mkdir()
    texts = {
        f"{split}.{lang}": "".join(sentence(words) + "\n" for words in text).encode()
        for split, pairs in (
            ("train", TOY["train"][:150]),
            ("valid", TOY["valid"][:5]),
            ("test", TOY["test"][:5]),
        )
        for lang, text in sides(pairs).items()
    }
    change(texts)
    for name, data in texts.items():
        (folder / name).write_bytes(data)
    return folder


LANGS = ["--source-lang", "de", "--target-lang", "en"]


@pytest.fixture(scope="module")
def raw(scripts_root, tmp_path_factory):
    """Prepare a folder that uses everything that is accepted.

    It has a .gz file, CR LF line ends, odd separators, empty lines in train, and a test set of one line
    without a line end.
    """

    def change(texts):
        texts["train.de"] += (
            "\nKein Englisch.\nEin Hund, „Bello“\u2028und z.B. 5,3 Katzen\x85im\tHaus\rhier\x0c.\n"
            "Nur da.\n".encode()
        )
        texts["train.en"] += (
            "No German.\n \nA dog's cat\u2029and\u200b 5,300 \x1ccats.\nOnly there.\n".encode()
        )
        texts["valid.de"] = texts["valid.de"].replace(b"\n", b"\r\n")
        texts["test.de"], texts["test.en"] = "\ufeffDas  Ende\u2028ist NAH.".encode(), b"The END is near."
        texts["train.en.gz"] = gzip.compress(texts.pop("train.en"))

    folder = write_folder(tmp_path_factory.mktemp("raw") / "folder", change)
    out = folder.parent / "out"
    result = prepare(scripts_root, "raw", folder, *LANGS, "--out", out, "--bpe-merges", 100, "--workers", 1)
    assert result.returncode == 0, result.stderr
    return folder, out, result


def test_odd_lines_are_kept_in_step(raw):
    folder, out, result = raw
    assert lines(out / "tok/train.de")[150:] == [
        "ein hund , „ bello “ und z.b. 5,3 katzen im haus hier .",
        "nur da .",
    ]
    assert lines(out / "tok/train.en")[150:] == ["a dog &apos;s cat and \u200b 5,300 cats .", "only there ."]
    assert "train: 2 pairs left out (2 empty)" in result.stderr
    assert f"{folder}/valid.de: 5 of 5 lines end in CR LF; the CR is removed" in result.stderr
    assert f"{folder}/train.de: 1 lines hold other line separators" in result.stderr
    assert lines(out / "raw/test.de") == ["das  ende ist nah."] and lines(out / "raw/test.en") == [
        "the end is near."
    ]
    assert lines(out / "raw/valid.de") == [sentence(words).lower() for words in sides(TOY["valid"][:5])["de"]]
    sizes = {split: sentences_in(out / f"bin/{split}.de-en.de.idx") for split in ("train", "valid", "test")}
    assert sizes == {"train": 152, "valid": 5, "test": 1}
    assert {split: sentences_in(out / f"bin/{split}.de-en.en.idx") for split in sizes} == sizes


def test_text_without_words_is_split_by_sentencepiece(scripts_root, tmp_path):
    # sentencepiece leaves out lines of more than 4,192 bytes if it is not told otherwise.
    long = f"{'lang ' * 900}Łódź.\n".encode()
    folder = write_folder(tmp_path / "folder", add("train.de", long))
    with (folder / "train.en").open("a") as file:
        file.write("Łódź.\n")
    assert "give one of them" in refusal(
        prepare(
            scripts_root,
            "raw",
            folder,
            *LANGS,
            "--out",
            tmp_path / "x",
            "--vocab-size",
            90,
            "--bpe-merges",
            9,
        ),
        code=2,
    )
    result = prepare(
        scripts_root,
        "raw",
        folder,
        *LANGS,
        "--out",
        tmp_path / "out",
        "--vocab-size",
        90,
        "--keep-case",
        "--workers",
        1,
    )
    assert result.returncode == 0, result.stderr
    settings = json.loads((tmp_path / "out/settings").read_text())
    assert (
        settings["subwords"] == "sentencepiece"
        and settings["tokens"] == "none"
        and settings["dictionaries"] == "separate"
    )
    assert settings["bpe_merges"] is None and settings["clean"]["unit"] == "subwords"
    for lang in ("de", "en"):
        model = SentencePieceProcessor(model_file=str(tmp_path / f"out/bpe/spm.{lang}.model"))
        assert model.unk_id() not in model.encode("Łódź.")
    text = lines(folder / "test.de")
    assert lines(tmp_path / "out/tok/test.de") == text == lines(tmp_path / "out/raw/test.de")
    assert [
        line.replace(" ", "").replace("\u2581", " ").strip() for line in lines(tmp_path / "out/bpe/test.de")
    ] == text
    assert (tmp_path / "out/bin/dict.de.txt").read_bytes() != (tmp_path / "out/bin/dict.en.txt").read_bytes()


def test_tokens_that_are_given_stay_as_they_are_and_references_are_detokenized(scripts_root, raw, tmp_path):
    """Text in Moses tokens gives the same sub-words and dictionaries as the text that it was made from."""
    _, tokenized, _ = raw
    folder = tmp_path / "tokens"
    shutil.copytree(tokenized / "tok", folder)
    for split in ("valid", "test"):  # escapes and punctuation that a second tokenizer would split
        for lang in ("de", "en"):
            with (folder / f"{split}.{lang}").open("a") as file:
                file.write("i don &apos;t know why . i said so , &quot; yes &quot; .\n")
    options = ("--bpe-merges", 100, "--tokenized", "--workers", 1)
    result = prepare(scripts_root, "raw", folder, *LANGS, "--out", tmp_path / "out", *options)
    assert result.returncode == 0, result.stderr
    for name in ("train.de", "train.en", "valid.de", "test.en"):
        assert lines(tmp_path / "out/tok" / name) == lines(folder / name)
    assert lines(tmp_path / "out/raw/test.en")[-1] == """i don't know why. i said so, "yes"."""
    assert lines(tmp_path / "out/bpe/train.de") == lines(tokenized / "bpe/train.de")
    settings = json.loads((tmp_path / "out/settings").read_text())
    assert settings["tokens"] == "given"
    assert like(tmp_path / "out", {"de", "en"})["tokens"] == "moses"


def test_training_text_in_several_files_and_in_a_part_of_valid(scripts_root, tmp_path):
    def change(texts):
        for lang in ("de", "en"):
            pairs = texts.pop(f"train.{lang}").splitlines(keepends=True)
            texts[f"first.{lang}"], texts[f"more.{lang}"] = b"".join(pairs[:100]), b"".join(pairs[100:])
            texts[f"valid.{lang}"] = b"\n" + texts[f"valid.{lang}"]  # an empty line is no fault in train

    folder, out = write_folder(tmp_path / "folder", change), tmp_path / "out"
    options = ("--bpe-merges", 100, "--workers", 1, "--train", "more,first", "--valid-last")
    for number, said in ((6, f"--valid-last 6: {folder}/valid.de has 6 lines"), (7, "--valid-last 7: ")):
        result = prepare(scripts_root, "raw", folder, *LANGS, "--out", out, *options, number)
        assert refusal(result).startswith(said)
    result = prepare(scripts_root, "raw", folder, *LANGS, "--out", out, *options, 2)
    assert result.returncode == 0, result.stderr
    for lang in ("de", "en"):
        first, more, valid = (lines(folder / f"{name}.{lang}") for name in ("first", "more", "valid"))
        assert len(valid) == 6
        assert lines(out / f"text/train.{lang}") == [*more, *first, *valid[:-2]]
        assert lines(out / f"text/valid.{lang}") == valid[-2:]
        assert lines(out / f"text/test.{lang}") == lines(folder / f"test.{lang}")
    result = prepare(scripts_root, "raw", folder, *LANGS, "--out", out, *options, 3)
    assert refusal(result).startswith(f"{out} was prepared with valid last 2 (now 3)")
    with (folder / "more.de").open("a") as file:
        file.write("neu\n")
    result = prepare(scripts_root, "raw", folder, *LANGS, "--out", out, *options, 2)
    assert refusal(result).startswith(f"more.de is not the file that {out} was prepared from")


def test_a_part_of_valid_has_no_empty_line_and_as_many_lines_on_both_sides(scripts_root, tmp_path):
    options = ("--valid-last", 2, "--out", tmp_path / "out")
    blank = lambda texts: texts.update({f"valid.{each}": b"a\nb\nc\n\n" for each in ("de", "en")})  # noqa: E731
    folder = write_folder(tmp_path / "blank", blank)
    said = f"{folder}/valid.de (the valid part), line 2: is empty, and a score needs both sides"
    assert refusal(prepare(scripts_root, "raw", folder, *LANGS, *options)).startswith(said)
    folder = write_folder(tmp_path / "unequal", lambda texts: texts.update({"valid.de": b"a\nb\nc\n"}))
    said = f"{folder}/valid.de has 3 lines and {folder}/valid.en has 5"
    assert refusal(prepare(scripts_root, "raw", folder, *LANGS, *options)).startswith(said)


def test_the_dictionary_is_joined(raw):
    _, out, _ = raw
    joined = (out / "bin/dict.de.txt").read_text()
    assert joined == (out / "bin/dict.en.txt").read_text()
    counts = Counter(" ".join(lines(out / "bpe/train.de") + lines(out / "bpe/train.en")).split())
    assert {
        line.split()[0]: int(line.split()[1]) for line in joined.splitlines() if "madeupword" not in line
    } == counts


def test_a_changed_input_file_is_noticed_and_a_touched_one_is_not(scripts_root, raw):
    folder, out, _ = raw
    again = ("raw", folder, *LANGS, "--out", out, "--bpe-merges", 100)
    data = (folder / "valid.en").read_bytes()
    os.utime(folder / "valid.en", (1, 1))
    assert prepare(scripts_root, *again).returncode == 0
    try:
        (folder / "valid.en").write_bytes(data.replace(b"the", b"THE"))
        said = refusal(prepare(scripts_root, *again))
    finally:
        (folder / "valid.en").write_bytes(data)
    assert (
        said == f"valid.en is not the file that {out} was prepared from; give another folder, or remove "
        f"text, raw, tok, bpe, bin and settings from {out}"
    )


def add(name, data):
    def change(texts):
        texts[name] += data

    return change


def put(name, data):
    return lambda texts: texts.update({name: data})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            add("valid.en", b"more\n"),
            "{folder}/valid.de has 5 lines and {folder}/valid.en has 6: line n of one must translate line n "
            "of the other",
        ),
        (put("test.de", b"\n \n"), "{folder}/test.de: is empty; it must hold lines of text"),
        (put("test.de", b""), "{folder}/test.de: is empty; it must hold lines of text"),
        (
            put("test.de", b"eins\rzwei\r"),
            "{folder}/test.de: is one line that holds CRs; if they end its lines",
        ),
        (add("train.de", b"gut\nsch\xf6n\n"), "{folder}/train.de, line 152: is not UTF-8"),
        (
            lambda t: (add("test.de", b"\n")(t), add("test.en", b"a\n")(t)),
            "{folder}/test.de, line 6: is empty, and a score needs both sides; remove this line",
        ),
        (
            lambda t: (add("valid.de", b"a\n")(t), add("valid.en", "\u200b \n".encode())(t)),
            "{folder}/valid.en, line 6: is empty, and a score needs both sides",
        ),
        (
            lambda t: t.pop("valid.de"),
            "{folder}/valid.de is missing: the folder needs train, valid and test text in both languages",
        ),
        (
            lambda t: t.update({"valid.de.gz": gzip.compress(t.pop("valid.de"))[:-9]}),
            "{folder}/valid.de.gz is damaged or cut short",
        ),
        (
            lambda t: t.update({"valid.de.gz": t.pop("valid.de")}),
            "{folder}/valid.de.gz is damaged or cut short",
        ),
    ],
    ids=[
        "line counts",
        "blank",
        "empty",
        "CR alone",
        "bad UTF-8",
        "one-sided",
        "invisible",
        "missing",
        "truncated gzip",
        "no gzip",
    ],
)
def test_bad_text_is_refused_by_file_and_line(scripts_root, tmp_path, change, said):
    folder = write_folder(tmp_path / "folder", change)
    result = prepare(scripts_root, "raw", folder, *LANGS, "--out", tmp_path / "out")
    assert refusal(result).startswith(said.format(folder=folder))
    assert [path for path in (tmp_path / "out").glob("*") if path.name != ".lock"] == []


def test_text_may_be_corrected_until_it_was_accepted(scripts_root, tmp_path):
    """Words of one letter leave nothing to merge, so they end the run after tok/."""

    def change(texts):
        texts.update({f"train.{lang}": b"a b c\n" for lang in ("de", "en")})
        texts["valid.en"] += b"more\n"

    folder, out = write_folder(tmp_path / "folder", change), tmp_path / "out"
    args = ("raw", folder, *LANGS, "--out", out, "--workers", 1)
    assert "line n of one must translate line n of the other" in refusal(prepare(scripts_root, *args))
    (folder / "valid.de").write_bytes((folder / "valid.de").read_bytes() + b"mehr\n")
    assert (
        refusal(prepare(scripts_root, *args))
        == f"{out}/tok/train.de: train has no word of two letters to learn merges from"
    )
    assert sorted(path.name for path in out.iterdir()) == [".lock", "raw", "settings", "text", "tok"]
    (folder / "train.de").write_bytes(b"aa\n")
    assert refusal(prepare(scripts_root, *args)).startswith(
        f"train.de is not the file that {out} was prepared from"
    )


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--bpe-merges", "0"], "--bpe-merges 0: give 1 or more"),
        (["--out", "a,b"], "--out a,b: fairseq cannot read data from a folder with , or :"),
        (["--out", "a:b"], "--out a:b: fairseq cannot read data from a folder with , or :"),
        (["--lowercase", "--keep-case"], "argument --keep-case: not allowed with argument --lowercase"),
        (["--workers", "x"], "argument --workers: invalid int value: 'x'"),
        (["--bpe", "5"], "unrecognized arguments: --bpe 5"),
        (["--target-lang", "de"], "--target-lang de: must differ from --source-lang"),
        (["--target-lang", "../en"], "--target-lang ../en: give the ending of the files"),
        (
            ["--like", "x", "--keep-case"],
            "--lowercase or --keep-case: cannot be given beside --like, which takes it from x",
        ),
        (
            ["--like", "x", "--joined-dictionary"],
            "--joined-dictionary or --separate-dictionaries: cannot be given beside --like",
        ),
        (["--archive", "x"], "unrecognized arguments: --archive x"),
        (
            ["--tokenized", "--vocab-size", "9"],
            "--tokenized: cannot be given beside --vocab-size, which takes",
        ),
        (["--valid-last", "0"], "--valid-last 0: give 1 or more"),
        (["--train", "a,a"], "--train a,a: give different names of files without their endings"),
        (["--train", "../a"], "--train ../a: give different names of files without their endings"),
        (["--tokenized", "--like", "x"], "--tokenized: cannot be given beside --like, which takes"),
    ],
)
def test_wrong_options_exit_with_2(scripts_root, tmp_path, args, said):
    result = prepare(scripts_root, "raw", tmp_path, *LANGS, "--out", tmp_path / "out", *args)
    assert refusal(result, code=2).startswith(said)
    assert len(result.stderr.splitlines()) == 1 and not (tmp_path / "out").exists()


def test_archives_are_known_by_their_official_names(scripts_root, tmp_path):
    other = tmp_path / "fr-en.tgz"
    other.write_bytes(b"")
    args = ("iwslt14-de-en", "--out", tmp_path / "out", "--archive")
    assert refusal(prepare(scripts_root, *args, other), code=2).startswith(
        f"--archive {other}: must have the official name de-en.tgz"
    )
    missing = tmp_path / "de-en.tgz"
    assert refusal(prepare(scripts_root, *args, missing), code=2).startswith(
        f"--archive {missing}: there is no such file"
    )


SERVERS = ["IWSLT14_URL", "STATMT_URL", "DATA_STATMT_URL", "WIKITEXT_URL", "GLUE_URL"]
RECIPES = [
    "books",
    "classes",
    "glue-mnli",
    "glue-qnli",
    "glue-sst-2",
    "glue-sts-b",
    "iwslt14-de-en",
    "raw",
    "same-document",
    "text",
    "wikitext-103",
    "wikitext-2",
    "wmt14-en-de",
    "wmt17-zh-en",
]
OWN_TEXT = ("books", "classes", "raw", "same-document", "text")  # the recipes that take a folder


@pytest.mark.parametrize("recipe", RECIPES)
def test_help_names_the_command_that_was_called(scripts_root, recipe):
    """The scripts and the command show the same text, each with its own name."""
    script = prepare(scripts_root, recipe, "--help")
    called = [str(scripts_root / ".venv/bin/modular-fairseq"), "prepare", recipe, "--help"]
    command = subprocess.run(called, capture_output=True, text=True)
    assert script.returncode == command.returncode == 0 and script.stderr == command.stderr == ""
    assert script.stdout.count(f"bash data-prep/prepare-{recipe}.sh") >= 2 and "--workers N" in script.stdout
    assert command.stdout.count(f"modular-fairseq prepare {recipe}") >= 2
    begin = (
        command.stdout.index("\n\npositional") if recipe in OWN_TEXT else command.stdout.index("\n\noptions:")
    )
    assert script.stdout.endswith(command.stdout[begin:])
    assert "%(prog)s" not in script.stdout + command.stdout


def test_the_list_of_recipes_is_that_of_the_scripts(scripts_root):
    called = [str(scripts_root / ".venv/bin/modular-fairseq"), "prepare"]
    listing = subprocess.run([*called, "--help"], capture_output=True, text=True).stdout
    listed = re.findall(r"^  (\S+) +\S", listing.partition("\nrecipes:\n")[2], re.MULTILINE)
    assert listed == RECIPES
    assert {path.name for path in (ROOT / "data-prep").iterdir()} == {
        f"prepare-{name}.sh" for name in RECIPES
    }
    unknown = subprocess.run([*called, "iwslt15"], capture_output=True, text=True)
    assert unknown.returncode == 2 and "invalid choice: 'iwslt15'" in unknown.stderr


@pytest.mark.parametrize("recipe", [name for name in RECIPES if name not in OWN_TEXT])
def test_out_is_in_the_repository_for_the_script_and_here_for_the_command(
    scripts_root, recipe, tmp_path, pretrained_text
):
    """The first message names the folder, before anything is downloaded."""
    name = recipe if recipe.startswith("wikitext") else ".".join(recipe.split("-", 1))
    like = ["--like", str(pretrained_text)] if recipe.startswith("glue") else []
    nowhere = {variable: f"file://{tmp_path}/nowhere" for variable in SERVERS}
    environment = {**os.environ, **nowhere}
    program = str(scripts_root / ".venv/bin/modular-fairseq")
    for called, prefix, out in (
        (command(scripts_root, recipe, *like), f"prepare-{recipe}", f"{scripts_root}/data/{name}"),
        ([program, "prepare", recipe, *like], "modular-fairseq prepare", f"data/{name}"),
    ):
        result = subprocess.run(called, cwd=tmp_path, env=environment, capture_output=True, text=True)
        said = result.stderr.splitlines()
        assert result.returncode == 1
        assert said[0].startswith(f"{prefix}: prepares {name} in {out}")
        assert said[-1].startswith(f"{prefix}: error: file://{tmp_path}/nowhere")
        assert "could not be fetched" in said[-1]


def test_an_interrupt_ends_with_130(scripts_root, tmp_path):
    """The program is interrupted while it waits for the lock of its archive."""
    (tmp_path / "archives").mkdir()
    with lock(tmp_path / "archives/.de-en.tgz.lock"):
        process = subprocess.Popen(
            command(scripts_root, "iwslt14-de-en", "--out", tmp_path / "out"),
            stderr=subprocess.PIPE,
            text=True,
            # A test that runs in the background ignores the signal.
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
        )
        with process:
            assert any("waiting for another run" in line for line in process.stderr)
            process.send_signal(signal.SIGINT)
            last = process.stderr.read().splitlines()[-1]
    assert process.returncode == 130
    assert last == "prepare-iwslt14-de-en: interrupted; the same command continues"


def know(root, recipe, *archives):
    """Write the sizes and sums of these archives into the copy of a recipe."""
    path = root / f"modular_fairseq_cli/corpora/recipes/{recipe}.yaml"
    content = yaml.safe_load(path.read_text())
    for archive in archives:
        (known,) = (entry for entry in content["fetch"] if entry["path"].endswith(f"/{archive.name}"))
        found = hashlib.sha256(archive.read_bytes()).hexdigest()
        known |= {"bytes": archive.stat().st_size, "sum": f"sha256:{found}"}
    path.write_text(yaml.safe_dump(content))


def write_test_set(folder, name, pair, source, target):
    """Write a test set in the form in which sacrebleu keeps it."""
    (folder / name).mkdir(parents=True, exist_ok=True)
    for field, text in (
        ("src", source),
        ("ref", target),
        ("docid", source),
        ("genre", source),
        ("origlang", source),
    ):
        (folder / name / f"{name.replace('/', '_')}.{pair}.{field}").write_text(
            "".join(f"{line}\n" for line in text)
        )


@pytest.fixture(scope="module")
def news(scripts_root, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wmt14")
    parts = {
        "training-parallel-europarl-v7.tgz": ("training/europarl-v7", TOY["train"][:200]),
        "training-parallel-commoncrawl.tgz": ("commoncrawl", TOY["train"][200:300]),
        "training-parallel-nc-v9.tgz": ("training/news-commentary-v9", TOY["train"][300:400]),
    }
    odd = {
        "de": ["Ein alt-\u00adneuer  „Hund“ .", "kurz"],
        "en": ["An old-new “dog”\u2028 .", "a much longer sentence than that one"],
    }
    archives = []
    for name, (prefix, pairs) in parts.items():
        texts = {
            lang: [*map(sentence, text), *(odd[lang] if prefix == "commoncrawl" else [])]
            for lang, text in sides(pairs).items()
        }
        members = {
            f"{prefix}.de-en.{lang}": "".join(line + "\n" for line in text) for lang, text in texts.items()
        }
        archives.append(write_tar(folder / name, {f"{prefix}.fr-en.fr": "autre\n", **members}))
    know(scripts_root, "wmt14-en-de", *archives)
    for name, split in (("wmt13", "valid"), ("wmt14/full", "test")):
        both = sides(TOY[split])
        write_test_set(
            folder / "sacrebleu",
            name,
            "en-de",
            map(sentence, both["en"]),
            [sentence(words) for words in both["de"]],
        )
    given = [part for archive in archives for part in ("--archive", archive)]
    out = folder / "out"
    result = prepare(
        scripts_root,
        "wmt14-en-de",
        *given,
        "--out",
        out,
        "--bpe-merges",
        250,
        "--workers",
        1,
        SACREBLEU=folder / "sacrebleu",
    )
    assert result.returncode == 0, result.stderr
    return out, given, result


def test_news_is_cased_normalized_and_cleaned_by_sub_words(news):
    out, _, result = news
    train = {lang: lines(out / f"tok/train.{lang}") for lang in ("en", "de")}
    assert train["de"][300:302] == ["Ein alt- neuer &quot; Hund &quot; .", "kurz"]
    assert train["en"][300] == "An old @-@ new &quot; dog &quot; ."
    assert len(train["de"]) == len(train["en"]) == 402
    assert train["de"][0].split()[0][0].isupper() and train["de"][0].lower() == TOY["train"][0][0]
    fit = sum(1 for line in lines(out / "bpe/train.en"))
    assert 300 < fit < 402 and f"({402 - fit} of too unequal lengths)" in result.stderr
    for en, de in zip(lines(out / "bpe/train.en"), lines(out / "bpe/train.de"), strict=True):
        m, n = len(en.split()), len(de.split())
        assert max(m, n) <= 1.5 * min(m, n)
    assert lines(out / "raw/test.de") == [sentence(words) for words in sides(TOY["test"])["de"]]
    assert [len(lines(out / f"bpe/{split}.en")) for split in ("valid", "test")] == [30, 30]
    assert (out / "bin/dict.en.txt").read_bytes() == (out / "bin/dict.de.txt").read_bytes()
    assert all(
        (out / f"bin/{split}.en-de.{lang}.bin").stat().st_size
        for split in ("train", "valid", "test")
        for lang in ("en", "de")
    )


def test_given_archives_are_not_touched(news):
    out, given, _ = news
    for path in given[1::2]:
        link = out.parent / "archives" / path.name
        assert link.is_symlink() and link.resolve() == path and not path.is_symlink()


def test_talks_prepared_like_news_take_its_tokens_merges_and_dictionaries(
    scripts_root, news, talks_archive, tmp_path
):
    other, _, _ = news
    out = tmp_path / "out"
    args = ("iwslt14-de-en", "--out", out, "--archive", talks_archive, "--like", other, "--workers", 1)
    result = prepare(scripts_root, *args)
    assert result.returncode == 0, result.stderr
    assert (out / "bpe/codes").read_bytes() == (other / "bpe/codes").read_bytes()
    for lang in ("de", "en"):
        assert (out / f"bin/dict.{lang}.txt").read_bytes() == (other / f"bin/dict.{lang}.txt").read_bytes()
    assert lines(out / "tok/test.de")[0][0].isupper() and lines(out / "raw/test.de") == [
        sentence(words) for words in sides(TOY["test"])["de"]
    ]
    settings = json.loads((out / "settings").read_text())
    assert (
        settings["aggressive_hyphens"]
        and settings["normalize"]
        and not settings["lowercase"]
        and settings["bpe_merges"] == 250
    )
    assert settings["clean"]["max"] == 175 and settings["valid_every"] == 23
    assert prepare(scripts_root, *args).stderr.endswith("nothing to do\n")
    said = refusal(prepare(scripts_root, *args[:-4]))
    assert "was prepared with" in said and "give another folder" in said


def test_like_needs_a_finished_folder_of_the_same_languages(scripts_root, news, tmp_path):
    other, _, _ = news
    folder = write_folder(
        tmp_path / "folder",
        lambda texts: texts.update({name.replace(".en", ".fr"): text for name, text in texts.items()}),
    )
    args = (
        "raw",
        folder,
        "--source-lang",
        "de",
        "--target-lang",
        "fr",
        "--out",
        tmp_path / "out",
        "--like",
        other,
    )
    assert (
        refusal(prepare(scripts_root, *args))
        == f"--like {other}: has de and en, and this corpus is de and fr"
    )
    unfinished = tmp_path / "unfinished"
    unfinished.mkdir()
    shutil.copy(other / "settings", unfinished)
    said = refusal(
        prepare(scripts_root, "raw", folder, *LANGS, "--out", tmp_path / "out", "--like", unfinished)
    )
    assert said == (
        f"--like {unfinished}: is not a finished folder of `modular-fairseq prepare` with tokens; "
        "prepare it first"
    )
    inside = other / "bin"
    said = refusal(prepare(scripts_root, "raw", folder, *LANGS, "--out", tmp_path / "out", "--like", inside))
    assert said == f"--like {inside}: give {other}, the folder that was prepared"
    assert not (tmp_path / "out").exists()


def test_every_100th_pair_for_validation_and_a_wrong_valid(scripts_root, news, tmp_path):
    _, given, _ = news
    out = tmp_path / "out"
    args = ("wmt14-en-de", *given, "--out", out)
    assert refusal(prepare(scripts_root, *args, "--valid", "newstest2012"), code=2).startswith(
        "--valid newstest2012: give newstest2013 or every-100th"
    )
    nowhere = tmp_path / "file"
    nowhere.write_text("")
    said = refusal(prepare(scripts_root, *args, "--valid", "every-100th", SACREBLEU=nowhere))
    assert said.startswith("`sacrebleu -t wmt14/full -l en-de --echo src` could not deliver the test set (")
    assert not (out / "text").exists() and list((tmp_path / "archives").glob("train*")) == []


@pytest.fixture(scope="module")
def chinese(scripts_root, tmp_path_factory):
    """Prepare a corpus in which toy German without spaces stands for Chinese."""
    folder = tmp_path_factory.mktemp("wmt17")

    def glued(pairs):
        both = sides(pairs)
        return [words.replace(" ", "") for words in both["de"]], [sentence(words) for words in both["en"]]

    members = {
        f"training/news-commentary-v12.zh-en.{lang}": "".join(line + "\n" for line in text)
        for lang, text in zip(("zh", "en"), glued(TOY["train"]), strict=True)
    }
    archive = write_tar(folder / "training-parallel-nc-v12.tgz", members)
    know(scripts_root, "wmt17-zh-en", archive)
    write_test_set(folder / "sacrebleu", "wmt17/dev", "zh-en", *glued(TOY["valid"]))
    write_test_set(folder / "sacrebleu", "wmt17", "zh-en", *glued(TOY["test"]))
    args = ("wmt17-zh-en", "--archive", archive, "--out", folder / "out", "--workers", 1)
    return folder / "out", args, folder / "sacrebleu"


def test_chinese_is_split_by_a_model_for_each_language(scripts_root, chinese):
    import sentencepiece

    out, args, test_sets = chinese
    said = refusal(prepare(scripts_root, *args, "--vocab-size", 90000, SACREBLEU=test_sets))
    assert (
        said.startswith("--vocab-size 90000: sentencepiece cannot learn a vocabulary of this size from")
        and "train.zh" in said
    )
    shutil.rmtree(out)
    result = prepare(scripts_root, *args, "--vocab-size", 200, SACREBLEU=test_sets)
    assert result.returncode == 0, result.stderr
    for lang in ("zh", "en"):
        model = sentencepiece.SentencePieceProcessor(model_file=str(out / f"bpe/spm.{lang}.model"))
        assert model.vocab_size() == 200
        text = lines(out / f"raw/test.{lang}")
        assert text == lines(out / f"tok/test.{lang}") == lines(out / f"text/test.{lang}")
        assert [model.decode(line.split()) for line in lines(out / f"bpe/test.{lang}")] == text
        assert len(lines(out / f"bin/dict.{lang}.txt")) <= 200
    assert (out / "bin/dict.zh.txt").read_bytes() != (out / "bin/dict.en.txt").read_bytes()
    assert sentences_in(out / "bin/train.zh-en.zh.idx") == len(lines(out / "bpe/train.zh")) > 300


@pytest.mark.parametrize(("lang", "coverage"), [("zh", 0.9995), ("ja", 0.9995), ("en", 1.0)])
def test_only_languages_of_many_characters_may_lose_rare_ones(tmp_path, monkeypatch, lang, coverage):
    import sentencepiece

    given = []
    monkeypatch.setattr(sentencepiece.SentencePieceTrainer, "train", lambda **options: given.append(options))
    (tmp_path / "text").touch()
    learn_pieces(tmp_path / "text", lang, 200, 1, tmp_path / "model")
    assert [options["character_coverage"] for options in given] == [coverage]


@pytest.mark.parametrize("name", ["wikitext-103", "wikitext-2"])
def test_wikitext_is_binarized_as_published(scripts_root, tmp_path, name):
    archive = tmp_path / f"{name}-v1.zip"
    articles = {
        split: f" \n = Title of {split} = \n \n" + "".join(f" {de} <unk> @-@ \n" for de, _ in pairs[:40])
        for split, pairs in TOY.items()
    }
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr(f"{name}/", "")
        for split, text in articles.items():
            file.writestr(f"{name}/wiki.{split}.tokens", text)
    recipe = scripts_root / f"modular_fairseq_cli/corpora/recipes/{name}.yaml"
    found = hashlib.sha1(archive.read_bytes()).hexdigest()
    recipe.write_text(re.sub("sha1:[0-9a-f]{40}", f"sha1:{found}", recipe.read_text()))
    out = tmp_path / "out"
    result = prepare(scripts_root, name, "--archive", archive, "--out", out)
    assert result.returncode == 0, result.stderr
    for split, text in articles.items():
        assert (out / f"text/{split}.txt").read_text() == text
        assert lines(out / f"text/{split}.documents") == [str(text.count("\n"))]
        assert sentences_in(out / f"bin/{split}.idx") == text.count("\n")
    counts = Counter(articles["train"].split())
    words = [line.split() for line in lines(out / "bin/dict.txt") if "madeupword" not in line]
    assert {word: int(count) for word, count in words} == {
        word: count for word, count in counts.items() if word != "<unk>"
    }
    assert sorted(path.name for path in out.iterdir()) == [
        ".lock",
        "bin",
        "preprocess.log",
        "settings",
        "text",
    ]

    archive.write_bytes(archive.read_bytes() + b"x")
    said = refusal(prepare(scripts_root, name, "--archive", archive, "--out", tmp_path / "other"))
    assert said.startswith(f"{archive} has the sha1 checksum ")


@pytest.fixture
def documents(tmp_path):
    return write_documents(tmp_path / "documents")


@pytest.mark.parametrize(
    ("options", "pieces"),
    [(["--bpe-merges", 60], "@@"), (["--vocab-size", 90], "\u2581"), (["--words"], "")],
)
def test_text_in_one_language_keeps_its_lines_and_its_documents(
    scripts_root, documents, tmp_path, options, pieces
):
    out = tmp_path / "out"
    result = prepare(scripts_root, "text", documents, "--out", out, *options)
    assert result.returncode == 0, result.stderr
    for split, found in DOCUMENTS.items():
        given = "\n".join("".join(f"{line}\n" for line in document) for document in found)
        assert (out / f"text/{split}.txt").read_text() == given
        counted = [len(document) + 1 for document in found]
        counted[-1] -= 1  # no blank line after the last one
        assert lines(out / f"text/{split}.documents") == [*map(str, counted)]
        assert sentences_in(out / f"bin/{split}.idx") == sum(counted)
    last = out / ("bpe" if pieces else "text") / "test.txt"
    assert (pieces in last.read_text()) and last.read_text().count("\n\n") == 1
    assert not (out / "raw").exists()
    again = prepare(scripts_root, "text", documents, "--out", out, *options)
    assert "is already prepared" in again.stderr and again.returncode == 0


def test_other_text_is_prepared_with_the_merges_and_the_dictionary_of_a_text(
    scripts_root, documents, tmp_path
):
    first, second = tmp_path / "first", tmp_path / "second"
    given = ["--bpe-merges", 60, "--lowercase"]
    assert prepare(scripts_root, "text", documents, "--out", first, *given).returncode == 0
    other = tmp_path / "other"
    other.mkdir()
    for split in DOCUMENTS:
        (other / f"{split}.txt").write_text("\n".join(DOCUMENTS["test"][0]))
    result = prepare(scripts_root, "text", other, "--out", second, "--like", first)
    assert result.returncode == 0, result.stderr
    assert (first / "bin/dict.txt").read_bytes() == (second / "bin/dict.txt").read_bytes()
    assert (first / "bpe/codes").read_bytes() == (second / "bpe/codes").read_bytes()
    assert lines(first / "bpe/test.txt")[:5] == lines(second / "bpe/test.txt")
    with (first / "bin/dict.txt").open("a") as file:  # as if it had been prepared again, from other text
        file.write("more 1\n")
    again = prepare(scripts_root, "text", other, "--out", second, "--like", first)
    assert f"{first} was prepared again, with other sub-words or dictionaries, after {second}" in refusal(
        again
    )


@pytest.mark.parametrize("options", [["--words"], ["--bpe-merges", 60, "--normalize"]])
def test_the_dictionary_of_a_text_keeps_the_most_frequent_types(scripts_root, documents, tmp_path, options):
    (documents / "more.txt").write_text("« often often often , once »\n")
    options = [*options, "--train", "train,more"]
    kept = []
    for name, size in (("all", []), ("few", ["--dictionary-size", 20])):
        result = prepare(scripts_root, "text", documents, "--out", tmp_path / name, *options, *size)
        assert result.returncode == 0, result.stderr
        kept.append([line.split()[0] for line in lines(tmp_path / name / "bin/dict.txt")])
    assert len(kept[0]) > 20 and kept[1][:16] == kept[0][:16]
    assert len([word for word in kept[1] if "madeupword" not in word]) == 16
    text = (tmp_path / "all" / ("text" if "--words" in options else "tok") / "train.txt").read_text()
    assert ("«" in text) == ("--normalize" not in options)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--words", "--bpe-merges", 60], "--words: cannot be given beside --bpe-merges"),
        (
            ["--like", "x", "--language", "de"],
            "--language: cannot be given beside --like, which",
        ),
        (["--words", "--language", "de"], "--words: cannot be given beside --language"),
        (["--tokenized", "--language", "de"], "--language: has no effect beside --tokenized; leave it out"),
        (["--words", "--lowercase"], "--words: cannot be given beside --lowercase or --keep-case"),
        (["--documents", "chapters"], "argument --documents: invalid choice: 'chapters'"),
        (["--normalize", "--words"], "--words: cannot be given beside --normalize"),
        (["--normalize", "--tokenized"], "--tokenized: cannot be given beside --normalize"),
        (["--normalize", "--vocab-size", 90], "--normalize: cannot be given beside --vocab-size"),
        (["--like", "x", "--dictionary-size", 9], "--dictionary-size: cannot be given beside --like"),
        (["--dictionary-size", 0], "--dictionary-size 0: give 1 or more"),
    ],
)
def test_options_for_text_that_exclude_each_other(scripts_root, documents, tmp_path, options, sentence):
    said = refusal(prepare(scripts_root, "text", documents, "--out", tmp_path / "out", *options), code=2)
    assert said.startswith(sentence)


def test_missing_text_is_named_with_what_the_folder_needs(scripts_root, documents, tmp_path):
    said = refusal(prepare(scripts_root, "text", documents, "--train", "x", "--out", tmp_path / "out"))
    assert said.startswith(f"{documents}/x.txt is missing: the folder needs x.txt or x.txt.gz; --train gives")
    said = refusal(prepare(scripts_root, "text", tmp_path / "no", "--out", tmp_path / "out"))
    assert said == f"{tmp_path}/no is no folder; give the folder that has the text"


def test_text_without_a_split_is_refused(scripts_root, documents, tmp_path):
    (documents / "valid.txt").unlink()
    said = refusal(prepare(scripts_root, "text", documents, "--out", tmp_path / "out"))
    assert said.startswith(f"{documents}/valid.txt is missing: the folder needs {{train,valid,test}}.txt")
