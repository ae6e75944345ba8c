"""Tests of the parts of `modular-fairseq prepare`.

Tokens and sub-words equal those of the libraries, and dangerous archives and wrong downloads are refused.
"""

import http.server
import io
import itertools
import json
import os
import random
import socket
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from collections import Counter

import pytest
import regex
from sacremoses import MosesPunctNormalizer, MosesTokenizer
from subword_nmt.apply_bpe import BPE
from subword_nmt.learn_bpe import learn_bpe

from modular_fairseq_cli.corpora import (
    fetch,
    lines,
    moses,
    parallel,
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


# --- lines
# -----------------------------------------------------------------------------------------------


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
    found = settings.like(tmp_path, {"en", "zh"})
    assert found.pop("like") == str(tmp_path) and ("clean" in found) == taken
    assert found == {name: chosen[name] for name in found} and set(found) >= set(settings.FROM_LIKE)
    assert json.loads((tmp_path / "settings").read_text()) == chosen


# --- several processes
# -----------------------------------------------------------------------------------------------


def make_square(offset):
    def square(x):
        if x == 13:
            raise UsageError("thirteen")
        if x == 1000:
            os._exit(9)
        return x * x + offset, os.getpid()

    return square


def test_blocks_are_worked_on_in_order_and_not_read_ahead():
    source = iter(itertools.count(20))
    results = parallel.map_blocks(make_square, (1,), source, workers=2)
    taken = list(itertools.islice(results, 50))
    results.close()
    assert [value for value, _ in taken] == [n * n + 1 for n in range(20, 70)]
    assert os.getpid() not in {process for _, process in taken}
    assert next(source) <= 70 + 5
    assert list(parallel.map_blocks(make_square, (1,), [3], workers=1)) == [(10, os.getpid())]


@pytest.mark.parametrize(("bad", "said"), [(13, "thirteen"), (1000, "a worker process was killed")])
def test_what_fails_in_a_worker_is_said_by_the_parent(bad, said):
    with pytest.raises(UsageError, match=said):
        list(parallel.map_blocks(make_square, (0,), [1, 2, bad, 4], workers=2))


ENDING = {
    "workers of map_blocks": "from modular_fairseq_cli.corpora import parallel; "
    "list(parallel.map_blocks(make, (), [1, 2], 2))",
    "program and its pool": "import subprocess; from modular_fairseq_cli import lifetime; "
    "subprocess.run(lifetime.command('pool', sys.argv[1]))",
    "no program of Python's": "import subprocess; from modular_fairseq_cli import lifetime; "
    "subprocess.run(['tail', '-q', '-f', sys.argv[1], '/dev/null'], preexec_fn=lifetime.before_exec())",
    "a system that has only threads": "from modular_fairseq_cli.corpora import parallel; "
    "sys.platform = 'other'; list(parallel.map_blocks(make, (), [1, 2], 2))",
}


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere some of it ends later")
@pytest.mark.parametrize("what", ENDING)
def test_nothing_outlives_a_killed_parent(tmp_path, what):
    """Each process writes a byte to standard error, and then sleeps for longer than this test lasts."""
    busy = "import os, sys, time\ndef busy(_):\n    os.write(2, b'x'); time.sleep(600)\n"
    (tmp_path / "busy.py").write_text(busy + "def make():\n    return busy\n")
    (tmp_path / "pool.py").write_text(
        "import multiprocessing, busy\nmultiprocessing.Pool(2).map(busy.busy, [1, 2])\n"
    )
    (tmp_path / "file").write_text("xx")
    code = f"import sys; from busy import make; {ENDING[what]}"
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path / "file")],
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )
    with parent:
        assert (parent.stdout if "no program" in what else parent.stderr).read(2) == b"xx"
        parent.kill()
        parent.wait()
    nothing_is_left_of(tmp_path)


def nothing_is_left_of(folder, seconds=5):
    end = time.monotonic() + seconds
    while str(folder) in (shown := subprocess.run(["ps", "-efww"], capture_output=True, text=True).stdout):
        assert time.monotonic() < end, shown
        time.sleep(0.1)


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere it keeps others from the file until it ends")
def test_a_download_ends_with_its_run(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/file"
        code = "from pathlib import Path; from modular_fairseq_cli.corpora import fetch; "
        parent = subprocess.Popen(
            [sys.executable, "-c", code + f"fetch.curl({url!r}, Path({str(tmp_path / 'a.part')!r}))"]
        )
        connection, _ = silent.accept()
        with connection:
            parent.kill()
            parent.wait()
            nothing_is_left_of(tmp_path)


def test_a_process_whose_parent_has_ended_before_ends_at_once():
    code = "from modular_fairseq_cli import lifetime; lifetime.end_with(1234567); print('here')"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).stdout == b""


