"""Test that the list of patches is complete and true, and equals the list in docs/patches.md."""

import collections
import json
import re
import subprocess
import sys
import warnings
from fnmatch import fnmatchcase
from pathlib import Path
from types import SimpleNamespace

import fairseq
import numpy as np
import pytest
import torch
from fairseq import options
from fairseq.data import Dictionary

from modular_fairseq import patches
from modular_fairseq_cli import main as cli
from tests.places import ROOT
from tests.process_state import changed_by

IN_A_FRESH_PROCESS = """
import importlib, json, pkgutil
import fairseq_cli, numpy
for command in pkgutil.iter_modules(fairseq_cli.__path__):
    importlib.import_module(f"fairseq_cli.{command.name}")
from tests.process_state import changed_by
changed = changed_by(lambda: importlib.import_module("modular_fairseq"))
from modular_fairseq import patches
again = changed_by(patches.apply)
print(json.dumps([sorted(changed), sorted(again), len(patches.PATCHES)]))
"""


@pytest.fixture(scope="module")
def changes():
    """Return what the plugin changes in a fresh process of fairseq, what a second `apply` changes, and the
    number of patches.
    """
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", IN_A_FRESH_PROCESS],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(child.stdout.splitlines()[-1])


def declared():
    """Return the targets of all patches, without numpy.compat if this version of numpy still has it."""
    targets = {target for patch in patches.PATCHES for target in patch.targets}
    return targets if isinstance(getattr(np, "compat", None), SimpleNamespace) else targets - {"numpy.compat"}


def test_the_list_names_all_that_changes_and_nothing_else(changes):
    changed, _, count = changes
    assert count == len(patches.PATCHES)
    assert [name for name in changed if not any(fnmatchcase(name, target) for target in declared())] == []
    assert [target for target in declared() if not any(fnmatchcase(name, target) for name in changed)] == []


def test_a_second_call_changes_nothing(changes):
    assert changes[1] == []


def test_the_comparison_finds_every_kind_of_change(monkeypatch):
    def change():
        monkeypatch.setattr(options, "get_parser", print)
        monkeypatch.setattr(options, "new", 1, raising=False)
        monkeypatch.delattr(np, "sum")
        monkeypatch.setattr(Dictionary, "index", print)
        monkeypatch.setitem(fairseq.registry.REGISTRIES, "new", {})
        monkeypatch.setattr(torch.nn.Linear, "forward", print)
        monkeypatch.setattr(sys, "excepthook", print)
        warnings.simplefilter("ignore", FutureWarning)

    with warnings.catch_warnings():
        found = changed_by(change)
    assert found == {
        "fairseq.options.get_parser",
        "fairseq.options.new",
        "numpy.sum",
        "fairseq.data.dictionary.Dictionary.index",
        "fairseq.registry.REGISTRIES",
        "torch.nn.modules.linear.Linear.forward",
        "sys.excepthook",
        "warnings.filters",
    }


def test_every_patch_has_a_name_of_its_own_and_cites_lines_of_fairseq_that_exist():
    assert collections.Counter(patch.name for patch in patches.PATCHES).most_common(1)[0][1] == 1
    packages = Path(fairseq.__file__).parent.parent
    for patch in patches.PATCHES:
        citations = re.findall(r"\b(fairseq(?:_cli)?/[\w/]+\.py):(\d+)(?:-(\d+))?", patch.reason)
        assert citations, f"{patch.name} cites no lines of fairseq"
        for file, first, last in citations:
            lines = len((packages / file).read_text().splitlines())
            assert 0 < int(first) <= int(last or first) <= lines, f"{patch.name}: {file}:{first}"


def test_the_page_in_docs_is_what_the_command_prints(capsys):
    cli.main(["patches"])
    assert (ROOT / "docs" / "patches.md").read_text() == capsys.readouterr().out
