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
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
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
