#!/usr/bin/env bash
# Prepare any parallel text, by `modular-fairseq prepare raw` in the .venv of this repository, which is made
# if necessary. --help describes the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-raw raw "$@"
