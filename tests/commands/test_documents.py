"""Test that what the documents show works: their commands run, their links resolve, and the site builds.

Every fenced block of bash, sh, console or python in README.md, CONTRIBUTING.md and docs/ runs as it stands,
unless an HTML comment directly above it says otherwise:

    <!-- test: OLD -> NEW -->         OLD is replaced by NEW in the block, for example by fewer epochs
    <!-- test: first: COMMAND -->     COMMAND runs before the block and makes what the reader already has
    <!-- not run: REASON -->          the block does not run

`test:` may also stand on a line of its own, with one instruction on each of the lines below it. OLD must
occur in the block, so that a comment which no longer fits its block fails. In blocks of console the lines
that begin with "$ " are the commands.

The blocks of a page run in their order and in one folder, a copy of the repository in which scripts/setup.sh
does nothing and `demo/mae_transformer_tiny_cpu` is what a very short demo made.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from modular_fairseq_cli.main import COMMANDS, EXIT_CODES
from modular_fairseq_cli.report.page import content_of, page_of
from tests.places import PYTHON, ROOT
from tests.processes import PATIENCE

DOCUMENTS = [
    path
    for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
    if path.is_file()
]
LINKED = [
    path for path in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md") if path.is_file()
]
LANGUAGES = ("bash", "sh", "console", "python")
# The block may be indented, as in a list; the comment ends on the line above it.
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w+)[^\n]*\n(?P<code>.*?)^(?P=indent)```$", re.MULTILINE | re.DOTALL
)
COMMENT = re.compile(r"<!-- *(?P<kind>test|not run):(?P<text>(?:(?!-->).)*)--> *\n\s*\Z", re.DOTALL)

# A demo of 40 updates: it trains on the test set, which is small, and ends translations early.
DEMO = ["--train-subset", "test", "--max-source-positions", "24", "--max-target-positions", "24"]


@dataclass
class Block:
    """Hold a block of a document and the instructions of its comment.

    The comment may replace text, name commands that run before the block, or give a reason why the block does
    not run.
    """

    line: int
    language: str
    code: str
    replacements: list[tuple[str, str]] = field(default_factory=list)
    first: list[str] = field(default_factory=list)
    not_run: str | None = None

    @property
    def runs(self) -> bool:
        return self.not_run is None

    def script(self) -> str:
        """Return the code of the block after the replacements that its comment asks for."""
        code = self.code
        for old, new in self.replacements:
            code = code.replace(old, new)
        if self.language == "console":
            code = "".join(f"{line[2:]}\n" for line in code.splitlines() if line.startswith("$ "))
        return code

    def command(self) -> list[str]:
        """Return the command that runs the block and stops at its first error."""
        if self.language == "python":
            return [sys.executable, "-c", self.script()]
        return ["bash", "-euo", "pipefail", "-c", self.script()]


def fences(text: str) -> list[tuple[re.Match[str], re.Match[str] | None]]:
    """Return the blocks of a document that a reader may type, in their order, each with its comment."""
    return [
        (fence, COMMENT.search(text, 0, fence.start()))
        for fence in FENCE.finditer(text)
        if fence["language"] in LANGUAGES
    ]


def blocks(text: str) -> list[Block]:
    """Return the blocks of a document that a reader may type, with the instructions of their comments.

    Raises:
        ValueError: a comment has an unknown instruction, or replaces text that its block does not contain.
    """
    found = []
    for fence, comment in fences(text):
        indent = len(fence["indent"])
        code = "".join(line[indent:] + "\n" for line in fence["code"].splitlines())
        block = Block(text.count("\n", 0, fence.start()) + 1, fence["language"], code)
        if comment:
            read_comment(block, comment["kind"], comment["text"].strip())
        found.append(block)
    return found


def read_comment(block: Block, kind: str, text: str) -> None:
    """Add the instructions of the comment above a block to the block."""
    if not text:
        raise ValueError(f"line {block.line}: the comment above the block gives no instruction or reason")
    if kind == "not run":
        block.not_run = text
        return
    for instruction in map(str.strip, text.splitlines()):
        if instruction.startswith("first:"):
            block.first.append(instruction.removeprefix("first:").strip())
            continue
        old, arrow, new = instruction.partition(" -> ")
        if not arrow:
            raise ValueError(
                f"line {block.line}: {instruction!r} is neither `OLD -> NEW` nor `first: COMMAND`"
            )
        if old not in block.code:
            raise ValueError(f"line {block.line}: the block has no {old!r} that could be replaced")
        block.replacements.append((old, new))


@pytest.fixture(scope="session")
def environment(fast_commands) -> dict[str, str]:
    """Return environment variables for commands, with tests/preloaded and then .venv first on PATH."""
    preloaded, _, others = os.environ["PATH"].partition(os.pathsep)
    programs = os.path.dirname(PYTHON)
    return {**os.environ, "PATH": os.pathsep.join((preloaded, programs, others))}


def run(command: list[str], folder: Path, environment: dict[str, str], where: str) -> None:
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=PATIENCE
    )
    assert done.returncode == 0, f"{where}\n{command[-1]}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"


@pytest.fixture(scope="session")
def demo(tmp_path_factory, environment) -> Path:
    """Run `modular-fairseq demo mae_transformer`, as scripts/demo.sh does, with 40 updates only.

    Returns its folder.
    """
    folder = tmp_path_factory.mktemp("demo")
    run(["modular-fairseq", "demo", "mae_transformer", *DEMO], folder, environment, "the demo")
    (made,) = (path for path in (folder / "demo").iterdir() if path.is_dir())
    return made


@pytest.fixture
def workplace(tmp_path, environment, demo) -> Path:
    """Make a copy of the repository in which blocks may write, and in which nothing is installed."""
    for name in ("modular_fairseq", "modular_fairseq_cli"):
        (tmp_path / name).symlink_to(ROOT / name)
    for name in ("configs", "data-prep", "examples", "results", "scripts"):
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / "scripts/setup.sh").write_text("exit 0\n")
    shutil.copytree(demo, tmp_path / "demo/mae_transformer_tiny_cpu")
    commands = tmp_path / ".venv/bin"
    commands.mkdir(parents=True)
    (commands / "activate").touch()
    for name in ("modular-fairseq", "python"):
        (commands / name).symlink_to(shutil.which(name, path=environment["PATH"]))
    return tmp_path


def title(path: Path) -> str:
    return str(path.relative_to(ROOT))


def has_blocks_that_run(path: Path) -> bool:
    return any(comment is None or comment["kind"] == "test" for _, comment in fences(path.read_text()))


@pytest.mark.parametrize("document", DOCUMENTS, ids=title)
def test_every_comment_above_a_block_fits_it(document):
    blocks(document.read_text())


@pytest.mark.parametrize("document", list(filter(has_blocks_that_run, DOCUMENTS)), ids=title)
def test_the_blocks_of_a_document_run(document, workplace, environment):
    for block in blocks(document.read_text()):
        if block.runs:
            where = f"{title(document)}, line {block.line}"
            for command in block.first:
                run(["bash", "-euo", "pipefail", "-c", command], workplace, environment, where)
            run(block.command(), workplace, environment, where)


def anchors(document: Path) -> set[str]:
    """Return the anchors of a document's headings, as GitHub makes them."""
    without_code = re.sub(r"^```.*?^```$", "", document.read_text(), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ +(.+?) *$", without_code, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("document", LINKED, ids=title)
def test_every_relative_link_leads_somewhere(document):
    text = re.sub(r"```.*?```", "", document.read_text(), flags=re.DOTALL)
    links = re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'(?:src|href)="([^"]+)"', text)
    for link in links:
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if target.parent == ROOT / "docs/reports":
            target = target.with_suffix(".json")  # docs/hooks/reports.py makes the page of it
        assert target.exists(), link
        assert not anchor or anchor in anchors(target), link


