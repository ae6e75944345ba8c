#!/usr/bin/env bash
# MAE (Peng et al. 2020), table 2: WMT14 En-De. Six rows of 100,000 updates of 32,000 tokens each. First:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#
#     bash scripts/tables/mae-2-wmt14.sh --dry-run                  # the exact commands
#     bash scripts/tables/mae-2-wmt14.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/mae-2-wmt14.sh --only mae-7 --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/mae-2-wmt14.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/mae-2/table.txt, .tsv and .md.

table=mae-2
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
