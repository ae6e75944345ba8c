#!/usr/bin/env bash
# Prepare a classification of pairs of lines of a text (are they of the same document?) by `modular-fairseq
# prepare same-document` in the .venv of this repository, which is made if necessary. --help describes the
# data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-same-document same-document "$@"