# --- archives
# -----------------------------------------------------------------------------------------------


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


def test_links_in_a_zip_are_refused(tmp_path):
    with pytest.raises(UsageError, match="^a.zip has the member 'text', which is a link or a device"):
        read_member(zip_with(tmp_path / "a.zip", "text", mode=0o120777, data=b"/etc/passwd"), "text")


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


# --- downloads
# -----------------------------------------------------------------------------------------------

CONTENT = random.Random(7).randbytes(100_000)


@pytest.fixture
def server():
    """A server of CONTENT.

    `requests` has the first byte that each request asked for. If `ranges` is false, all bytes are sent.
    """

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            begin = int((self.headers["Range"] or "bytes=0-")[6:].split("-")[0])
            server.requests.append(begin)
            if self.path != "/file" or begin >= len(CONTENT):
                self.send_error(404 if self.path != "/file" else 416)
                return
            begin = begin if server.ranges else 0
            self.send_response(206 if begin else 200)
            if begin:
                self.send_header("Content-Range", f"bytes {begin}-{len(CONTENT) - 1}/{len(CONTENT)}")
            self.send_header("Content-Length", str(len(CONTENT) - begin))
            self.end_headers()
            self.wfile.write(CONTENT[begin:])

        def log_message(self, *args):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.requests, server.ranges = [], True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    server.url = f"http://127.0.0.1:{server.server_address[1]}/file"
    yield server
    server.shutdown()
    server.server_close()


def sha256(data, folder):
    path = folder / "for-its-sum"
    path.write_bytes(data)
    found = digest(path)
    path.unlink()
    return found


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("there", [0, 1, 60_000, 100_000])
@pytest.mark.parametrize("size_known", [True, False])
def test_a_download_goes_on_where_it_was_cut_off(server, tmp_path, there, size_known):
    source = fetch.Source(
        "a.tgz", server.url, 100_000 if size_known else None, f"sha256:{sha256(CONTENT, tmp_path)}"
    )
    if there:
        (tmp_path / "a.tgz.part").write_bytes(CONTENT[:there])
    fetch.fetch(source, None, tmp_path)
    assert files(tmp_path) == {"a.tgz": CONTENT}
    assert server.requests[:1] == ([] if size_known and there == 100_000 else [there])
    fetch.fetch(source, None, tmp_path)
    assert len(server.requests) <= 2  # the second time it is there


def test_a_server_that_cannot_go_on_sends_all_of_it_again(server, tmp_path):
    server.ranges = False
    (tmp_path / "a.tgz.part").write_bytes(CONTENT[:500])
    fetch.fetch(
        fetch.Source("a.tgz", server.url, 100_000, f"sha256:{sha256(CONTENT, tmp_path)}"), None, tmp_path
    )
    assert files(tmp_path) == {"a.tgz": CONTENT}


@pytest.mark.parametrize("wrong", ["sum", "size"])
def test_a_wrong_download_is_removed_and_the_next_one_starts_anew(server, tmp_path, wrong):
    right = sha256(CONTENT, tmp_path)
    source = fetch.Source(
        "a.tgz",
        server.url,
        99_999 if wrong == "size" else None,
        f"sha256:{right if wrong == 'size' else '0' * 64}",
    )
    with pytest.raises(
        UsageError,
        match="^.*a.tgz.part has .*, and a.tgz has .*: it is another file, or (damaged|cut short); give the",
    ):
        fetch.fetch(source, None, tmp_path)
    assert files(tmp_path) == {}
    fetch.fetch(fetch.Source("a.tgz", server.url, None, f"sha256:{right}"), None, tmp_path)
    assert files(tmp_path) == {"a.tgz": CONTENT} and server.requests == [0, 0]


