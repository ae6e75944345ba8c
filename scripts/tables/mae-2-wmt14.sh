#!/usr/bin/env bash
# Train the rows of MAE (Peng et al. 2020), table 2, on WMT14 En-De, and show them beside the paper's. There
# are six rows of 100,000 updates of 32,000 tokens each. Prepare the data first:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/mae-2-wmt14.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/mae-2-wmt14.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/mae-2-wmt14.sh --only mae-7 --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/mae-2-wmt14.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to results/SCALE/mae-2/table.txt,
# .tsv and .md.

table=mae-2
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
