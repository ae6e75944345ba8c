"""Tests of the parts of `modular-fairseq prepare`.

Tokens and sub-words equal those of the libraries, and dangerous archives and wrong downloads are refused.
"""

import io
import json
import os
import random
import sys
import tarfile
import zipfile
from collections import Counter
from types import SimpleNamespace

import pytest
import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from modular_fairseq_cli.corpora import (
    documents,
    lines,
    moses,
    progress,
    settings,
    subwords,
    texts,
    tokens,
)
from modular_fairseq_cli.corpora.archives import damage_named, open_archive
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest
from modular_fairseq_cli.toy_corpus import command as toy_corpus

SENTENCES = [
    "He said: \"It's 5,300 dollars (about 4.000 €), isn't it?\" -- \"No, it's No. 5.\", e.g. Mr. Smith's.",
    "Am 3. Mai z. B. sagte Dr. Müller u.a.: „Das geht nicht“ – usw. und so fort ...",
    "The U.S. well-known, state-of-the-art, e-mail@example.com, http://example.com/a?b=c&d=[e]|f.",
    "' leading, trailing ' and ''double'' `back` ticks ,comma ,, .dot .. ...",
    "etc. and Etc. And a,b,c 1,2,3 a,1 1,a ,1, word,. word., word.' word'.",
    "DOTMULTI and DOTDOTMULTI. A No. 7 No. x Prof. Dr. h.c.",
    "5 % of 3 000 ; x : y ( z ) . nº 5 und 20 ºC « oui » ‚so‘ ’s",
]
WORDS = ["a", "B", "5", "50", "s", "No", "etc", "Mr", "z.B", "ä", "Straße", "DOTMULTI", "DOT", "x"]
MARKS = [
    *".,'-`\"();:!?&|<>[]%/@",
    "..",
    "...",
    ",,",
    "''",
    "“",
    "”",
    "„",
    "’",
    "‘",
    "´",
    "«",
    "»",
    "–",
    "—",
    "…",
    "nº",
    "ºC",
    "cm",
]
MARKS += [
    "\u00a0",
    "\u00ad",
    "\u200b",
    "\u2028",
    "\x85",
    "\t",
    "\x01",
    "\r",
    "½",
    "Σ",
    "İ",
    "日本",
    "  ",
    *[" "] * 25,
]


def random_lines(count, seed):
    rng = random.Random(seed)
    return [
        "".join(rng.choice(WORDS if rng.random() < 0.5 else MARKS) for _ in range(rng.randrange(14)))
        for _ in range(count)
    ]


def library_tokens(tokenizer, normalizer, line, aggressive):
    if normalizer:
        line = regex.sub(r"\p{C}", " ", normalizer.normalize(line))
    return tokenizer.tokenize(line, aggressive_dash_splits=aggressive, return_str=True)


@pytest.mark.parametrize("lang", ["en", "de", "fr"])
@pytest.mark.parametrize("news", [False, True], ids=["talks", "news"])
def test_tokens_are_those_of_sacremoses(lang, news, monkeypatch):
    """sacremoses' own class checks difficult sentences, and the class with faster functions random lines."""
    monkeypatch.setattr(moses, "MAX_PIECES", 500)
    ours = moses.Tokenizer(lang, normalize=news, aggressive_hyphens=news)
    normalizer = MosesPunctNormalizer(lang) if news else None
    for tokenizer, text in (
        (MosesTokenizer(lang), SENTENCES + random_lines(100, 1)),
        (moses.QuickMosesTokenizer(lang), random_lines(4000, 2)),
    ):
        for line in text:
            assert ours(line) == library_tokens(tokenizer, normalizer, line, news), line
    assert len(ours.pieces) <= 500


def test_lower_case_comes_after_the_tokens():
    tokenizer = moses.Tokenizer("en", lowercase=True)
    assert (
        tokenizer("Mr. Smith met DR. No. 5 at 5 P.M.")
        == MosesTokenizer("en").tokenize("Mr. Smith met DR. No. 5 at 5 P.M.", return_str=True).lower()
    )
    assert tokenizer("Mr. Smith") == "mr. smith" and tokenizer("Miss. Smith") == "miss . smith"


