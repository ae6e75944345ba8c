#!/usr/bin/env bash
# Prepare WMT17 Chinese-English in data/ of this repository, by `modular-fairseq prepare wmt17-zh-en` in its
# .venv, which is made if necessary. --help describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-wmt17-zh-en wmt17-zh-en \
    --out "$root/data/wmt17.zh-en" "$@"
