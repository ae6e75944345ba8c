#!/usr/bin/env bash
# Search for accidents that the program does not survive. The parts are kills, accidents (disks, memory, pipes
# and terminals), workers, memory, hostile (files), options and files; docs/reliability.md explains them. This
# takes hours. Every case follows from the seed. The same command continues, and repeats what was wrong.
#
#     bash scripts/soak.sh                          # all parts; outcomes and report.md are in soak/
#     bash scripts/soak.sh --only kills --count 20  # some cases of one part
#     bash scripts/soak.sh --seed 2 --out soak-2    # other cases
#
# The exit status is 1 if anything is wrong.

set -euo pipefail
CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export OMP_NUM_THREADS=1
exec .venv/bin/python -m tests.soak "$@"
