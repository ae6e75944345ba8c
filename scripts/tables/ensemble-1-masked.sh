#!/usr/bin/env bash
# Train the rows of Ensemble mechanisms (Eschbach-Dymanus), table 1, a masked language model on books, and show them beside the paper's.
# There are eleven rows of 40,000 updates each. DIR has your copy of the Books corpus. Prepare the data first:
#
#     bash data-prep/prepare-books.sh DIR --out data/books
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/ensemble-1-masked.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/ensemble-1-masked.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/ensemble-1-masked.sh --only full --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/ensemble-1-masked.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to
# results/SCALE/ensemble-1-masked/table.txt, .tsv and .md.

table=ensemble-1-masked
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
