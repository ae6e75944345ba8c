#!/usr/bin/env bash
# Multi-Stream (Burtsev and Rumshisky 2021), table 1: WMT14 De-En. Four rows of 20 epochs and five of 10.
# First:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#
#     bash scripts/tables/multistream-1-wmt14.sh --dry-run                  # the exact commands
#     bash scripts/tables/multistream-1-wmt14.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/multistream-1-wmt14.sh --only 4x1-skip --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/multistream-1-wmt14.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/multistream-1/table.txt, .tsv and
# .md.

table=multistream-1
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
