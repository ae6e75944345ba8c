#!/usr/bin/env bash
# DMA (Chien and Huang 2022), table 2: WMT14 En-De, with the redundancy of attention. Three rows of 30 epochs
# each. First:
#
#     bash data-prep/prepare-wmt14-en-de.sh --bpe-merges 40000 --out data/wmt14.en-de.40k
#
#     bash scripts/tables/dma-2-wmt14.sh --dry-run                  # the exact commands
#     bash scripts/tables/dma-2-wmt14.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/dma-2-wmt14.sh --only dma-small --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/dma-2-wmt14.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/dma-2/table.txt, .tsv and .md.

table=dma-2
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
