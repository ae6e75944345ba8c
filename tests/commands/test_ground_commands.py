"""Test `modular_fairseq_cli` in separate processes: it imports neither torch nor fairseq, and locks survive a
kill.
"""

import json
import os
import subprocess
from pathlib import Path

import pytest

from modular_fairseq_cli import files, main, processes
from modular_fairseq_cli.errors import UsageError
from tests.places import PYTHON, ROOT
from tests.processes import wait_for

FORBIDDEN = {"torch", "fairseq", "fairseq_cli", "modular_fairseq", "omegaconf", "hydra"}
# This program prints the modules of the package, and which of the given packages they imported.
IMPORT_ALL = """
import importlib, json, pkgutil, sys
import modular_fairseq_cli as ground
found = [module.name for module in pkgutil.walk_packages(ground.__path__, "modular_fairseq_cli.")]
for name in found:
    importlib.import_module(name)
print(json.dumps([found, sorted(set(sys.argv[1:]) & sys.modules.keys())]))
"""


def python(*arguments, **options):
    options = {"capture_output": True, "text": True, "cwd": ROOT} | options
    return subprocess.run([PYTHON, *arguments], **options)


def test_the_ground_imports_neither_torch_nor_fairseq_nor_the_plugin():
    pytest.importorskip("matplotlib", reason="report.pictures needs matplotlib")
    result = python("-c", IMPORT_ALL, *FORBIDDEN)
    assert result.returncode == 0, result.stderr
    found, forbidden = json.loads(result.stdout)
    sources = {
        ".".join(path.relative_to(ROOT).with_suffix("").parts)
        for path in (ROOT / "modular_fairseq_cli").rglob("*.py")
        if path.name != "__init__.py"
    }
    assert sources <= set(found)
    assert forbidden == []


def test_user_dir_is_the_folder_of_the_plugin_which_is_not_imported(tmp_path):
    """The command runs in another folder, and finds the package through PYTHONPATH."""
    code = "import sys; from modular_fairseq_cli.main import main; main(['user-dir']); print(*sys.modules)"
    result = python("-c", code, cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert result.returncode == 0, result.stderr
    folder, modules = result.stdout.splitlines()
    assert Path(folder).is_absolute() and Path(folder).samefile(ROOT / "modular_fairseq")
    assert not {"torch", "fairseq", "modular_fairseq"} & set(modules.split())


@pytest.mark.parametrize(("given", "found"), [(None, "PASSIVE"), ("ACTIVE", "ACTIVE")])
def test_threads_wait_passively_unless_the_user_says_otherwise(monkeypatch, capsys, tmp_path, given, found):
    monkeypatch.setenv("OMP_WAIT_POLICY", "")  # so that monkeypatch restores it
    monkeypatch.delenv("OMP_WAIT_POLICY")
    if given:
        monkeypatch.setenv("OMP_WAIT_POLICY", given)
    shown = []
    processes.call(
        [PYTHON, "-c", "import os; print(os.environ['OMP_WAIT_POLICY'])"],
        str(tmp_path / "log"),
        shown.append,
    )
    assert shown == [found] and os.environ.get("OMP_WAIT_POLICY") == given
    main.main(["user-dir"])
    assert os.environ["OMP_WAIT_POLICY"] == found


def test_what_a_command_has_written_is_in_its_log_if_its_reader_is_killed(tmp_path):
    """A run reads the perplexities of its epochs from the log, after it was killed and continued, too."""
    log, marker = tmp_path / "log", tmp_path / "written"
    child = (
        f"print(*range(1000), sep='\\n', flush=True); open({str(marker)!r}, 'w'); import time; time.sleep(60)"
    )
    code = f"""
import time
from modular_fairseq_cli.processes import call
call({[PYTHON, "-c", child]!r}, {str(log)!r}, lambda line: time.sleep(60))
"""
    reader = subprocess.Popen([PYTHON, "-c", code], cwd=ROOT)
    wait_for(marker.exists, reader)
    reader.kill()
    reader.wait()
    assert log.read_text().split() == [str(number) for number in range(1000)]


def test_lines_are_shown_whole_as_a_command_writes_them(tmp_path):
    """The command writes a line in two parts, a progress bar, wrong UTF-8, and a last line without an end."""
    child = r"""
import os, time
for part in (b"a li", b"ne\n\xc3", b"\xa4\r", b"\nbar 1\rbar 2\r", b"\xff\nlast"):
    os.write(1, part)
    time.sleep(0.3)
"""
    shown, log = [], tmp_path / "log"
    log.write_text("before\n")
    assert processes.call([PYTHON, "-c", child], str(log), shown.append) == (0, shown)
    assert shown == ["a line", "ä", "bar 1", "bar 2", "\ufffd", "last"]
    files.append_line(log, "next")
    files.append_line(log, "one more")
    assert log.read_bytes().endswith(b"\xff\nlast\nnext\none more\n")
    assert log.read_bytes().startswith(b"before\na line\n")


def test_a_command_that_fails_because_its_log_cannot_grow_is_an_error_of_the_system(tmp_path):
    """The log cannot say so. A limit of file sizes stands for a full disk."""
    code = f"""
import resource
from modular_fairseq_cli.processes import call
resource.setrlimit(resource.RLIMIT_FSIZE, (10, 10))
call([{PYTHON!r}, "-c", "print(100 * '-')"], {str(tmp_path / "log")!r}, print)
"""
    result = python("-c", code, cwd=ROOT)
    assert result.returncode == 1 and "OSError: [Errno 27]" in result.stderr


@pytest.mark.parametrize("inheritable", [False, True])
def test_a_program_that_outlives_a_killed_run_holds_its_lock_if_it_inherited_it(tmp_path, inheritable):
    code = f"""
import subprocess, os
from modular_fairseq_cli.files import lock
with lock({str(tmp_path / "lock")!r}, inheritable={inheritable}):
    silent = dict(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    print(subprocess.Popen(["sleep", "60"], close_fds=False, **silent).pid, flush=True)
    os._exit(0)
"""
    sleeper = int(python("-c", code).stdout)
    try:
        if inheritable:
            with pytest.raises(UsageError, match="busy"):
                files.lock(tmp_path / "lock", "busy").__enter__()
        else:
            with files.lock(tmp_path / "lock", "busy"):
                pass
    finally:
        os.kill(sleeper, 9)


LOUD = """
import sys, types
from modular_fairseq_cli import main
loud = types.ModuleType("loud")
loud.add_arguments = lambda parser: None
loud.run = lambda args: print("a line\\n" * 100_000)
sys.modules["loud"], main.COMMANDS["loud"] = loud, ("loud", "")
main.main(["loud"])
"""


def test_a_reader_who_has_seen_enough_ends_a_command_without_a_traceback():
    """The reader closes the pipe early, as `head -1` does in `modular-fairseq ... | head -1`."""
    child = subprocess.Popen([PYTHON, "-c", LOUD], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout.readline() == b"a line\n"
    child.stdout.close()
    assert child.stderr.read() == b"" and child.wait() == 1


@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_the_output_of_the_process_is_written_to_in_turn(tmp_path, name):
    code = f"""
import sys
from modular_fairseq_cli.files import write_file
print("before", file=sys.{name})
write_file("/dev/{name}", "text\\n")
print("after", file=sys.{name})
"""
    with open(tmp_path / "file", "w") as file:
        python("-c", code, check=True, **{"capture_output": False, name: file})
    assert (tmp_path / "file").read_text() == "before\ntext\nafter\n"
    piped = python("-c", code, check=True)
    assert getattr(piped, name) == "before\ntext\nafter\n"
