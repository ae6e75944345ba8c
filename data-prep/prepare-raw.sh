#!/usr/bin/env bash
# Any parallel text: a folder with {train,valid,test}.{SOURCE,TARGET}, or the same with .gz; one sentence a line, UTF-8, not tokenized.
#
#     bash data-prep/prepare-raw.sh FOLDER --source-lang de --target-lang en --out data/mine
#     bash data-prep/prepare-raw.sh FOLDER --source-lang de --target-lang en --out data/mine-as-wmt14 --like data/wmt14.en-de
#
# What is done already is not done again; a killed run continues. Train pairs that are empty, longer than 175 tokens, or of which one side is more
# than 9 times as long as the other are left out; valid and test are never filtered. Options:
#     --source-lang L, --target-lang L          the endings of the files
#     --out DIR                                 gets text/ (the sentences), raw/ (valid and test for sacrebleu), tok/ (Moses tokens), bpe/ (sub-words,
#                                               and their codes), bin/ (for fairseq-train), settings
#     --lowercase, --keep-case                  default --lowercase
#     --bpe-merges N                            default 8000, learnt on both languages
#     --vocab-size N                            instead of tokens and merges: sentencepiece BPE of so many sub-words for each language, for text
#                                               without spaces between words, such as Chinese; dictionaries are separate then by default
#     --joined-dictionary, --separate-dictionaries    default joined
#     --like DIR                                prepare it as the folder DIR was: its tokens, case, merges and dictionaries
#     --workers N                               processes; default all cores

. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

recipe=(
    --data-set "parallel text"
    --text folder
    --tokens moses --lowercase
    --clean tokens 1 175 9
    --bpe-merges 8000
    --dictionaries joined
    --accepts folder source-lang target-lang lowercase keep-case bpe-merges vocab-size joined-dictionary separate-dictionaries like
)
prepare "${recipe[@]}" -- "$@"
