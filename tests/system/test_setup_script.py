"""Tests of scripts/setup.sh: what it says if something is missing, how it calls pip, and when it is silent.

It runs in a copy of the repository's root, with a PATH that holds only the commands named here. No test uses
the network.
"""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import PYTHON, ROOT

COMMANDS = [
    "awk",
    "bash",
    "cat",
    "cksum",
    "cp",
    "date",
    "df",
    "dirname",
    "grep",
    "mkdir",
    "sed",
    "sleep",
    "tail",
    "touch",
    "uname",
    "wc",
]
PINNED = dict(
    line.strip().split("==")
    for line in (ROOT / "constraints.txt").read_text().splitlines()
    if "==" in line and line[0] != "#"
)

# A Python whose virtual environments are a folder with a copy of itself, and whose pip only records how it
# was called. A call that contains the text in the file `fails` fails and prints the text in `answer`. With a
# file `stale`, fairseq does not load before it was built without pip's cache.
PYTHON_STUB = """#!/bin/sh
case "$*" in
    "-m venv "*) mkdir -p "$3/bin" && cp "$0" "$3/bin/python" ;;
    "-m pip --version") [ -d .venv ] ;;
    "-m pip install "*)
        echo "$*" >>'{notes}/calls'
        echo "$CFLAGS" >>'{notes}/flags'
        echo "$CXX, $CC, $CUDA_HOME, $PYTHONPATH, $PYTHONHOME" >>'{notes}/environment'
        if [ -f '{notes}/fails' ] && echo "$*" | grep -q -F -e "$(cat '{notes}/fails')"; then
            cat '{notes}/answer'; exit 1
        fi
        echo "$*" >>'{notes}/installed' ;;
    "-m pip uninstall "*)
        echo "$*" >>'{notes}/calls'
        sed "/ fairseq-fixed==/d" '{notes}/installed' >'{notes}/left'
        cat '{notes}/left' >'{notes}/installed' ;;
    "- "*) grep -q -F -e "$2==$3" '{notes}/installed' ;;  # is this package installed?
    *"import torch"*) [ ! -f '{notes}/stale' ] || grep -q -e --no-cache-dir '{notes}/installed' ;;
    *) exec '{python}' "$@" ;;
esac
"""


