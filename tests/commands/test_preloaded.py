"""A command of tests/preloaded does what a fresh interpreter does, and nothing outlives its server."""

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest

from modular_fairseq_cli import lifetime
from tests.places import PYTHON, ROOT
from tests.preloaded import Preloaded
from tests.processes import PATIENCE, has_ended, line_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="tests/preloaded needs Linux")

PROGRAMS = {
    "arguments": ["-c", "import sys; print(sys.argv)", "one", "--two"],
    "a module": ["-m", "modular_fairseq_cli", "--version"],
    "a refusal": ["-m", "modular_fairseq_cli", "nosuch"],
    "a number": ["-c", "import sys; sys.exit(7)"],
    "a negative number": ["-c", "import sys; sys.exit(-1)"],
    "a sentence": ["-c", "import sys; sys.exit('it failed')"],
    "a traceback": ["-c", "def f():\n    1 / 0\nf()"],
    "killed": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"],
    "terminated": ["-c", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)"],
    "interrupted": ["-c", "raise KeyboardInterrupt"],
    "input": ["-c", "import sys; print(sys.stdin.read().upper())"],
    "order of streams": ["-c", "import sys; print(1, flush=True); print(2, file=sys.stderr); print(3)"],
    "pickling": ["-c", "import pickle\ndef f(): pass\nprint(pickle.loads(pickle.dumps(f)) is f)"],
    "atexit": ["-c", "import atexit; atexit.register(print, 'bye')"],
    "threads": ["-c", "import threading, time; threading.Timer(0.1, print, 'x').start()"],
    "umask and folder": ["-c", "import os; print(os.getcwd(), os.umask(0))"],
    "environment": ["-c", "import os; print(os.environ['GIVEN'], os.environ['OMP_NUM_THREADS'])"],
    "torch's threads": ["-c", "import torch; print(torch.get_num_threads())"],
    "a missing script": ["nosuch.py"],
    "a missing module": ["-m", "nosuch"],
    "a module that ends with its parent": lifetime.command("modular_fairseq_cli", "--version")[1:],
    "an option of Python": ["-W", "error", "-c", "import sys; print(sys.warnoptions)"],
}


def call(python: str | Path, arguments: list[str], folder: Path, **options: object) -> tuple:
    environment = os.environ | {"GIVEN": "ä", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    options = {"env": environment, "input": "text", "cwd": folder} | options
    done = subprocess.run(
        [str(python), *arguments], capture_output=True, text=True, timeout=PATIENCE, **options
    )
    return done.returncode, done.stdout, done.stderr.replace(f"{PYTHON}: ", "").replace(f"{python}: ", "")


@pytest.mark.parametrize("arguments", PROGRAMS.values(), ids=PROGRAMS.keys())
def test_a_command_does_what_it_does_in_a_fresh_interpreter(preloaded, tmp_path, arguments):
    assert call(preloaded.python, arguments, tmp_path) == call(PYTHON, arguments, tmp_path)


def test_a_script_finds_its_folder_and_itself(preloaded, tmp_path):
    (tmp_path / "beside.py").write_text("value = 3")
    (tmp_path / "script.py").write_text("import sys, beside; print(beside.value, __name__, sys.argv)")
    assert call(preloaded.python, ["script.py", "x"], tmp_path) == call(PYTHON, ["script.py", "x"], tmp_path)


def test_random_numbers_differ_from_command_to_command(preloaded, tmp_path):
    program = [
        "-c",
        "import random, numpy, torch; print(random.random(), numpy.random.rand(), torch.rand(1))",
    ]
    first, second = (call(preloaded.python, program, tmp_path)[1].split() for _ in range(2))
    assert len(first) == 3 and all(a != b for a, b in zip(first, second, strict=True))


def test_a_command_starts_others_in_the_same_way(preloaded, tmp_path):
    inner = "import sys; print('inner', sys.executable)"
    outer = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {inner!r}])"
    assert call(preloaded.python, ["-c", outer], tmp_path) == (0, f"inner {preloaded.python}\n", "")


