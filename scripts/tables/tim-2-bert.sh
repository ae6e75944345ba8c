#!/usr/bin/env bash
# Train the rows of TIM (Lamb et al. 2021), table 2, pre-training of BERT, and show them beside the paper's.
# There are five masked language models, of 1,000,000 updates each. Prepare the data first:
#
#     # DIR has the text of Wikipedia and of the Books corpus, with a sentence in each line: wiki.txt and
#     # books.txt for training, valid.txt and test.txt. The paper split sentences by spaCy.
#     bash data-prep/prepare-text.sh DIR --train wiki,books --lowercase --normalize --bpe-merges 32678 \
#         --dictionary-size 32678 --out data/books-wiki
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/tim-2-bert.sh --dry-run
#     # Train all rows. The options after -- are for fairseq-train.
#     bash scripts/tables/tim-2-bert.sh --seeds 1 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/tim-2-bert.sh --only tim --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/tim-2-bert.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to
# results/SCALE/tim-2/table.txt, .tsv and .md.

table=tim-2
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
