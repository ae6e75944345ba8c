#!/usr/bin/env bash
# DMA (Chien and Huang 2022), table 1: IWSLT14 De-En, with the redundancy of attention. Four rows of 50 epochs
# each. First:
#
#     bash data-prep/prepare-iwslt14-de-en.sh
#
#     bash scripts/tables/dma-1-iwslt14.sh --dry-run                  # the exact commands
#     bash scripts/tables/dma-1-iwslt14.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/dma-1-iwslt14.sh --only dma-tiny --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/dma-1-iwslt14.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/dma-1/table.txt, .tsv and .md.

table=dma-1
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