class Machine:
    """Simulate a machine with a repository to set up, and with chosen commands."""

    def __init__(self, folder: Path):
        self.root, self.bin = folder / "repository", folder / "bin"
        (self.root / "scripts").mkdir(parents=True)
        self.bin.mkdir()
        for name in ["constraints.txt", "setup.py", "scripts/setup.sh"]:
            shutil.copy(ROOT / name, self.root / name)
        for name in COMMANDS:
            (self.bin / name).symlink_to(shutil.which(name))
        self.notes = folder
        self.has("g++", "#!/bin/sh\n")
        self.has("python3", PYTHON_STUB.format(notes=folder, python=Path(PYTHON).resolve()))
        self.environment = {"PATH": str(self.bin), "SETUP_DISK_GIB": "0"}

    def has(self, command: str, script: str) -> None:
        (self.bin / command).write_text(script)
        (self.bin / command).chmod(0o755)

    def lacks(self, command: str) -> None:
        (self.bin / command).unlink()

    def pip_fails_at(self, word: str, answer: str) -> None:
        (self.notes / "fails").write_text(word)
        (self.notes / "answer").write_text(answer)

    def pip_works(self) -> None:
        (self.notes / "fails").unlink()

    def words_and_place(self, environment: dict[str, str]) -> dict[str, object]:
        """Return the arguments of a call of the script for subprocess."""
        return {
            "args": [str(self.bin / "bash"), "scripts/setup.sh"],
            "cwd": self.root,
            "env": self.environment | environment,
            "text": True,
            # or a script of tests in the background ignores it
            "preexec_fn": lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        }

    def set_up(self, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(**self.words_and_place(environment), capture_output=True, timeout=60)

    def refusal(self, **environment: str) -> str:
        """Return the sentence with which a set-up fails.

        It must be the only such sentence, and the set-up must leave no stamp.
        """
        result = self.set_up(**environment)
        assert result.returncode == 1
        assert result.stdout == ""
        assert not (self.root / ".venv" / "setup.stamp").exists()
        sentence = result.stderr.splitlines()[-1]
        assert sentence.startswith("setup: error: ")
        assert result.stderr.count("setup: error: ") == 1
        return sentence

    def early_refusal(self, **environment: str) -> str:
        """Return the sentence of a set-up that fails before it has written anything.

        Standard error must have nothing but this sentence.
        """
        result = self.set_up(**environment)
        assert result.returncode == 1
        assert result.stdout == ""
        assert not (self.root / ".venv").exists()
        (sentence,) = result.stderr.splitlines()
        assert sentence.startswith("setup: error: ")
        return sentence

    @property
    def environments(self) -> set[str]:
        """The values of CXX, CC, CUDA_HOME, PYTHONPATH and PYTHONHOME that pip was called with."""
        return set((self.notes / "environment").read_text().splitlines())

    @property
    def pip_calls(self) -> list[str]:
        calls = self.notes / "calls"
        return calls.read_text().splitlines() if calls.exists() else []


@pytest.fixture
def machine(tmp_path):
    return Machine(tmp_path)


def a_python(version: str) -> str:
    return f"#!/bin/sh\necho {version}\n"


NO_NETWORK = (
    "WARNING: Retrying (Retry(total=0)) after connection broken by "
    "'NewConnectionError(<pip._vendor.urllib3.connection.HTTPSConnection>: "
    "Failed to establish a new connection: [Errno -2] Name or service not known')': /simple/torch/\n"
    "ERROR: Could not find a version that satisfies the requirement torch (from versions: none)\n"
    "ERROR: No matching distribution found for torch\n"
)


def test_a_missing_compiler_is_refused_with_the_package_to_install(machine):
    machine.lacks("g++")
    sentence = machine.early_refusal()
    assert "needs a C++ compiler, and none of g++, c++ and clang++ is on PATH" in sentence
    assert "apt-get install g++" in sentence


def test_clang_alone_is_a_compiler(machine):
    machine.lacks("g++")
    machine.has("clang++", "#!/bin/sh\n")
    assert machine.set_up().returncode == 0
    assert machine.environments == {"clang++, clang, , , "}  # Python would call the compiler that built it


def test_other_packages_and_cuda_extensions_are_kept_out(machine):
    assert machine.set_up(CUDA_HOME="/cuda", PYTHONPATH="/packages", PYTHONHOME="/python").returncode == 0
    assert machine.environments == {", , , , "}


def test_compiler_named_but_absent(machine):
    assert "CXX=g++-99 was not found" in machine.early_refusal(CXX="g++-99")


def test_no_supported_python_on_path(machine):
    machine.has("python3", a_python("3.13"))
    machine.has("python3.11", "#!/bin/sh\necho 'python3.11: command not found' >&2\nexit 127\n")
    sentence = machine.early_refusal()
    assert "needs Python 3.11 or 3.12, and neither is on PATH (python3 is Python 3.13)" in sentence
    assert "PYTHON=/path/to/python" in sentence


def test_later_python_on_path_is_found(machine):
    (machine.bin / "python3").rename(machine.bin / "python3.11")
    machine.has("python3", a_python("3.13"))
    assert machine.set_up().returncode == 0


def test_python_named_but_unsupported(machine):
    machine.has("python3.10", a_python("3.10"))
    assert (
        "PYTHON=python3.10 is Python 3.10; modular_fairseq needs Python 3.11 or 3.12"
        in machine.early_refusal(PYTHON="python3.10")
    )


def test_python_named_but_absent(machine):
    assert "PYTHON=/no/python cannot be run" in machine.early_refusal(PYTHON="/no/python")


@pytest.mark.parametrize(
    "word, phrases",
    [("Python.h", ["has no Python.h", "-dev`"]), ("ensurepip", ["its venv module is missing", "-venv`"])],
)
def test_python_without_its_parts(machine, word, phrases):
    script = (machine.bin / "python3").read_text()
    machine.has("python3", script.replace('case "$*" in', f'case "$*" in\n    *{word}*) exit 1 ;;'))
    sentence = machine.early_refusal()
    assert all(phrase in sentence for phrase in phrases)
    assert f"python3.{sys.version_info.minor}-" in sentence


def test_too_little_disk_is_refused_before_anything_is_installed(machine):
    machine.lacks("df")
    machine.has(
        "df", "#!/bin/sh\necho 'Filesystem 1024-blocks Used Available'\necho 'disk 9000000 7000000 2000000'\n"
    )
    assert "about 3 GiB are needed" in machine.early_refusal(SETUP_DISK_GIB="")
    assert "has 1 GiB free" in machine.early_refusal(SETUP_DISK_GIB="2")
    machine.has("nvidia-smi", "#!/bin/sh\n")
    assert "about 10 GiB are needed" in machine.early_refusal(SETUP_DISK_GIB="")
    assert machine.set_up(SETUP_DISK_GIB="1").returncode == 0


def test_a_package_index_that_cannot_be_reached_is_one_sentence(machine):
    machine.pip_fails_at("", NO_NETWORK)
    sentence = machine.refusal()
    assert "pip could not reach the package index; check the network or the proxy" in sentence
    assert f"the log is {machine.root}/.venv/setup.log" in sentence
    assert "NewConnectionError" in (machine.root / ".venv" / "setup.log").read_text()


@pytest.mark.parametrize("retries", [0, 1])  # without a retry pip does not mention the connection
def test_no_network_in_the_words_of_the_real_pip(machine, retries):
    with socket.socket() as closed_port:
        closed_port.bind(("127.0.0.1", 0))  # bound and not listening: every connection is refused
        nowhere = f"http://127.0.0.1:{closed_port.getsockname()[1]}/simple"
        pip = f"exec '{PYTHON}' -m pip --isolated download --dest '{machine.notes}'"
        pip += " --no-deps --no-cache-dir"
        script = (machine.bin / "python3").read_text()
        offline = f'"-m pip install "*) {pip} --retries {retries} --index-url {nowhere} setuptools ;;'
        machine.has("python3", script.replace('"-m pip install "*)', offline + '\n    "-m pip never")'))
        assert "pip could not reach the package index" in machine.refusal()


def test_disk_that_fills_up(machine):
    machine.pip_fails_at(
        "requirements",
        "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device\n",
    )
    said = machine.refusal()
    assert "installing the other packages failed because the disk of " in said and " is full; free" in said


def test_other_failure_shows_the_end_of_the_log(machine):
    machine.pip_fails_at(
        "fairseq-fixed==",
        "".join(f"line {i}\n" for i in range(100)) + "error: command '/usr/bin/g++' failed\n",
    )
    sentence = machine.refusal()
    assert "building fairseq-fixed failed; above are the last lines of the log" in sentence
    shown = machine.set_up().stderr.splitlines()
    assert "    error: command '/usr/bin/g++' failed" in shown
    assert "    line 99" in shown and "    line 50" not in shown


def test_torch_is_the_cpu_build_without_a_gpu(machine):
    assert machine.set_up(TORCH_CPU_INDEX="http://cpu.index").returncode == 0
    (call,) = [call for call in machine.pip_calls if "torch==" in call]
    assert call.endswith(f"--extra-index-url http://cpu.index torch=={PINNED['torch']}+cpu")


def test_torch_is_the_default_build_with_a_gpu(machine):
    machine.has("nvidia-smi", "#!/bin/sh\n")
    assert machine.set_up().returncode == 0
    (call,) = [call for call in machine.pip_calls if "torch==" in call]
    assert call.endswith(f" torch=={PINNED['torch']}")
    assert "index" not in call


def test_torch_is_the_cpu_build_where_the_driver_finds_no_gpu(machine):
    machine.has("nvidia-smi", "#!/bin/sh\nexit 9\n")
    assert machine.set_up().returncode == 0
    assert [call.endswith("+cpu") for call in machine.pip_calls if "torch==" in call] == [True]


def test_torch_is_the_default_build_where_no_cpu_build_is_offered(machine):
    # The real pip is asked for it (and installs nothing), where only the default build is to be had.
    (machine.notes / f"torch-{PINNED['torch']}-py3-none-any.whl").touch()
    pip = f"exec '{PYTHON}' \"$@\" --isolated --dry-run --ignore-installed --no-index"
    pip += f" --find-links '{machine.notes}'"
    script = (machine.bin / "python3").read_text()
    machine.has(
        "python3",
        script.replace("        if [ -f", f'        case "$*" in *+cpu) {pip} ;; esac\n        if [ -f', 1),
    )
    result = machine.set_up()
    assert result.returncode == 0
    assert "no CPU build of torch" in result.stderr
    pin = f"torch=={PINNED['torch']}"
    assert [call.split()[-1] for call in machine.pip_calls if "torch==" in call] == [f"{pin}+cpu", pin]


def test_a_broken_download_of_the_cpu_build_does_not_fetch_the_cuda_build(machine):
    machine.pip_fails_at(
        "+cpu", "pip._vendor.urllib3.exceptions.ReadTimeoutError: HTTPSConnectionPool: Read timed out.\n"
    )
    assert "pip could not reach the package index" in machine.refusal()
    assert not any(call.endswith(f"torch=={PINNED['torch']}") for call in machine.pip_calls)


def test_fairseq_is_built_against_the_installed_torch(machine):
    assert machine.set_up().returncode == 0
    calls = machine.pip_calls
    (build,) = [i for i, call in enumerate(calls) if "fairseq-fixed==" in call]
    (torch,) = [i for i, call in enumerate(calls) if "torch==" in call]
    assert torch < build
    assert "--no-build-isolation" in calls[build]
    assert "--no-binary fairseq-fixed" in calls[build]
    assert all("-c constraints.txt" in call for call in calls if "+cpu" not in call)
    assert "\nfairseq-fixed" not in (machine.root / ".venv" / "setup.requirements").read_text()


def test_fairseq_is_built_without_debug_symbols_and_with_the_flags_of_the_user(machine):
    assert machine.set_up(CFLAGS="-march=native").returncode == 0
    flags = (machine.notes / "flags").read_text().splitlines()
    of_build = {call.split()[-1]: flag for call, flag in zip(machine.pip_calls, flags, strict=True)}
    assert of_build[f"fairseq-fixed=={PINNED['fairseq-fixed']}"] == "-O3 -DNDEBUG -fwrapv -march=native -g0"
    assert of_build[f"torch=={PINNED['torch']}+cpu"] == "-march=native"


def test_fairseq_built_for_another_torch_is_built_anew(machine):
    (machine.notes / "stale").touch()
    assert machine.set_up().returncode == 0
    builds = [call for call in machine.pip_calls if "fairseq-fixed==" in call]
    assert ["--no-cache-dir" in call for call in builds] == [False, True]


def installs(machine, package: str) -> list[str]:
    return [call for call in machine.pip_calls if f"{package}==" in call]


def test_another_torch_is_installed_and_stays(machine):
    assert machine.set_up(TORCH_VERSION="2.6.0").returncode == 0
    assert [call.split()[-1] for call in installs(machine, "torch")] == ["torch==2.6.0+cpu"]
    (build,) = installs(machine, "fairseq-fixed")
    assert "--no-cache-dir" in build and "-c .venv/setup.constraints" in build
    constraints = (machine.root / ".venv/setup.constraints").read_text().splitlines()
    assert "torch==2.6.0" in constraints and f"numpy=={PINNED['numpy']}" in constraints
    assert "setuptools>=77,<82" in constraints and not any(line.startswith("sympy") for line in constraints)
    calls = machine.pip_calls
    assert machine.set_up().stderr == ""  # as demo.sh and test.sh call it
    assert machine.pip_calls == calls


def test_fairseq_is_built_again_for_another_torch(machine):
    assert machine.set_up().returncode == 0
    assert machine.set_up(TORCH_VERSION="2.6.0").returncode == 0
    assert machine.set_up(TORCH_VERSION="2.7.1").returncode == 0
    assert len(installs(machine, "fairseq-fixed")) == 3
    removed = [call for call in machine.pip_calls if "uninstall" in call]
    assert len(removed) == 2 and all(call.endswith("--yes fairseq-fixed") for call in removed)
    assert machine.set_up().stderr == ""


@pytest.mark.parametrize(
    "version, sentence",
    [
        ("2.5.1", "TORCH_VERSION=2.5.1 is too old; modular_fairseq needs torch 2.6 or newer"),
        ("1.13.1", "TORCH_VERSION=1.13.1 is too old; modular_fairseq needs torch 2.6 or newer"),
        ("2.6", "TORCH_VERSION=2.6 is not a version of torch; give one such as"),
        ("2.6; ls", "TORCH_VERSION=2.6; ls is not a version of torch; give one such as"),
    ],
)
def test_a_torch_that_cannot_be(machine, version, sentence):
    assert sentence in machine.early_refusal(TORCH_VERSION=version)


def test_an_environment_of_an_unsupported_python_is_refused(machine):
    (machine.root / ".venv/bin").mkdir(parents=True)
    (machine.root / ".venv/bin/python").write_text(a_python("3.10"))
    (machine.root / ".venv/bin/python").chmod(0o755)
    assert "holds Python 3.10 and modular_fairseq needs 3.11 or 3.12; remove it" in machine.refusal()
    assert machine.pip_calls == []


def test_a_second_set_up_waits_for_the_first(machine):
    if not shutil.which("flock"):
        pytest.skip("flock is missing")
    (machine.bin / "flock").symlink_to(shutil.which("flock"))
    assert machine.set_up().returncode == 0
    calls = machine.pip_calls
    stamp = machine.root / ".venv" / "setup.stamp"
    stamp.rename(machine.notes / "stamp")
    with open(machine.root / "constraints.txt") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        second = subprocess.Popen(**machine.words_and_place({}), **pipes)
        assert second.stderr.readline() == "setup: waiting for another set-up of this folder\n"
        (machine.notes / "stamp").rename(stamp)  # the first one has finished
    with second:
        assert second.communicate(timeout=60) == ("", "") and second.returncode == 0
    assert machine.pip_calls == calls


def test_second_run_is_silent_and_calls_nothing(machine):
    first = machine.set_up()
    assert (first.returncode, first.stdout) == (0, "")
    assert "building fairseq-fixed" in first.stderr and first.stderr.splitlines()[-1].startswith(
        "setup: done"
    )
    calls = machine.pip_calls
    second = machine.set_up()
    assert (second.returncode, second.stdout, second.stderr) == (0, "", "")
    assert machine.pip_calls == calls


@pytest.mark.parametrize("name", ["constraints.txt", "setup.py", "scripts/setup.sh"])
def test_changed_pins_are_installed(machine, name):
    machine.set_up()
    calls = machine.pip_calls
    with open(machine.root / name, "a") as file:
        file.write("# changed\n")
    assert machine.set_up().returncode == 0
    assert len(machine.pip_calls) > len(calls)
    assert machine.set_up().stderr == ""


def test_failed_set_up_is_repeated(machine):
    machine.pip_fails_at("-e ", NO_NETWORK)
    machine.refusal()
    machine.pip_works()
    result = machine.set_up()
    assert result.returncode == 0
    assert "making .venv" not in result.stderr


def test_interrupted_set_up_says_so_and_goes_on_later(machine):
    machine.pip_fails_at("-e ", "ERROR: Operation cancelled by user\n")
    script = (machine.bin / "python3").read_text()
    machine.has("python3", script.replace("; exit 1\n", "; kill -INT $PPID; exit 1\n", 1))
    result = machine.set_up()
    assert result.returncode == 130
    assert result.stderr.endswith("setup: interrupted; run it again to continue\n")
    machine.pip_works()
    assert machine.set_up().returncode == 0


def test_environment_without_pip_is_completed(machine):
    (machine.root / ".venv" / "bin").mkdir(parents=True)  # as an interrupted `python -m venv` leaves it
    result = machine.set_up()
    assert result.returncode == 0
    assert "making .venv" in result.stderr


def test_copied_environment_is_refused(machine, tmp_path):
    machine.set_up()
    copy = tmp_path / "copy"
    shutil.copytree(machine.root, copy)
    machine.root = copy
    result = machine.set_up()
    assert result.returncode == 1
    assert (
        f"was made for another folder, {tmp_path}/repository/.venv; remove it (rm -r .venv)" in result.stderr
    )


def test_linked_environment_is_accepted(machine, tmp_path):
    machine.set_up()
    other = tmp_path / "other"
    shutil.copytree(machine.root, other, ignore=shutil.ignore_patterns(".venv"))
    os.symlink(machine.root / ".venv", other / ".venv")
    machine.root = other
    assert machine.set_up().returncode == 0


@pytest.mark.parametrize("name", ["setup", "test", "mkl_on_amd"])
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_shows_the_first_lines_of_a_script_and_does_nothing_else(name, option, tmp_path):
    script = tmp_path / f"scripts/{name}.sh"
    script.parent.mkdir()
    shutil.copy(ROOT / f"scripts/{name}.sh", script)
    done = subprocess.run(["bash", script, option], capture_output=True, text=True)
    assert done.returncode == 0 and not done.stderr
    assert f"    bash scripts/{name}.sh " in done.stdout and "set -euo" not in done.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["scripts"]


def test_an_argument_is_refused(tmp_path):
    done = subprocess.run(["bash", ROOT / "scripts/setup.sh", "torch"], capture_output=True, text=True)
    assert done.returncode == 1
    assert done.stderr == (
        "setup: error: torch: the script has no arguments but --help, which lists its variables.\n"
    )
