#!/usr/bin/env bash
# Prepare IWSLT14 German-English in data/ of this repository, by `modular-fairseq prepare iwslt14-de-en` in
# its .venv, which is made if necessary. --help describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-iwslt14-de-en iwslt14-de-en \
    --out "$root/data/iwslt14.de-en" "$@"
