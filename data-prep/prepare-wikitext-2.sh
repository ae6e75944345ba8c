#!/usr/bin/env bash
# Prepare WikiText-2 in data/ of this repository, by `modular-fairseq prepare wikitext-2` in its .venv,
# which is made if necessary. --help describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-wikitext-2 wikitext-2 \
    --out "$root/data/wikitext-2" "$@"
