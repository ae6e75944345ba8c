#!/usr/bin/env bash
# MAE (Peng et al. 2020), table 7: fine-tuning of the gates, and more, of a model of WMT14 on IWSLT14 En-De.
# Takes the MAE-7 of table 2, or trains it, or takes --pretrained CHECKPOINT. First:
#
#     bash data-prep/prepare-wmt14-en-de.sh
#     bash data-prep/prepare-iwslt14-de-en.sh --like data/wmt14.en-de --out data/iwslt14.de-en.like-wmt14
#
#     bash scripts/tables/mae-7-transfer.sh --dry-run                  # the exact commands
#     bash scripts/tables/mae-7-transfer.sh --seeds 1,2,3 -- --fp16    # all rows; what follows the -- goes to fairseq-train
#     bash scripts/tables/mae-7-transfer.sh --only ftg --data DIR     # one row, corpora elsewhere than in data/
#     bash scripts/tables/mae-7-transfer.sh --scale smoke              # narrow models on the toy corpus, minutes on two cores; small: between
#
# Killed, the same command goes on. It ends with the table: results/SCALE/mae-7/table.txt, .tsv and .md.

table=mae-7
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"
