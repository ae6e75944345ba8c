#!/usr/bin/env bash
# Prepare WMT14 English-German in data/ of this repository, by `modular-fairseq prepare wmt14-en-de` in its
# .venv, which is made if necessary. --help describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-wmt14-en-de wmt14-en-de \
    --out "$root/data/wmt14.en-de" "$@"
