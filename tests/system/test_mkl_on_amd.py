"""Tests of scripts/mkl_on_amd.sh, which gives a command MKL's AVX-512 or AVX2 kernels on an AMD processor."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.places import PYTHON, ROOT

SCRIPT = ROOT / "scripts/mkl_on_amd.sh"
PRODUCT = "import os, torch; torch.eye(2) @ torch.eye(2); print(os.environ.get('LD_PRELOAD', 'nothing'))"
PROCESSOR = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
KERNELS = {"avx512f": "AVX-512", "avx2": "AVX2"} if "AuthenticAMD" in PROCESSOR else {}
BEST = next((kernels for flag, kernels in KERNELS.items() if flag in PROCESSOR.split()), "")


def run(*command, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | variables
    return subprocess.run(["bash", SCRIPT, *command], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(not BEST, reason="needs an AMD processor with AVX2 or AVX-512")
def test_mkl_takes_the_best_kernels():
    plain = subprocess.run(
        [PYTHON, "-c", PRODUCT], capture_output=True, text=True, env=os.environ | {"MKL_VERBOSE": "1"}
    )
    found = run(PYTHON, "-c", PRODUCT, MKL_VERBOSE="1")
    assert BEST not in plain.stdout and BEST in found.stdout, found.stderr
    assert found.stdout.splitlines()[-1].endswith(f"/mkl_{BEST.replace('-', '').lower()}.so")


@pytest.mark.skipif(not BEST, reason="needs an AMD processor with AVX2 or AVX-512")
def test_libraries_of_the_user_are_kept():
    found = run(PYTHON, "-c", PRODUCT, LD_PRELOAD="libm.so.6")
    assert re.fullmatch(r"/.*/mkl_avx\w+\.so:libm\.so\.6", found.stdout.strip()), found.stderr


@pytest.mark.skipif(bool(BEST), reason="needs a processor other than AMD's with AVX2")
def test_another_processor_runs_the_command_as_it_is():
    found = run(PYTHON, "-c", PRODUCT)
    assert found.stdout == "nothing\n" and "MKL chooses its kernels itself" in found.stderr


def test_the_exit_status_is_that_of_the_command():
    assert run("bash", "-c", "exit 3").returncode == 3


def test_a_command_is_needed():
    found = run()
    assert found.returncode == 1 and "give a command" in found.stderr


@pytest.mark.skipif(not BEST, reason="needs an AMD processor with AVX2 or AVX-512")
def test_a_folder_that_cannot_be_preloaded_is_refused(tmp_path):
    script = tmp_path / "with a space/scripts/mkl_on_amd.sh"
    script.parent.mkdir(parents=True)
    shutil.copy(SCRIPT, script)
    found = subprocess.run(["bash", script, "true"], capture_output=True, text=True)
    assert found.returncode == 1 and "LD_PRELOAD takes no path with a space or a colon" in found.stderr
