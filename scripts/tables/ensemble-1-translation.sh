#!/usr/bin/env bash
# Train the rows of Ensemble mechanisms (Eschbach-Dymanus), table 1, for translation on IWSLT14 De-En, and
# show them beside the paper's. There are eleven rows of 30 epochs each. Prepare the data first:
#
#     bash data-prep/prepare-iwslt14-de-en.sh
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/ensemble-1-translation.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/ensemble-1-translation.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/ensemble-1-translation.sh --only full --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/ensemble-1-translation.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to
# results/SCALE/ensemble-1/table.txt, .tsv and .md.

table=ensemble-1
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
