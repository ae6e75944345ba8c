#!/usr/bin/env bash
# DMA (Chien and Huang 2022), table 3: WMT17 Zh-En on news commentary v12, with the redundancy of attention.
# Two rows of 50 epochs each. First:
#
#     bash data-prep/prepare-wmt17-zh-en.sh
#
#     bash scripts/tables/dma-3-wmt17.sh --dry-run                  # the exact commands
#     bash scripts/tables/dma-3-wmt17.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/dma-3-wmt17.sh --only dma --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/dma-3-wmt17.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/dma-3/table.txt, .tsv and .md.

table=dma-3
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
