#!/usr/bin/env bash
# Prepares WMT17 Chinese-English: `modular-fairseq prepare wmt17-zh-en`, in this repository's .venv and data/.
# --help says more.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-wmt17-zh-en wmt17-zh-en --out "$root/data/wmt17.zh-en" "$@"
