#!/usr/bin/env bash
# Lint, check types and test the project. Arguments are passed to pytest.
#
#     bash scripts/test.sh                  # everything
#     bash scripts/test.sh --fast           # the linters, the types, and the first tier, tests/unit
#     bash scripts/test.sh -k attention -x  # the tests whose name has "attention", up to the first failure
#
# TEST_WORKERS sets how many processes test at a time. The default is one more than there are processors, at
# most 8, because tests also wait; 0 tests in one process, as --pdb needs it.

set -euo pipefail

case ${1:-} in -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;; esac

CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH" OMP_NUM_THREADS=1
unset PYTHONDONTWRITEBYTECODE  # every command of the tests would compile the plugin anew, a third of a second

arguments=()
for argument in "$@"; do
    case $argument in
        --fast) arguments+=(tests/unit) ;;
        *) arguments+=("$argument") ;;
    esac
done
workers=$(python -c 'import os; print(min(8, 1 + (len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count())))')

trap 'exit 130' INT  # mypy has an exit code of its own for Ctrl-C
status=0
ruff check . || status=$?
ruff format --check . || status=$?
mypy || status=$?
python scripts/lint_report.py || status=$?
pytest -n "${TEST_WORKERS:-$workers}" --dist loadgroup --no-loadscope-reorder --durations 25 "${arguments[@]}" || status=$?
exit $status
