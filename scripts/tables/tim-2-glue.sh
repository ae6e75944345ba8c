#!/usr/bin/env bash
# Train the rows of TIM (Lamb et al. 2021), table 2, fine-tuning on MNLI, QNLI and SST-2 of GLUE, and show them beside the paper's.
# Each of the five models is fine-tuned on three tasks, with four learning rates and each seed. Prepare the data first:
#
#     # Prepare data/books-wiki as scripts/tables/tim-2-bert.sh says, which trains the models, and then:
#     bash data-prep/prepare-glue-mnli.sh --like data/books-wiki
#     bash data-prep/prepare-glue-qnli.sh --like data/books-wiki
#     bash data-prep/prepare-glue-sst-2.sh --like data/books-wiki
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/tim-2-glue.sh --dry-run
#     # Train all rows with five seeds, as the paper does. The options after -- are for fairseq-train.
#     bash scripts/tables/tim-2-glue.sh --seeds 1,2,3,4,5 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/tim-2-glue.sh --only sst-2-tim --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/tim-2-glue.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to
# results/SCALE/tim-2-glue/table.txt, .tsv and .md.

table=tim-2-glue
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
