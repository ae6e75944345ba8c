#!/usr/bin/env bash
# Train one architecture on raw parallel text, translate the test set, and compute its BLEU. The command is
# `modular-fairseq train-and-score` in the .venv of this repository, which is made if necessary. --help
# describes its options.
#
#     # Options of fairseq-train may follow; they overrule the recipe.
#     bash scripts/train_and_score.sh FOLDER SOURCE TARGET OUT ARCH
#     bash scripts/train_and_score.sh multi30k de en work/multi30k mae_transformer --max-epoch 10 --seed 2

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
for name in SIZE GENERATE; do
    if [[ -n ${!name:-} ]]; then
        echo "train_and_score.sh: warning: the variable $name has no effect; give --${name,,}=\"WORDS\"" >&2
    fi
done
bash "$root/scripts/setup.sh"
exec "$root/.venv/bin/modular-fairseq" train-and-score "$@"
