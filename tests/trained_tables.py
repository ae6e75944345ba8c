"""Train the rows of a small table once, and copy them for each test."""

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
    """Make a folder with a prepared corpus in data/toy.de-en and the files of the table in configs/mine."""
    folder = tmp_path_factory.mktemp("tables")
    (folder / "data/toy.de-en/raw").mkdir(parents=True)
    (folder / "configs/mine").mkdir(parents=True)
    write_reversal_corpus(folder / "data/toy.de-en/raw")
    binarize(folder / "data/toy.de-en/raw", folder / "data/toy.de-en/bin")
    write_configs(folder / "configs/mine")
    return folder


@pytest.fixture(scope="session")
def finished_table(table_folder, fast_commands):
    """Run the table with `--run`, and return the finished process. The runs are in results/paper/mine."""
    done = call(table_folder, "--run", "--jobs", "2")
    assert done.returncode == 0, done.stderr[-3000:]
    return done


def cells(text, label):
    (line,) = [line for line in text.splitlines() if line.strip().startswith(label)]
    return re.split(r"\s{2,}", line.strip())


@pytest.fixture
def table_copy(table_folder, finished_table, tmp_path):
    """Make a copy of the finished table that a test may damage."""
    for name in ("data", "configs", "results"):
        shutil.copytree(table_folder / name, tmp_path / name)
    return tmp_path