def test_sub_words_are_those_of_subword_nmt(tmp_path, monkeypatch):
    monkeypatch.setattr(subwords, "MAX_WORDS", 20)
    text = [words for pair in toy_corpus.draw_splits({"train": 200}, seed=5)["train"] for words in pair]
    codes = io.StringIO()
    learn_bpe(iter(text[:200]), codes, 150)
    (tmp_path / "codes").write_text(codes.getvalue())
    ours, theirs = subwords.Merges(tmp_path / "codes"), BPE(io.StringIO(codes.getvalue()))
    for line in [*text, "&apos;s 日本語 ½ @-@ x", "a", ""]:
        assert ours(line) == theirs.process_line(line)
    assert len(ours.known) < 60


@pytest.mark.parametrize(
    ("source", "target", "verdict"),
    [
        ("a b c", "a b", None),
        ("a b c d", "a b", "of too unequal lengths"),
        ("a b", "a b c d", "of too unequal lengths"),
        ("a b c d e", "a b c d e", None),
        ("a b c d e f", "a b c d e", "too long"),
        ("a", "a b", "too short"),
        ("", "a", "empty"),
        ("a b", "c " + "x" * 1000, None),
        ("a b", "c " + "x" * 1001, "too long"),
    ],
)
def test_train_pairs_are_left_out_as_by_moses(source, target, verdict):
    assert (
        tokens.unfit(source, target, {"min": 2 if verdict == "too short" else 1, "max": 5, "ratio": 1.5})
        == verdict
    )


@pytest.mark.parametrize("block", [1, 2, 5, 23, 100])
def test_each_nth_pair_is_for_validation_whatever_the_blocks(tmp_path, block):
    (tmp_path / "tok").mkdir()
    (tmp_path / "raw").mkdir()
    text = [str(i) for i in range(1, 101)]
    with tokens.Writer(tmp_path / "tok", tmp_path / "raw", ("de", "en"), "train", 23) as writer:
        for begin in range(0, 100, block):
            part = text[begin : begin + block]
            writer.write([part, [f"e{n}" for n in part]], [[f"raw {n}" for n in part]] * 2)
    assert (tmp_path / "tok/valid.de").read_text() == "23\n46\n69\n92\n"
    assert (tmp_path / "raw/valid.en").read_text() == "raw 23\nraw 46\nraw 69\nraw 92\n"
    assert (tmp_path / "tok/train.en").read_text() == "".join(f"e{n}\n" for n in range(1, 101) if n % 23)
    assert writer.pairs == {"train": 96, "valid": 4, "test": 0} and not (tmp_path / "raw/train.de").exists()


def test_lines_end_at_lf_only(capsys):
    data = b"\xef\xbb\xbfone\xc2\x85two\r\nthr\x0bee\x0c\xe2\x80\xa8\n\n\x1c \t four\r\rfive"
    read = list(lines.read_lines(io.BytesIO(data), "file"))
    assert read == ["one two", "thr ee  ", "", "  \t four  five"]
    assert "\n".join(read).splitlines() == read
    said = capsys.readouterr().err
    assert "file: 1 of 4 lines end in CR LF" in said and "file: 3 lines hold other line separators" in said


def test_a_bad_byte_is_found_in_its_line():
    with pytest.raises(UsageError, match="^file, line 3: is not UTF-8"):
        list(lines.read_lines(io.BytesIO(b"a\r\n\xe2\x80\xa8\nb\xc3\n"), "file"))


def test_blocks_hold_every_line_once(tmp_path):
    out = io.BytesIO()
    side = lines.write_lines((f"{n}" if n != 7000 else " \u200b" for n in range(1, 25_001)), out, "name")
    assert side == lines.Side("name", 25_000, 7000)
    (tmp_path / "text").write_bytes(out.getvalue())
    for size in (1000, 25_000, 24_999):
        blocks = [lines.split_block(block) for (block,) in lines.read_chunks([tmp_path / "text"], size)]
        assert [len(block) for block in blocks[:-1]] == [size] * (len(blocks) - 1)
        assert "".join(line + "\n" for block in blocks for line in block).encode() == out.getvalue()


