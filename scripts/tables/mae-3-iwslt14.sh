#!/usr/bin/env bash
# MAE (Peng et al. 2020), table 3: IWSLT14 De-En. Six rows of 50 epochs each. First:
#
#     bash data-prep/prepare-iwslt14-de-en.sh
#
#     bash scripts/tables/mae-3-iwslt14.sh --dry-run                  # the exact commands
#     bash scripts/tables/mae-3-iwslt14.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/mae-3-iwslt14.sh --only mae-7 --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/mae-3-iwslt14.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/mae-3/table.txt, .tsv and .md.

table=mae-3
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
