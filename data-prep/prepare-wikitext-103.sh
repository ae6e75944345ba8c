#!/usr/bin/env bash
# WikiText-103, word level, as published (<unk>, @-@ and all): for language models.
#
#     bash data-prep/prepare-wikitext-103.sh
#
# What is done already is not done again; a killed run continues. Options:
#     --out DIR         default data/wikitext-103. It gets text/ (wiki.{train,valid,test}.tokens), bin/ (for fairseq-train), settings
#                       The archive is kept in DIR/../archives, for all corpora beside DIR
#     --archive FILE    wikitext-103-v1.zip, where you have it already; it is only read
#     --workers N       processes; default all cores
# WIKITEXT_URL=... is fetched from instead of the author's mirror.

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

from=${WIKITEXT_URL:-https://wikitext.smerity.com}

recipe=(
    --data-set wikitext-103 --out "$root/data/wikitext-103"
    --licence "WikiText, CC BY-SA 3.0"
    --fetch wikitext-103-v1.zip "$from/wikitext-103-v1.zip" - sha1:0aec09a7537b58d4bb65362fee27650eeaba625a
    --text articles
    --accepts archive
)
prepare "${recipe[@]}" -- "$@"
