#!/usr/bin/env bash
# IWSLT14 German-English (TED talks), after fairseq's recipe. That recipe, with Moses' perl scripts, gives 160,239 / 7,283 / 6,750 pairs and
# dictionaries of 8,848 / 6,632 types (4 of each fairseq's own); this script applies the same rules in Python. On some 22,000 of the training pairs
# and the whole test set its lines, merges and dictionaries were those of that recipe; the whole corpus has not been compared.
#
#     bash data-prep/prepare-iwslt14-de-en.sh
#     bash data-prep/prepare-iwslt14-de-en.sh --archive ~/Downloads/de-en.tgz --out data/iwslt14-as-wmt14 --like data/wmt14.en-de
#
# What is done already is not done again; a killed run continues. Options:
#     --out DIR         default data/iwslt14.de-en. It gets text/ (one sentence a line), raw/ (valid and test for sacrebleu, lower-cased),
#                       tok/ (lower-cased Moses tokens), bpe/ (sub-words, and their codes), bin/ (for fairseq-train), settings. The archive
#                       is kept in DIR/../archives, for all corpora beside DIR; its first sum is recorded there, and compared at each later use
#     --archive FILE    de-en.tgz, where you have it already; it is only read. Of it are used de-en/train.tags.de-en.{de,en} and
#                       de-en/IWSLT14.{TED.dev2010,TEDX.dev2012,TED.tst2010,TED.tst2011,TED.tst2012}.de-en.{de,en}.xml
#     --bpe-merges N    default 10000, learnt on both languages; each language has its own dictionary
#     --like DIR        prepare it as the folder DIR was: its tokens, case, merges and dictionaries, as fine-tuning a model of DIR needs
#     --workers N       processes; default all cores
# IWSLT14_URL=... is fetched from instead of the official folder.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

from=${IWSLT14_URL:-http://dl.fbaipublicfiles.com/fairseq/data/iwslt14}

recipe=(
    --data-set iwslt14.de-en --languages de en --out "$root/data/iwslt14.de-en"
    --licence "TED talks, CC BY-NC-ND"
    --fetch de-en.tgz "$from/de-en.tgz" - -
    --text talks                        # the tagged talks; test is dev2010, dev2012 and tst2010 to tst2012
    --tokens moses --lowercase
    --clean tokens 1 175 1.5            # train pairs: 1 to 175 tokens a side, one side at most 1.5 times as long as the other
    --valid-every 23                    # of what is left
    --bpe-merges 10000
    --dictionaries separate
    --accepts archive bpe-merges like
)
prepare "${recipe[@]}" -- "$@"
