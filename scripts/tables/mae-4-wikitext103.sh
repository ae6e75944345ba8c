#!/usr/bin/env bash
# Train the rows of MAE (Peng et al. 2020), table 4, on WikiText-103, and show them beside the paper's. There
# are four language models, of 286,000 updates each. Prepare the data first:
#
#     bash data-prep/prepare-wikitext-103.sh
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/mae-4-wikitext103.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/mae-4-wikitext103.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/mae-4-wikitext103.sh --only mae-7 --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/mae-4-wikitext103.sh --scale smoke
#     # Train small models on WikiText-2, in hours on a processor (first: bash data-prep/prepare-wikitext-2.sh).
#     bash scripts/tables/mae-4-wikitext103.sh --scale cpu
#
# The same command continues a run that was killed. The table is written to results/SCALE/mae-4/table.txt,
# .tsv and .md.

table=mae-4
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
