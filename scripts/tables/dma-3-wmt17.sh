#!/usr/bin/env bash
# Train the rows of DMA (Chien and Huang 2022), table 3, on News Commentary v12 of WMT17 Zh-En, and show them
# beside the paper's, with the redundancy of attention. There are two rows of 50 epochs each. Prepare the data
# first:
#
#     bash data-prep/prepare-wmt17-zh-en.sh
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/dma-3-wmt17.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/dma-3-wmt17.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/dma-3-wmt17.sh --only dma --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/dma-3-wmt17.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to results/SCALE/dma-3/table.txt,
# .tsv and .md.

table=dma-3
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
