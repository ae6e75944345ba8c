#!/usr/bin/env bash
# Lint the project, check its format, and test it. Arguments are passed to pytest:
#
#     bash scripts/test.sh -k attention -x

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"

status=0
ruff check . || status=$?
ruff format --check . || status=$?
python scripts/lint_report.py || status=$?
pytest "$@" || status=$?
exit $status
