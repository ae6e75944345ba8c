"""Test that files beside the code name versions, tools and tests that exist."""

import re
import shlex

import pytest
import yaml
from fairseq.models import ARCH_MODEL_REGISTRY

import modular_fairseq  # noqa: F401  (registers the archs)
from modular_fairseq_cli import __version__
from tests.places import ROOT
from tests.system.mutations import MUTATIONS, files_of


def test_the_citation_is_of_this_version_and_of_five_papers():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert citation["version"] == __version__
    assert [reference["year"] for reference in citation["references"] if "year" in reference]
    assert len(citation["references"]) == 5
    for reference in citation["references"]:
        archs = re.findall(r"\w+_transformer", reference["notes"])
        assert archs or "modular-fairseq ablate" in reference["notes"]
        assert set(archs) <= ARCH_MODEL_REGISTRY.keys()


def test_the_hooks_before_a_commit_are_the_checks_of_the_test_script():
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    script = (ROOT / "scripts/test.sh").read_text()
    for hook in hooks:
        program, *arguments = shlex.split(hook["entry"])
        shown = shlex.join([program.removeprefix(".venv/bin/"), *arguments])
        assert shown.removesuffix(" --force-exclude") in script, hook["id"]


def test_the_tests_of_a_file_run_on_one_worker(request):
    """Some versions of pytest ignore the groups of pytest-xdist, and then every worker makes all fixtures."""
    if not request.config.getoption("loadgroup", False):
        pytest.skip("tests are not grouped: there is no --dist loadgroup")
    assert request.node.nodeid.endswith("@test_project_files")


def test_the_slowest_tests_that_contributing_names_exist():
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"`(\w+)::(\w+)", text)
    assert len(named) >= 20
    for stem, function in named:
        texts = [path.read_text() for path in (ROOT / "tests").rglob(f"{stem}.py")]
        assert any(f"def {function}(" in text for text in texts), f"{stem}::{function}"


def test_every_mutation_fits_the_code_and_names_test_files():
    for number, mutation in enumerate(MUTATIONS, 1):
        assert (ROOT / mutation.file).read_text().count(mutation.old) == 1, number
        found = {path.rpartition("/")[2] for path in files_of(ROOT, mutation.tests)}
        assert found == {f"{stem}.py" for stem in mutation.tests.split()}, number
