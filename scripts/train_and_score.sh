#!/usr/bin/env bash
# `modular-fairseq train-and-score` in this repository's .venv, which is made first: from raw parallel text to
# a BLEU score, for one architecture. --help says what NAME, SIZE and GENERATE of the environment change.
#
#     bash scripts/train_and_score.sh FOLDER SOURCE TARGET OUT ARCH [options of fairseq-train, which overrule the recipe]
#     bash scripts/train_and_score.sh multi30k de en results mae_transformer --max-epoch 10 --seed 2

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" train-and-score "$@"
