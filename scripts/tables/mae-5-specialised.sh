#!/usr/bin/env bash
# Measure the rows of MAE (Peng et al. 2020), table 5, which have one expert per attention layer (WMT14 En-De,
# newstest2013), and show them beside the paper's. The models come from table 2; missing
# ones are trained. Prepare the data first:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/mae-5-specialised.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/mae-5-specialised.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/mae-5-specialised.sh --only mae-7-specialised --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/mae-5-specialised.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to results/SCALE/mae-5/table.txt,
# .tsv and .md.

table=mae-5
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
