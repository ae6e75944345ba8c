#!/usr/bin/env bash
# Lints, checks the format and tests the project; what is given is passed to pytest: `bash scripts/test.sh -k
# attention -x`.

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"

status=0
ruff check . || status=$?
ruff format --check . || status=$?
pytest "$@" || status=$?
exit $status
