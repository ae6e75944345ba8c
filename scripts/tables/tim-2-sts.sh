#!/usr/bin/env bash
# Train the rows of TIM (Lamb et al. 2021), table 2, fine-tuning on STS-B of GLUE, and show them beside the paper's.
# Each of the five models is fine-tuned with four learning rates and each seed. Prepare the data first:
#
#     # Prepare data/books-wiki as scripts/tables/tim-2-bert.sh says, which trains the models, and then:
#     bash data-prep/prepare-glue-sts-b.sh --like data/books-wiki
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/tables/tim-2-sts.sh --dry-run
#     # Train all rows with five seeds, as the paper does. The options after -- are for fairseq-train.
#     bash scripts/tables/tim-2-sts.sh --seeds 1,2,3,4,5 -- --fp16
#     # Train one row, with the corpora in DIR instead of data/.
#     bash scripts/tables/tim-2-sts.sh --only sts-b-tim --data DIR
#     # Train narrow models on the toy corpus, in minutes on two cores. --scale small is larger.
#     bash scripts/tables/tim-2-sts.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to
# results/SCALE/tim-2-sts/table.txt, .tsv and .md.

table=tim-2-sts
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