def test_talks_lose_their_tags_and_test_sets_their_curly_apostrophes():
    members = {
        "train": "<url>u</url>\n<keywords>k</keywords>\n<speaker>S</speaker>\n<talkid>1</talkid>\n<title>A < "
        "B</title>\n"
        "<description>TED Talk Subtitles</description>\n It’s the <title>.\n"
        '<reviewer href="r">R</reviewer>\n<doc docid="1">\n</doc>\n',
        "test": '<doc docid="1">\n<title>T</title>\n<seg id="1"> It’s R&amp;D </seg>\n<hl>\n'
        '  <seg id="12">no end\n</hl>\n',
    }

    def member(name):
        return io.BytesIO(members[name].encode())

    assert list(texts.tagged(member, "train", "a.tgz")) == ["A < B", "TED Talk Subtitles", " It’s the ."]
    assert list(texts.segments(member, "test", "a.tgz")) == ["It's R&amp;D", "no end"]


@pytest.mark.parametrize(("kind", "taken"), [("moses", False), ("none", True)])
def test_like_takes_lengths_only_where_words_are_no_measure(tmp_path, kind, taken):
    chosen = {name: name for name in settings.FROM_LIKE} | {
        "tokens": kind,
        "source_lang": "zh",
        "target_lang": "en",
        "clean": "rule",
    }
    settings.write(tmp_path, chosen)
    (tmp_path / "bin").mkdir()
    found = settings.like(tmp_path, ("en", "zh"))
    assert found.pop("like") == str(tmp_path) and ("clean" in found) == taken
    assert found.pop("like_files") == {}  # as there are neither sub-words nor dictionaries
    assert found == {name: chosen[name] for name in found} and set(found) >= set(settings.FROM_LIKE)
    assert json.loads((tmp_path / "settings").read_text()) == chosen


def tar_with(path, name, kind=tarfile.REGTYPE, data=b"text\n", **fields):
    info = tarfile.TarInfo(name)
    info.type, info.size = kind, len(data) if kind == tarfile.REGTYPE else 0
    for field, value in fields.items():
        setattr(info, field, value)
    with tarfile.open(path, "w:gz") as tar:
        tar.addfile(info, io.BytesIO(data))
    return path


def zip_with(path, name, mode=0o100644, data=b"text\n"):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    with zipfile.ZipFile(path, "w") as file:
        file.writestr(info, data)
    return path


def read_member(path, member):
    with open_archive(path, path.name) as open_member:
        return open_member(member).read()


def test_members_are_found_by_name(tmp_path):
    assert read_member(tar_with(tmp_path / "a.tgz", "./folder/text"), "folder/text") == b"text\n"
    assert read_member(zip_with(tmp_path / "a.zip", "folder/text"), "folder/text") == b"text\n"
    with pytest.raises(
        UsageError, match="^a.zip has no member text, so it is not the official archive; give that one$"
    ):
        read_member(tmp_path / "a.zip", "text")


@pytest.mark.parametrize(
    "name", ["../text", "a/../../text", "/etc/text", "..\\text", "\\text", "C:\\text", "a/.."]
)
@pytest.mark.parametrize("write", [tar_with, zip_with])
def test_names_that_lead_out_are_refused(tmp_path, write, name):
    path = write(tmp_path / ("a.tgz" if write is tar_with else "a.zip"), name)
    with pytest.raises(
        UsageError,
        match=f"^{path.name} has the member '.*', whose name leads out of the folder; it is refused$",
    ):
        read_member(path, "text")


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.BLKTYPE, tarfile.FIFOTYPE]
)
def test_links_and_devices_are_refused(tmp_path, kind):
    path = tar_with(tmp_path / "a.tgz", "text", kind, linkname="/etc/passwd")
    with pytest.raises(
        UsageError, match="^a.tgz has the member 'text', which is a link or a device; it is refused$"
    ):
        read_member(path, "text")


@pytest.mark.parametrize("mode", [0o120777, 0o060666, 0o010644], ids=["link", "device", "pipe"])
def test_links_and_devices_in_a_zip_are_refused(tmp_path, mode):
    with pytest.raises(UsageError, match="^a.zip has the member 'text', which is a link or a device"):
        read_member(zip_with(tmp_path / "a.zip", "text", mode=mode, data=b"/etc/passwd"), "text")


@pytest.mark.parametrize("write", [tar_with, zip_with])
@pytest.mark.parametrize("share", [0, 0.1, 0.5, 0.9])
def test_truncated_archives_are_refused(tmp_path, write, share):
    path = write(
        tmp_path / ("a.tgz" if write is tar_with else "a.zip"),
        "text",
        data=random.Random(1).randbytes(50_000),
    )
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    with pytest.raises(UsageError, match=f"^{path} is damaged or cut short"):
        read_member(path, "text")


