#!/usr/bin/env bash
# Ensemble mechanisms (Eschbach-Dymanus), table 1, for translation: IWSLT14 De-En. Eleven rows of 30 epochs
# each. First:
#
#     bash data-prep/prepare-iwslt14-de-en.sh
#
#     bash scripts/tables/ensemble-1-translation.sh --dry-run                  # the exact commands
#     bash scripts/tables/ensemble-1-translation.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/ensemble-1-translation.sh --only full --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/ensemble-1-translation.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/ensemble-1/table.txt, .tsv and .md.

table=ensemble-1
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
