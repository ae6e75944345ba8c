#!/usr/bin/env bash
# Fine-tune a WMT14 model on parts of IWSLT14 En-De, as in MAE (Peng et al. 2020), section 5.2, table 7 and
# figure 2. The model is the MAE-7 of table 2, which is trained if it is missing; --pretrained CHECKPOINT
# gives another one. The rows are the model as it is (NoFT); fine-tuning of its gates (FTG), of its gates and
# output projections (FTG+), and of all of it (FTALL), each on 5, 10, 25, 50, 75 and 100 % of the training
# data; and a MAE-7 that is trained from scratch. Prepare the data first:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#     bash data-prep/prepare-iwslt14-de-en.sh --like data/wmt14.en-de --out data/iwslt14.de-en.like-wmt14
#
# Then run one of these commands:
#
#     # Show the exact commands.
#     bash scripts/transfer.sh --dry-run
#     # Train all rows with three seeds. The options after -- are for fairseq-train.
#     bash scripts/transfer.sh --seeds 1,2,3 -- --fp16
#     # Train some rows, which are named as in configs/transfer/table.yaml.
#     bash scripts/transfer.sh --only ftg-plus-5 --only ftall-5
#     # Train narrow models on the toy corpus, on two cores. --scale small is larger.
#     bash scripts/transfer.sh --scale smoke
#
# The same command continues a run that was killed. The table is written to results/SCALE/transfer/table.txt,
# .tsv and .md, and the figure to figure.svg and .png beside it. `modular-fairseq subset` draws the subsets,
# in data/iwslt14.de-en.like-wmt14/bin.5-percent and so on. Runs with all of the training data are shared with
# scripts/tables/mae-7-transfer.sh.

table=transfer
. "$(dirname "${BASH_SOURCE[0]}")/tables/common.sh"
