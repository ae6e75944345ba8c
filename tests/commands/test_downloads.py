"""Test downloads and worker processes of data preparation, and what a killed run leaves behind."""

import http.server
import itertools
import os
import random
import socket
import subprocess
import sys
import threading
import time

import pytest

from modular_fairseq_cli.corpora import (
    fetch,
    parallel,
)
from modular_fairseq_cli.errors import UsageError
from modular_fairseq_cli.files import digest
from tests.processes import processes_of


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


@pytest.mark.usefixtures("real_commands")  # commands of tests/preloaded end with their client in any case
@pytest.mark.skipif(sys.platform != "linux", reason="it needs Linux: elsewhere some of it ends later")
@pytest.mark.parametrize("what", ENDING)
def test_nothing_outlives_a_killed_parent(tmp_path, what):
    """Each process writes a byte to standard error, and then sleeps for longer than this test lasts."""
    busy = "import os, sys, time\ndef busy(_):\n    os.write(2, b'x'); time.sleep(6000)\n"
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
    assert processes_of(tmp_path) == []


@pytest.mark.usefixtures("real_commands")
@pytest.mark.skipif(sys.platform != "linux", reason="it needs Linux: elsewhere it keeps others from the file")
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
            assert processes_of(tmp_path) == []


@pytest.mark.usefixtures("real_commands")
def test_a_process_whose_parent_has_ended_before_ends_at_once():
    code = "from modular_fairseq_cli import lifetime; lifetime.end_with(1234567); print('here')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True)
    assert (done.returncode, done.stdout, done.stderr) == (1, b"", b"")


CONTENT = random.Random(7).randbytes(100_000)


@pytest.fixture
def server():
    """Serve CONTENT over HTTP.

    `requests` lists the first byte that each request asked for. If `ranges` is false, the server always sends
    all bytes.
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
    before = list(server.requests)
    fetch.fetch(source, None, tmp_path)
    assert server.requests == before  # the second time the file exists


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


def test_a_download_without_curl_is_one_sentence(server, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = f"^{server.url} cannot be fetched without curl; install curl, or give the file with --archive$"
    with pytest.raises(UsageError, match=said):
        fetch.fetch(fetch.Source("a.tgz", server.url), None, tmp_path)


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
