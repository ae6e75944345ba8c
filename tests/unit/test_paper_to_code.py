"""Test docs/paper-to-code.md: every name on it exists, and no equation, algorithm, table or figure is
missing.
"""

import ast
import re
from collections import defaultdict
from dataclasses import dataclass, fields

import pytest

import modular_fairseq  # noqa: F401
from modular_fairseq.analysis import ANALYSES
from modular_fairseq.analysis.command import SAMPLES
from modular_fairseq.analysis.single_expert import SINGLE_EXPERT
from modular_fairseq.models.options import FAMILIES, PRESETS
from modular_fairseq.models.registry import CRITERIA
from modular_fairseq_cli.main import COMMANDS
from tests.documents import names_in, resolve, tables
from tests.places import ROOT

PAGE = (ROOT / "docs/paper-to-code.md").read_text()
HEADER = ["where", "what", "code", "test, naive reference"]
# The numbers of equations, algorithms, tables and figures of each paper.
NUMBERED = {
    "MAE": {"Eq.": 6, "Alg.": 3, "Table": 8, "Fig.": 3},
    "DMA": {"Eq.": 7, "Alg.": 0, "Table": 3, "Fig.": 1},
    "Multi-Stream": {"Eq.": 1, "Alg.": 0, "Table": 1, "Fig.": 5},
    "TIM": {"Eq.": 0, "Alg.": 1, "Table": 2, "Fig.": 4},
    "Ensemble": {"Eq.": 0, "Alg.": 0, "Table": 1, "Fig.": 3},
}
# Sections with formulas that have no number; every one of them must have a row.
SECTIONS = {
    "MAE": ["2.2", "2.3", "3", "4.1", "5.1", "5.2", "A"],
    "DMA": ["2.1", "2.2", "3.1", "3.2", "3.3", "4.1"],
    "Multi-Stream": ["2", "3.3", "B"],
    "TIM": ["2.1", "2.2.1", "2.2.2", "2.2.3", "2.3", "A.1", "A.2", "A.3"],
    "Ensemble": ["2.1", "2.2", "2.3", "3", "4", "4.1", "4.2"],
}
STEPS = 4  # of TIM's Algorithm 1
OPTIONS = {
    f"--{f.name.replace('_', '-')}"
    for options in (FAMILIES["modular_transformer"], CRITERIA["modular_cross_entropy"])
    for f in fields(options)
}


@dataclass
class Row:
    """Hold a row of a table of the page, and the paper that its table belongs to."""

    paper: str
    where: str
    what: str
    code: str
    test: str

    @property
    def is_here(self) -> bool:
        return not self.code.startswith("Not here: ")


def read_rows() -> list[Row]:
    """Return the rows of all tables under headings such as "### MAE equations", in their order."""
    rows = []
    for section in re.split(r"^### ", PAGE, flags=re.MULTILINE)[1:]:
        paper = section.split("\n")[0].rpartition(" ")[0]
        [(heading, found)] = tables(section)
        assert heading == HEADER, section[:60]
        rows += [Row(paper, *cells) for cells in found]
    return rows


ROWS = read_rows()


def functions_by_file(folder: str) -> dict[str, set[str]]:
    """Return the functions at the top level of every file below a folder, by the name of the file."""
    found = defaultdict(set)
    for path in (ROOT / folder).rglob("*.py"):
        tree = ast.parse(path.read_text())
        found[path.stem] |= {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return found


TESTS = functions_by_file("tests")
REFERENCES = functions_by_file("tests/reference")


def check_code(name: str) -> None:
    """Check that a name of the column "code" exists."""
    if name.startswith("--"):
        assert name in OPTIONS, name
    elif name.startswith("modular-fairseq "):
        command, *analysis = name.split()[1:]
        assert command in COMMANDS, name
        assert not analysis or analysis[0] in [*ANALYSES, SAMPLES, SINGLE_EXPERT], name
    elif "/" in name:
        assert (ROOT / name).is_file(), name
    elif name in PRESETS:
        pass
    else:
        assert "." in name, f"{name} is no arch, option, file, command or dotted name"
        resolve(name)


def numbers(paper: str, kind: str) -> list[int]:
    found = [re.match(rf"{re.escape(f'{paper} {kind}')} (\d+)\b", row.where) for row in ROWS]
    return sorted({int(match[1]) for match in found if match})


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.where}: {row.what[:40]}")
def test_a_row_names_what_exists(row):
    assert row.where.startswith(f"{row.paper} ") and row.what
    if not row.is_here:
        assert len(row.code) > len("Not here: ") and not row.test
        return
    assert names_in(row.code)
    for name in names_in(row.code):
        check_code(name)
    tests, _, references = row.test.partition(";")
    assert names_in(tests)
    for name in names_in(tests):
        file, _, function = name.partition("::")
        assert file.startswith("test_") and function in TESTS[file], name
    for name in names_in(references):
        file, _, function = name.partition(".py::")
        assert function in REFERENCES[file], name


@pytest.mark.parametrize(("paper", "counts"), NUMBERED.items())
def test_every_number_of_a_paper_has_a_row(paper, counts):
    for kind, count in counts.items():
        assert numbers(paper, kind) == list(range(1, count + 1)), f"{paper} {kind}"


@pytest.mark.parametrize(("paper", "sections"), SECTIONS.items())
def test_every_section_with_formulas_has_a_row(paper, sections):
    found = {match[1] for row in ROWS if (match := re.match(rf"{paper} (?:Sec|App)\. ([\w.]*\w)", row.where))}
    assert found == set(sections)


def test_every_step_of_tims_algorithm_has_a_row():
    steps = [row.where for row in ROWS if re.match(r"TIM Alg\. 1, step \d", row.where)]
    assert steps == [f"TIM Alg. 1, step {number}" for number in range(1, STEPS + 1)]


def test_every_paper_has_its_tables_in_the_same_order():
    headings = re.findall(r"^### (.*) (equations|algorithms|tables|figures)$", PAGE, re.MULTILINE)
    assert [paper for paper, kind in headings if kind == "equations"] == list(NUMBERED)
    for paper, counts in NUMBERED.items():
        kinds = ["equations", *(["algorithms"] if counts["Alg."] else []), "tables", "figures"]
        assert [kind for each, kind in headings if each == paper] == kinds


@pytest.mark.parametrize("name", ["modules.gates.GateNet", "--mae-gates", "configs/mae-9/table.yaml", "mae"])
def test_names_that_do_not_exist_are_found(name):
    with pytest.raises((AssertionError, AttributeError)):
        check_code(name)
