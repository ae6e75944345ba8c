#!/usr/bin/env bash
# Prepares any parallel text: `modular-fairseq prepare raw`, in this repository's .venv. --help says more.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-raw raw "$@"
