#!/usr/bin/env bash
# Search for accidents that the program does not survive: commands are killed at random moments, options and
# files are spoilt. This takes hours. Every case follows from the seed, and the same command continues.
#
#     bash scripts/soak.sh                          # all parts; outcomes and report.json are in soak/
#     bash scripts/soak.sh --only kills --count 20  # some cases of one part
#     bash scripts/soak.sh --seed 2 --out soak-2    # other cases
#
# The exit status is 1 if anything is wrong.

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=1
exec .venv/bin/python -m tests.soak "$@"
