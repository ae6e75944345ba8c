"""A hook of mkdocs that makes the pages of docs/reports: reports of the models of the demo.

    python docs/hooks/reports.py REPORT.html...     # writes docs/reports/REPORT.json of pages to show

A file docs/reports/NAME.json has the content of a page that `modular-fairseq report` made, without the code
that draws it. The site gets reports/NAME.html, with the present code.
"""

import json
import sys
from pathlib import Path

from mkdocs.structure.files import File

from modular_fairseq_cli.report.page import content_of, page_of

REPORTS = Path(__file__).resolve().parent.parent / "reports"


def on_files(files, config, **_):
    """Add the page of each report to the files of the site."""
    for path in sorted(REPORTS.glob("*.json")):
        page = page_of(json.loads(path.read_text(encoding="utf-8")))
        files.append(File.generated(config, f"reports/{path.stem}.html", content=page))
    return files


def main() -> None:
    for path in map(Path, sys.argv[1:]):
        content = json.dumps(content_of(path.read_text(encoding="utf-8")), separators=(",", ":"))
        (REPORTS / f"{path.stem}.json").write_text(f"{content}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
