#!/usr/bin/env bash
# MAE (Peng et al. 2020), table 5: what is left with one expert per attention layer (WMT14 En-De,
# newstest2013). Takes the models of table 2, and trains those that are not there. First:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#
#     bash scripts/tables/mae-5-specialised.sh --dry-run                  # the exact commands
#     bash scripts/tables/mae-5-specialised.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/mae-5-specialised.sh --only mae-7-specialised --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/mae-5-specialised.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/mae-5/table.txt, .tsv and .md.

table=mae-5
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
