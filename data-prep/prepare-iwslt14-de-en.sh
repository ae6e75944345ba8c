#!/usr/bin/env bash
# Prepares IWSLT14 German-English: `modular-fairseq prepare iwslt14-de-en`, in this repository's .venv and
# data/. --help says more.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-iwslt14-de-en iwslt14-de-en --out "$root/data/iwslt14.de-en" "$@"
