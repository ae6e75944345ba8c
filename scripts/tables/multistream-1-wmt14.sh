#!/usr/bin/env bash
# Train the rows of Multi-Stream (Burtsev and Rumshisky 2021), table 1, on WMT14 De-En, and show them beside
# the paper's. There are four rows of 20 epochs and five of 10. Prepare the data first:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/multistream-1-wmt14.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/multistream-1-wmt14.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/multistream-1-wmt14.sh --only 4x1-skip --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/multistream-1-wmt14.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to
# results/SCALE/multistream-1/table.txt, .tsv and .md.

table=multistream-1
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
