#!/usr/bin/env bash
# WMT14 English-German news: Europarl v7, Common Crawl and News Commentary v9; newstest2013 for validation, newstest2014 (full) for test.
#
#     bash data-prep/prepare-wmt14-en-de.sh                          # 32,000 merges, as Vaswani et al. and MAE
#     bash data-prep/prepare-wmt14-en-de.sh --bpe-merges 40000       # as fairseq's recipe and DMA: a dictionary of about 43,700 types
#
# What is done already is not done again; a killed run continues. Options:
#     --out DIR         default data/wmt14.en-de. It gets text/ (one sentence a line), raw/ (valid and test for sacrebleu), tok/ (Moses tokens,
#                       cased, hyphens split, punctuation normalized), bpe/ (sub-words, and their codes), bin/ (for fairseq-train), settings
#                       The archives are kept in DIR/../archives, for all corpora beside DIR
#     --archive FILE    an official archive that you have already; may be given several times; it is only read
#     --bpe-merges N    default 32000, learnt on both languages, which share one dictionary
#     --valid SET       newstest2013 (the default), or every-100th: every 100th train pair, as fairseq's recipe has it (here empty pairs do not count)
#     --workers N       processes; default all cores
# STATMT_URL=... is fetched from instead of http://www.statmt.org. The test sets come from sacrebleu, which keeps them in $SACREBLEU.
# Other than in fairseq's recipe, the punctuation of valid and test is normalized as that of train is, and no validation pair is left out.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

from=${STATMT_URL:-http://www.statmt.org}

recipe=(
    --data-set wmt14.en-de --languages en de --out "$root/data/wmt14.en-de"
    --licence "WMT news data, for research use"
    --fetch training-parallel-europarl-v7.tgz "$from/wmt13/training-parallel-europarl-v7.tgz"
            657632379 sha256:0224c7c710c8a063dfd893b0cc0830202d61f4c75c17eb8e31836103d27d96e7
    --fetch training-parallel-commoncrawl.tgz "$from/wmt13/training-parallel-commoncrawl.tgz"
            918311367 sha256:c7a74e2ea01ac6c920123108627e35278d4ccb5701e15428ffa34de86fa3a9e5
    --fetch training-parallel-nc-v9.tgz "$from/wmt14/training-parallel-nc-v9.tgz"
            80418416 sha256:cb8953f292298e6877ae433c98912b927cb0766b303f4540512ddd286c748485
    --text news
    --train training-parallel-europarl-v7.tgz training/europarl-v7.de-en
    --train training-parallel-commoncrawl.tgz commoncrawl.de-en
    --train training-parallel-nc-v9.tgz training/news-commentary-v9.de-en
    --valid wmt13 --test wmt14/full     # names of sacrebleu
    --tokens moses --normalize --aggressive-hyphens
    --bpe-merges 32000
    --clean subwords 1 250 1.5          # train pairs: 1 to 250 sub-words a side, one side at most 1.5 times as long as the other
    --dictionaries joined
    --accepts archive bpe-merges valid
)
prepare "${recipe[@]}" -- "$@"