@pytest.mark.parametrize("damage", ["a bit", "the last byte", "no archive", "nothing"])
def test_an_archive_is_read_to_its_end_before_it_is_believed(tmp_path, damage):
    """In the first two cases the members are whole, and only the checksum at the end reveals the damage."""
    path = tmp_path / "a.tgz"
    with tarfile.open(path, "w:gz") as tar:
        info = tarfile.TarInfo("a")
        info.size = 5
        tar.addfile(info, io.BytesIO(b"text\n"))
    data = bytearray(path.read_bytes())
    with open_archive(path, "a.tgz") as open_member:
        assert open_member("a").read() == b"text\n"
    if damage == "a bit":
        data[-8] ^= 1  # a bit of the checksum
    damaged = {"a bit": data, "the last byte": data[:-1], "no archive": b"garbage", "nothing": b""}[damage]
    path.write_bytes(damaged)
    with (
        pytest.raises(UsageError, match=f"^{path} is damaged or cut short") as error,
        open_archive(path, "a.tgz"),
    ):
        pass
    assert "\n" not in str(error.value)


def test_other_errors_are_not_called_damage(tmp_path):
    with pytest.raises(OSError, match="No space left"), damage_named(tmp_path):
        raise OSError(28, "No space left on device")


def test_each_new_input_file_is_read_once(tmp_path, monkeypatch):
    for split in texts.SPLITS:
        for lang in ("de", "en"):
            (tmp_path / f"{split}.{lang}").write_text(f"{split} {lang}\n")
    summed, settings = [], {"source_lang": "de", "target_lang": "en"}
    monkeypatch.setattr(texts, "digest", lambda path: summed.append(path.name) or digest(path))
    kept = texts.input_files(tmp_path, settings, {})
    assert len(summed) == 6 and len(set(summed)) == 6
    assert texts.input_files(tmp_path, settings, kept) == kept and len(summed) == 6
    os.utime(tmp_path / "train.de", (1, 1))
    (tmp_path / "test.en").write_text("another\n")
    changed = texts.input_files(tmp_path, settings, kept)
    assert summed[6:] == ["train.de", "test.en"]
    assert {name for name in kept if kept[name] != changed[name]} == {"test.en"}
    assert changed["test.en"]["sha256"] == digest(tmp_path / "test.en")


@pytest.mark.parametrize(
    ("terminal", "interval", "first", "second"),
    [
        (False, 30, "tokens: 180 lines, 6 lines/s\n", "tokens: 300 lines, 5 lines/s\n"),
        (
            True,
            0.5,
            "\r\033[Ktokens: 180 lines, 360 lines/s",
            "\r\033[Ktokens: 300 lines, 300 lines/s",
        ),
    ],
)
def test_progress_is_shown_after_each_interval(terminal, interval, first, second, monkeypatch, capsys):
    now = 100.0
    monkeypatch.setattr(progress, "time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal)
    counter = progress.Progress("tokens")
    for halves, expected in enumerate(("", "", first, "", second)):
        now = 100.0 + halves * interval / 2
        counter.add(60)
        shown = capsys.readouterr().err
        assert shown.endswith(expected) and bool(shown) == bool(expected)


def test_no_progress_line_is_written_for_every_block(capsys):
    counter = progress.Progress("tokens of train")
    for _ in range(1000):
        counter.add(1000)
    counter.done()
    said = capsys.readouterr().err
    assert Counter(said)["\n"] == 1 and "tokens of train: 1,000,000 lines, " in said and "\r" not in said


@pytest.mark.parametrize(
    ("rule", "text", "lengths"),
    [
        ("blank-lines", ["a", "b", "", "", "c", "", "d"], [4, 2, 1]),
        ("blank-lines", ["", "a", ""], [3]),
        ("titles", [" ", " = A = ", " ", " = = B = = ", " ", " text ", " ", " = C = ", " text "], [7, 2]),
        ("titles", ["text", "", "= A =", "= no title =", "", "=="], [2, 4]),
    ],
)
def test_documents_begin_where_the_rule_says(rule, text, lengths):
    found = documents.Documents(rule)
    assert list(found.count(text)) == text
    assert found.lengths == lengths and found.text() == "".join(f"{each}\n" for each in lengths)
