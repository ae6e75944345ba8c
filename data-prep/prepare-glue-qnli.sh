#!/usr/bin/env bash
# Prepare QNLI of GLUE in data/ of this repository, by `modular-fairseq prepare glue-qnli` in the .venv of
# this repository, which is made if necessary. --help describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-glue-qnli glue-qnli \
    --out "$root/data/glue.qnli" "$@"
