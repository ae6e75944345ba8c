#!/usr/bin/env bash
# Fine-tune the gates, and more, of a WMT14 model on IWSLT14 En-De, as in MAE (Peng et al. 2020), table 7, and
# show the rows beside the paper's. The model is the MAE-7 of table 2, which is trained if it is missing;
# --pretrained CHECKPOINT gives another one. Prepare the data first:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#     bash data-prep/prepare-iwslt14-de-en.sh --like data/wmt14.en-de --out data/iwslt14.de-en.like-wmt14
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/mae-7-transfer.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/tables/mae-7-transfer.sh --seeds 1,2,3 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/mae-7-transfer.sh --only ftg --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/mae-7-transfer.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to results/SCALE/mae-7/table.txt,
# .tsv and .md.

table=mae-7
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
