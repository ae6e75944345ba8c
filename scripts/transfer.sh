#!/usr/bin/env bash
# MAE (Peng et al. 2020), section 5.2, table 7 and figure 2: a MAE-7 of WMT14 as it is (NoFT), and fine-tuned
# on IWSLT14 En-De: its gates (FTG), gates and output projections (FTG+), all of it (FTALL), each on 5, 10,
# 25, 50, 75 and 100 % of the training data; and MAE-7 from scratch. Takes the MAE-7 of table 2, or trains it,
# or takes --pretrained CHECKPOINT. First:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#     bash data-prep/prepare-iwslt14-de-en.sh --like data/wmt14.en-de --out data/iwslt14.de-en.like-wmt14
#
#     bash scripts/transfer.sh --dry-run                  # the exact commands
#     bash scripts/transfer.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/transfer.sh --only ftg-plus-5 --only ftall-5    # some rows, named as in configs/transfer/table.yaml
#     bash scripts/transfer.sh --scale smoke              # narrow models on the toy corpus, on two cores; small: between
#
# Killed, the same command goes on. It ends with the table, results/SCALE/transfer/table.txt, .tsv and .md,
# and figure.svg and .png. Subsets are drawn by `modular-fairseq subset`:
# data/iwslt14.de-en.like-wmt14/bin.5-percent and so on. Runs with all of the training data are those of
# scripts/tables/mae-7-transfer.sh.

table=transfer
. "$(dirname "${BASH_SOURCE[0]}")/tables/common.sh"