ASLEEP = """
import os, pathlib, time
pathlib.Path("id").write_text(f"{os.getpid()}\\n")
time.sleep(6000)
"""
TIED = """
import os, pathlib, subprocess
from modular_fairseq_cli import lifetime
pathlib.Path("parent").write_text(f"{os.getpid()}\\n")
subprocess.run(lifetime.command("asleep"))
"""


def working_in(folder: Path) -> list[int]:
    """Return the numbers of the processes that have a folder as their present one."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):  # it has ended meanwhile, or is another user's
            found += [int(process.name)] if Path(os.readlink(process / "cwd")) == folder else []
    return found


@pytest.mark.parametrize("delay", [0.0, 0.02, 0.05, 0.1, 1.0])
def test_a_command_ends_with_its_client_whenever_that_is_killed(preloaded, tmp_path, delay):
    client = subprocess.Popen([preloaded.python, "-c", ASLEEP], cwd=tmp_path)
    time.sleep(delay)
    client.kill()
    client.wait()
    time.sleep(0.5)  # the server may be about to begin the command
    assert all(has_ended(process) for process in working_in(tmp_path))


def test_a_command_that_is_tied_to_its_parent_ends_with_it(preloaded, tmp_path):
    in_the_server = "import sys; assert 'torch' in sys.modules"
    (tmp_path / "asleep.py").write_text(in_the_server + ASLEEP)
    environment = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}"}
    client = subprocess.Popen([preloaded.python, "-c", TIED], cwd=tmp_path, env=environment)
    process = int(line_of(tmp_path / "id"))
    os.kill(int(line_of(tmp_path / "parent")), signal.SIGKILL)
    client.wait(timeout=PATIENCE)
    assert has_ended(process)


def test_a_tied_command_that_the_server_cannot_run_finds_no_module_in_the_present_folder(preloaded, tmp_path):
    (tmp_path / "beside.py").write_text("print('found')")
    arguments = lifetime.command("beside")[1:]
    environment = os.environ | {"PYTHONHASHSEED": "0"}
    code, out, err = call(preloaded.python, arguments, tmp_path, env=environment)
    assert (code, out) == (1, "") and "No module named beside" in err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("ignored", [False, True])
def test_signals_are_forwarded_unless_they_are_ignored(preloaded, tmp_path, number, ignored):
    """A shell without a terminal starts its background jobs with SIGINT ignored."""
    client = subprocess.Popen(
        [preloaded.python, "-c", ASLEEP.replace("6000", "2")],
        cwd=tmp_path,
        stderr=subprocess.DEVNULL,
        preexec_fn=lambda: signal.signal(number, signal.SIG_IGN if ignored else signal.SIG_DFL),
    )
    command = int(line_of(tmp_path / "id"))
    client.send_signal(number)
    assert client.wait(timeout=PATIENCE) == (0 if ignored else -number) and has_ended(command)


STARTS = """
import subprocess, sys, time
from tests.preloaded import Preloaded
server = Preloaded()
subprocess.Popen([server.python, "-c", {asleep!r}])
print(server.process.pid, server.programs, flush=True)
time.sleep(6000)
"""


def test_server_and_commands_end_with_the_process_that_started_them(tmp_path):
    """The test run is killed; nothing of it stays but the folder of its programs."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    program = [PYTHON, "-c", STARTS.format(asleep=ASLEEP)]
    run = subprocess.Popen(program, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True)
    server = int(run.stdout.readline().split()[0])
    command = int(line_of(tmp_path / "id"))
    run.kill()
    run.wait()
    assert has_ended(server) and has_ended(command)


def test_closing_ends_the_server_and_its_commands_and_leaves_no_files(tmp_path):
    server = Preloaded()
    client = subprocess.Popen([server.python, "-c", ASLEEP], cwd=tmp_path, stderr=subprocess.DEVNULL)
    command = int(line_of(tmp_path / "id"))
    server.close()
    assert has_ended(command) and client.wait(timeout=PATIENCE) != 0
    assert not server.programs.exists()


def test_a_folder_with_a_space_or_a_long_path_does_no_harm(tmp_path, monkeypatch):
    folder = tmp_path / "a folder" / ("long" * 40)
    folder.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    server = Preloaded()
    try:
        assert call(server.programs / "modular-fairseq", ["--version"], tmp_path)[0] == 0
    finally:
        server.close()
