#!/usr/bin/env bash
# Prepare a classification of your own texts, on which a masked language model is fine-tuned by
# `modular-fairseq prepare classes` in the .venv of this repository, which is made if necessary. --help
# describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-classes classes "$@"
