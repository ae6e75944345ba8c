#!/usr/bin/env bash
# Small stand-ins for the corpora of the papers' tables, from the toy corpus (modular-fairseq toy-corpus); German stands for Chinese, too.
#
#     bash scripts/tables/smoke-corpora.sh DIR CORPUS...
#
# What is there is left alone; a killed run continues.

set -euo pipefail

out=$(realpath -m "$1") here=$(realpath "$(dirname "${BASH_SOURCE[0]}")")
shift
export PATH="$here/../../.venv/bin:$PATH"

toy_text() {  # CORPUS SEED: DIR/CORPUS.text with the toy corpus, German also under the name of Chinese
    local folder=$out/$1.text
    [ ! -e "$folder/done" ] || return 0
    modular-fairseq toy-corpus "$folder" --train 4800 --valid 100 --test 100 --seed "$2" >&2
    for split in train valid test; do cp "$folder/$split.de" "$folder/$split.zh"; done
    touch "$folder/done"
}

prepare() {  # CORPUS SOURCE [options]
    local corpus=$1 source=$2
    shift 2
    echo "preparing $out/$corpus from the toy corpus" >&2
    bash "$here/../../data-prep/prepare-raw.sh" "$out/$corpus.text" --source-lang "$source" --target-lang en --out "$out/$corpus" "$@" >&2
}

mkdir -p "$out"
for corpus in "$@"; do
    case $corpus in
        iwslt14.de-en) toy_text $corpus 1; prepare $corpus de --bpe-merges 1000 --separate-dictionaries ;;
        wmt14.en-de) toy_text $corpus 2; prepare $corpus de --keep-case --bpe-merges 1000 ;;
        wmt14.en-de.40k) toy_text $corpus 2; prepare $corpus de --keep-case --bpe-merges 1500 ;;
        iwslt14.de-en.like-wmt14) toy_text $corpus 1; prepare $corpus de --like "$out/wmt14.en-de" ;;
        wmt17.zh-en) toy_text $corpus 3; prepare $corpus zh --keep-case --separate-dictionaries --vocab-size 600 ;;
        *) echo "smoke-corpora: there is no $corpus" >&2; exit 2 ;;
    esac
done
