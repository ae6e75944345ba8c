#!/usr/bin/env bash
# Prepare MNLI of GLUE in data/ of this repository, by `modular-fairseq prepare glue-mnli` in the .venv of
# this repository, which is made if necessary. --help describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-glue-mnli glue-mnli \
    --out "$root/data/glue.mnli" "$@"
