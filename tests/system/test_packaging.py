"""Test the wheel, which installs the project without a clone.

It is built from the source distribution, without a network.
"""

import os
import shutil
import subprocess
import tarfile
import zipfile

import pytest

from modular_fairseq_cli import __version__, shipped
from tests.places import PYTHON, ROOT

PACKAGES = ("modular_fairseq", "modular_fairseq_cli")
PROJECT = (
    "setup.py",
    "pyproject.toml",
    "MANIFEST.in",
    "README.md",
    "CHANGELOG.md",
    "LICENSE",
    "constraints.txt",
)
COPIED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*")


def run(*command, **options):
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, **options)
    assert result.returncode == 0, result.stderr
    return result.stdout


def files_below(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Copy the files that a wheel is built from, because building writes into their folder."""
    sources = tmp_path_factory.mktemp("sources")
    for name in PROJECT:
        shutil.copy(ROOT / name, sources / name)
    for name in (*PACKAGES, "configs"):
        shutil.copytree(ROOT / name, sources / name, ignore=COPIED)
    return sources


@pytest.fixture(scope="module")
def installed(sources, tmp_path_factory):
    """Build the wheel, and unpack it as pip would put it beside the other packages."""
    pytest.importorskip("setuptools", minversion="77", reason="building a wheel needs setuptools 77 or newer")
    folder = tmp_path_factory.mktemp("built")
    expected = {name: files_below(sources / name) for name in (*PACKAGES, "configs")}

    def build(kind, where):
        code = f"from setuptools import build_meta; print(build_meta.build_{kind}({str(folder)!r}))"
        return folder / run(PYTHON, "-c", code, cwd=where).splitlines()[-1]

    with tarfile.open(build("sdist", sources)) as archive:
        archive.extractall(folder, filter="data")
    unpacked = folder / f"modular_fairseq-{__version__}"
    for name, content in expected.items():
        assert files_below(unpacked / name) == content
    with zipfile.ZipFile(build("wheel", unpacked)) as wheel:
        wheel.extractall(folder / "site")
    return folder / "site"


def test_a_wheel_holds_both_packages_and_the_configs(sources, installed):
    expected = {
        f"{name}/{path}": content
        for name in PACKAGES
        for path, content in files_below(sources / name).items()
    }
    configs = files_below(sources / "configs")
    expected |= {f"modular_fairseq_cli/configs/{path}": content for path, content in configs.items()}
    for part in ("report/assets/page.html", "corpora/recipes/raw.yaml", "configs/mae-3/table.yaml"):
        assert f"modular_fairseq_cli/{part}" in expected
    found = files_below(installed)
    about = f"modular_fairseq-{__version__}.dist-info"
    assert {path: found[path] for path in found if not path.startswith(about)} == expected
    metadata = found[f"{about}/METADATA"].decode()
    assert f"\nVersion: {__version__}\n" in metadata
    assert "modular-fairseq = modular_fairseq_cli.main:main" in found[f"{about}/entry_points.txt"].decode()


def test_the_installed_commands_find_what_is_shipped(installed, tmp_path):
    """The commands run in an empty folder, with the unpacked wheel before all other packages."""
    call = [PYTHON, "-P", "-m", "modular_fairseq_cli"]
    options = {"cwd": tmp_path, "env": {**os.environ, "PYTHONPATH": str(installed)}}
    assert run(*call, "user-dir", **options) == f"{installed / 'modular_fairseq'}\n"
    assert run(*call, "--version", **options) == f"modular-fairseq {__version__}\n"
    assert "\n  wmt17-zh-en " in run(*call, "prepare", "--help", **options)
    code = "from modular_fairseq_cli import shipped; print(shipped.configs())"
    assert run(PYTHON, "-P", "-c", code, **options) == f"{installed / 'modular_fairseq_cli/configs'}\n"
    run(*call, "toy-corpus", "toy", "--train", "50", "--valid", "5", "--test", "5", **options)
    assert len((tmp_path / "toy/train.de").read_text().splitlines()) == 50


def test_a_clone_uses_its_own_configs():
    assert shipped.configs() == ROOT / "configs"
    assert (shipped.configs() / "mae-3/table.yaml").is_file()
