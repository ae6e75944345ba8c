"""Tests of scripts/mkl_avx512.sh, which gives a command MKL's AVX-512 kernels on an AMD processor."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.places import PYTHON, ROOT

SCRIPT = ROOT / "scripts/mkl_avx512.sh"
PRODUCT = "import os, torch; torch.eye(2) @ torch.eye(2); print(os.environ.get('LD_PRELOAD', 'nothing'))"
PROCESSOR = Path("/proc/cpuinfo").read_text() if os.path.exists("/proc/cpuinfo") else ""
AMD_WITH_AVX512 = "AuthenticAMD" in PROCESSOR and "avx512f" in PROCESSOR.split()


def run(*command, **variables):
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"} | variables
    return subprocess.run(["bash", SCRIPT, *command], capture_output=True, text=True, env=environment)


@pytest.mark.skipif(not AMD_WITH_AVX512, reason="needs an AMD processor with AVX-512")
def test_mkl_takes_its_avx512_kernels():
    plain = subprocess.run(
        [PYTHON, "-c", PRODUCT], capture_output=True, text=True, env=os.environ | {"MKL_VERBOSE": "1"}
    )
    found = run(PYTHON, "-c", PRODUCT, MKL_VERBOSE="1")
    assert "AVX-512" not in plain.stdout and "AVX-512" in found.stdout, found.stderr
    assert found.stdout.splitlines()[-1].endswith("/mkl_avx512.so")


@pytest.mark.skipif(AMD_WITH_AVX512, reason="needs a processor other than AMD's with AVX-512")
def test_another_processor_runs_the_command_as_it_is():
    found = run(PYTHON, "-c", PRODUCT)
    assert found.stdout == "nothing\n" and "MKL chooses its kernels itself" in found.stderr


def test_the_exit_status_is_that_of_the_command():
    assert run("bash", "-c", "exit 3").returncode == 3


def test_a_command_is_needed():
    found = run()
    assert found.returncode == 1 and "give a command" in found.stderr