def test_the_page_of_commands_has_all_commands_and_exit_codes():
    text = (ROOT / "docs/commands.md").read_text()
    rows = re.findall(r"^\| (.+?) \| (.+?) \|", text, re.MULTILINE)
    commands = {name.strip("`"): summary for name, summary in rows if re.fullmatch("`[a-z-]+`", name)}
    del commands["modular-fairseq"]  # the head of the table
    assert commands == {name: summary for name, (_, summary) in COMMANDS.items()}
    said = re.findall(r"^  (\d+) ", EXIT_CODES, re.MULTILINE)
    assert [name for name, _ in rows if name.isdigit()] == said and len(said) == 4


def test_the_readme_is_short():
    lines = (ROOT / "README.md").read_text().splitlines()
    assert len(lines) <= 160
    assert [line for line in lines if len(line) > 120 and line[0] != "|"] == []  # a table's row cannot wrap


@pytest.fixture(scope="module")
def site(tmp_path_factory, environment) -> Path:
    """Build the documentation site, which must give no warning, and return its folder."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    run(command, ROOT, {**environment, "NO_MKDOCS_2_WARNING": "1"}, "mkdocs build --strict")
    return folder


def test_the_site_needs_no_network(site):
    """No page or style loads a script, a style, a font or a picture from elsewhere.

    Links to other sites are links.
    """
    pages = sorted(site.rglob("*.html"))
    assert site / "index.html" in pages
    for page in pages:
        loaded = re.findall(r'<(?:script|img|iframe)[^>]* src="(https?:[^"]+)"', page.read_text())
        loaded += re.findall(r'<link(?![^>]*rel="canonical")[^>]* href="(https?:[^"]+)"', page.read_text())
        assert loaded == [], page.relative_to(site)
    styles = sorted(site.rglob("*.css"))
    assert styles
    for style in styles:
        loaded = re.findall(r"""(?:@import\s+|url\()\s*["']?((?:https?:)?//[^"')]+)""", style.read_text())
        assert loaded == [], style.relative_to(site)


def test_the_site_has_the_reports_with_the_present_code(site):
    contents = sorted((ROOT / "docs/reports").iterdir())
    assert [path.suffix for path in contents] == [".json"] * 5
    assert {path.name for path in (site / "reports").iterdir()} == {f"{path.stem}.html" for path in contents}
    for path in contents:
        made = (site / "reports" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert content_of(made) == json.loads(path.read_text(encoding="utf-8"))
        assert page_of(content_of(made)) == made


def test_formulae_are_mathml(site):
    pages = [page for page in site.rglob("*.html") if "reports" not in page.parts]
    texts = {page.relative_to(site): page.read_text() for page in pages}
    assert [name for name, text in texts.items() if "arithmatex" in text] == []
    assert sum(text.count("<math") for text in texts.values()) > 200
    without_code = {
        name: re.sub(r"<!--.*?-->|<(code|pre|script|math)\b.*?</\1>", "", text, flags=re.DOTALL)
        for name, text in texts.items()
    }
    assert [name for name, text in without_code.items() if re.search(r"\$.*\$", text)] == []


EXAMPLE = """
<!-- not run: it takes hours -->
```bash
train --epochs 50
```

<!-- test:
first: mkdir data
--epochs 50 -> --epochs 1
-->
```bash
train data --epochs 50
```

```python
print("as it stands")
```

```yaml
title: nobody types this
```
"""


def test_comments_say_how_blocks_run():
    hours, short, python = blocks(EXAMPLE)
    assert hours.not_run == "it takes hours"
    assert (short.first, short.script()) == (["mkdir data"], "train data --epochs 1\n")
    assert python.runs and python.command()[-1] == 'print("as it stands")\n'


@pytest.mark.parametrize(
    ("comment", "message"),
    [
        ("<!-- not run: -->", "gives no instruction or reason"),
        ("<!-- test: quickly -->", "neither"),
        ("<!-- test: --epochs 9 -> --epochs 1 -->", "has no '--epochs 9'"),
    ],
)
def test_a_comment_that_does_not_fit_is_an_error(comment, message):
    with pytest.raises(ValueError, match=message):
        blocks(f"{comment}\n```bash\ntrain --epochs 50\n```\n")
