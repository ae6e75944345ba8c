#!/usr/bin/env bash
# Prepares WikiText-103: `modular-fairseq prepare wikitext-103`, in this repository's .venv and data/. --help
# says more.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-wikitext-103 wikitext-103 --out "$root/data/wikitext-103" "$@"