def test_the_first_sum_is_recorded_and_compared(server, tmp_path, capsys):
    source = fetch.Source("a.tgz", server.url)
    fetch.fetch(source, None, tmp_path)
    assert files(tmp_path) == {"a.tgz": CONTENT}
    fetch.record(source, tmp_path / "a.tgz", tmp_path)
    found = sha256(CONTENT, tmp_path)
    assert files(tmp_path) == {"a.tgz": CONTENT, "a.tgz.sha256": f"{found}  a.tgz\n".encode()}
    assert (
        f"a.tgz: no checksum is published; the one of this file, sha256 {found}, is recorded in "
        f"{tmp_path}/a.tgz.sha256, and every later file must have the same" in capsys.readouterr().err
    )
    (tmp_path / "a.tgz").write_bytes(b"other")
    with pytest.raises(
        UsageError,
        match=f"but the first a.tgz had {found}, as recorded in {tmp_path}/a.tgz.sha256; give that file$",
    ):
        fetch.fetch(source, None, tmp_path)
    given = tmp_path / "elsewhere"
    given.write_bytes(b"given")
    with pytest.raises(UsageError, match=f"^{given} has the sha256 checksum"):
        fetch.fetch(source, given, tmp_path)
    assert given.read_bytes() == b"given"


def test_what_cannot_be_fetched_is_one_sentence_and_keeps_what_came(server, tmp_path):
    (tmp_path / "a.tgz.part").write_bytes(CONTENT[:500])
    closed = server.url.replace("/file", "/none")
    with pytest.raises(
        UsageError,
        match=rf"^{closed} could not be fetched \(curl: .*404.*\); the same command continues the download",
    ):
        fetch.fetch(fetch.Source("a.tgz", closed), None, tmp_path)
    assert files(tmp_path) == {"a.tgz.part": CONTENT[:500]}


def test_what_was_being_fetched_is_waited_for(server, tmp_path):
    source = fetch.Source("a.tgz", server.url)
    seen = []

    def second():
        with fetch.open_archives([source], {}, tmp_path) as paths:
            seen.append(paths["a.tgz"].read_bytes())

    with fetch.open_archives([source], {}, tmp_path) as paths:
        assert paths == {"a.tgz": tmp_path / "a.tgz"}
        thread = threading.Thread(target=second)
        thread.start()
        time.sleep(0.3)
        assert seen == []
    thread.join()
    assert seen == [CONTENT] and server.requests == [0]
    assert (tmp_path / "a.tgz.sha256").read_text() == f"{sha256(CONTENT, tmp_path)}  a.tgz\n"


def test_a_given_archive_leaves_another_one_and_is_linked_where_there_is_none(server, tmp_path):
    source = fetch.Source("a.tgz", server.url)
    given = tmp_path / "given"
    given.write_bytes(CONTENT)
    folder = tmp_path / "archives"
    with fetch.open_archives([source], {"a.tgz": given}, folder) as paths:
        assert paths == {"a.tgz": given} and list(folder.glob("a.*")) == []
    assert (folder / "a.tgz").readlink() == given and server.requests == []
    given.rename(tmp_path / "moved")
    with fetch.open_archives([source], {}, folder) as paths:
        assert (
            paths["a.tgz"].read_bytes() == CONTENT
            and not paths["a.tgz"].is_symlink()
            and server.requests == [0]
        )
    with fetch.open_archives([source], {"a.tgz": tmp_path / "moved"}, folder):
        pass
    assert not (folder / "a.tgz").is_symlink()
    (folder / "a.tgz").write_bytes(b"other")
    with (
        pytest.raises(UsageError, match="but the first a.tgz had"),
        fetch.open_archives([source], {}, folder),
    ):
        pass


def test_each_new_input_file_is_read_once(tmp_path, monkeypatch):
    for split in texts.SPLITS:
        for lang in ("de", "en"):
            (tmp_path / f"{split}.{lang}").write_text(f"{split} {lang}\n")
    summed = []
    monkeypatch.setattr(texts, "digest", lambda path: summed.append(path.name) or digest(path))
    kept = texts.input_files(tmp_path, ("de", "en"), {})
    assert len(summed) == 6 and len(set(summed)) == 6
    assert texts.input_files(tmp_path, ("de", "en"), kept) == kept and len(summed) == 6
    os.utime(tmp_path / "train.de", (1, 1))
    (tmp_path / "test.en").write_text("another\n")
    changed = texts.input_files(tmp_path, ("de", "en"), kept)
    assert summed[6:] == ["train.de", "test.en"]
    assert {name for name in kept if kept[name] != changed[name]} == {"test.en"}
    assert changed["test.en"]["sha256"] == digest(tmp_path / "test.en")


def test_no_progress_line_is_written_for_every_block(capsys):
    counter = progress.Progress("tokens of train")
    for _ in range(1000):
        counter.add(1000)
    counter.done()
    said = capsys.readouterr().err
    assert Counter(said)["\n"] == 1 and "tokens of train: 1,000,000 lines, " in said and "\r" not in said
