#!/usr/bin/env bash
# Prepare the Books corpus, or any long text, for a masked language model by `modular-fairseq prepare books`
# in the .venv of this repository, which is made if necessary. --help describes the data and the options.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" prepare --script prepare-books books "$@"
