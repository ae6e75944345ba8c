"""Put the present code of the report into the pages of docs/reports.

    python scripts/refresh_reports.py

Each page has data and the code that draws them. After a change in modular_fairseq_cli/report/assets, run this
program; a test compares the pages with the code. The data stay as they are.
"""

from pathlib import Path

from modular_fairseq_cli.report.page import with_present_code

REPORTS = Path(__file__).resolve().parent.parent / "docs" / "reports"


def main() -> None:
    for path in sorted(REPORTS.glob("*.html")):
        path.write_text(with_present_code(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
