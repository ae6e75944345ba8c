#!/usr/bin/env bash
# Prepares WMT14 English-German: `modular-fairseq prepare wmt14-en-de`, in this repository's .venv and data/.
# --help says more.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-wmt14-en-de wmt14-en-de --out "$root/data/wmt14.en-de" "$@"
