#!/usr/bin/env bash
# WMT17 Chinese-English as in the DMA paper: News Commentary v12 for training, newsdev2017 for validation, newstest2017 for test.
#
#     bash data-prep/prepare-wmt17-zh-en.sh
#
# Text is cased and not segmented into words; sentencepiece learns a BPE model and so a dictionary for each language.
# What is done already is not done again; a killed run continues. Options:
#     --out DIR         default data/wmt17.zh-en. It gets text/ (one sentence a line), raw/ (valid and test for sacrebleu), tok/ (the same text,
#                       single spaces), bpe/ (sub-words, and spm.LANG.model), bin/ (for fairseq-train), settings
#                       The archive is kept in DIR/../archives, for all corpora beside DIR
#     --archive FILE    training-parallel-nc-v12.tgz, where you have it already; it is only read
#     --vocab-size N    sub-words of each language, default 22900. The paper does not say; its 55.0 million parameters, with layers of 512 units
#                       and 1,024 in the feed-forward part, leave room for about 45,800 rows of embeddings in all
#     --workers N       processes; default all cores
# DATA_STATMT_URL=... is fetched from instead of http://data.statmt.org. The test sets come from sacrebleu, which keeps them in $SACREBLEU.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

from=${DATA_STATMT_URL:-http://data.statmt.org}

recipe=(
    --data-set wmt17.zh-en --languages zh en --out "$root/data/wmt17.zh-en"
    --licence "WMT news data, for research use"
    --fetch training-parallel-nc-v12.tgz "$from/wmt17/translation-task/training-parallel-nc-v12.tgz"
            168591139 sha256:2b45f30ef1d550d302fd17dd3a5cbe19134ccc4c2cf50c2dae534aee600101a2
    --text news
    --train training-parallel-nc-v12.tgz training/news-commentary-v12.zh-en
    --valid wmt17/dev --test wmt17      # names of sacrebleu
    --tokens none
    --vocab-size 22900
    --clean subwords 1 250 1.5          # train pairs: 1 to 250 sub-words a side, one side at most 1.5 times as long as the other
    --dictionaries separate
    --accepts archive vocab-size
)
prepare "${recipe[@]}" -- "$@"
