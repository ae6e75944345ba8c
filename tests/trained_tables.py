"""A small table whose rows are trained once, and copies of it."""

import re
import shutil

import pytest

from tests.fairseq_commands import binarize, write_reversal_corpus
from tests.table_folders import (
    call,
    write_configs,
)


@pytest.fixture(scope="session")
def table_folder(tmp_path_factory):
    """A prepared corpus in data/toy.de-en, and the table's files in configs/mine."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "data/toy.de-en/raw").mkdir(parents=True)
    (folder / "configs/mine").mkdir(parents=True)
    write_reversal_corpus(folder / "data/toy.de-en/raw")
    binarize(folder / "data/toy.de-en/raw", folder / "data/toy.de-en/bin")
    write_configs(folder / "configs/mine")
    return folder


@pytest.fixture(scope="session")
def finished_table(table_folder, fast_commands):
    """What `--run` says; its runs are in results/paper/mine."""
    done = call(table_folder, "--run", "--jobs", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def cells(text, label):
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return re.split(r"\s{2,}", line.strip())


@pytest.fixture
def table_copy(table_folder, finished_table, tmp_path):
    """The same place, to be spoilt."""
    for name in ("data", "configs", "results"):
        shutil.copytree(table_folder / name, tmp_path / name)
    return tmp_path
