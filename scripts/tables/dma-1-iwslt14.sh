#!/usr/bin/env bash
# Train the rows of DMA (Chien and Huang 2022), table 1, on IWSLT14 De-En, and show them beside the paper's,
# with the redundancy of attention. There are four rows of 50 epochs each. Prepare the data first:
#
#     bash data-prep/prepare-iwslt14-de-en.sh
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/dma-1-iwslt14.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/dma-1-iwslt14.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/dma-1-iwslt14.sh --only dma-tiny --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/dma-1-iwslt14.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to results/SCALE/dma-1/table.txt,
# .tsv and .md.

table=dma-1
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
