#!/usr/bin/env bash
# From raw parallel text to a BLEU score, for one architecture. What is done already is not done again; a killed run continues.
#
#     bash scripts/train_and_score.sh FOLDER SOURCE TARGET OUT ARCH [options of fairseq-train, which overrule the recipe]
#     bash scripts/train_and_score.sh multi30k de en results mae_transformer --max-epoch 10 --seed 2
#
# FOLDER holds raw {train,valid,test}.{SOURCE,TARGET}. OUT gets the data, by data-prep/prepare-raw.sh (tok/, bpe/, bin/: lower-cased Moses tokens,
# 8,000 joint BPE merges, joined dictionary), and a folder per architecture and options: checkpoints, train.log, generate.out, and score.json
# (what `modular-fairseq score` shows: detokenised output against the lower-cased reference). NAME=... names that folder otherwise.
# The size is 3 + 3 layers of 256 units and 4 heads for any ARCH, but 4 + 4 for multistream_* and tim_*, which need as many (4 to 7 minutes an
# epoch on one core for 29,000 sentence pairs); SIZE="" keeps the arch's own, and SIZE="--encoder-layers 6 ..." sets another.
# GENERATE='--model-overrides {"mae_inference":"specialised"}' adds options of fairseq-generate.

set -euo pipefail

[ $# -ge 5 ] || { echo "usage: bash scripts/train_and_score.sh FOLDER SOURCE TARGET OUT ARCH [options of fairseq-train]" >&2; exit 2; }
mkdir -p "$4"
folder=$(realpath "$1") source=$2 target=$3 out=$(realpath "$4") arch=$5
shift 5
cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
say() { echo "$(date +%H:%M:%S) $*" >&2; }

bash data-prep/prepare-raw.sh "$folder" --source-lang "$source" --target-lang "$target" --out "$out"

layers=3
case $arch in multistream_* | tim_*) layers=4 ;; esac
size="--encoder-layers $layers --decoder-layers $layers --encoder-embed-dim 256 --decoder-embed-dim 256 --encoder-ffn-embed-dim 512
      --decoder-ffn-embed-dim 512 --encoder-attention-heads 4 --decoder-attention-heads 4"
read -rd '' -a size <<<"${SIZE-$size}" || true
recipe=(
    "${size[@]}" --dropout 0.3 --share-all-embeddings
    --optimizer adam --adam-betas "(0.9,0.98)" --clip-norm 1.0 --weight-decay 1e-4
    --lr 2e-3 --lr-scheduler inverse_sqrt --warmup-updates 600
    --criterion modular_cross_entropy --label-smoothing 0.1
    --max-tokens 2048 --max-epoch 12 --seed 1 --update-epoch-batch-itr True
    --keep-last-epochs 5 --no-progress-bar --log-interval 100 --num-workers 1
)
case "$arch $*" in
    *"attention-type plain"* | *-weight* | *aux-warmup*) ;;
    dma_* | *"attention-type dma"* | *"attention-type mae+dma"*) recipe+=(--aux-warmup-updates 600) ;;  # as the learning rate
esac
run=$out/${NAME:-$(echo "$arch ${SIZE-} $*" | tr -c 'a-zA-Z0-9.\n' ' ' | xargs | tr ' ' _)}
mkdir -p "$run"
say "training $arch in $run (log: train.log)"
fairseq-train "$out/bin" --user-dir modular_fairseq --arch "$arch" "${recipe[@]}" "$@" --save-dir "$run" 2>&1 |
    tee -a "$run/train.log" | sed -unE '/\| (train_inner|valid) \|/p' >&2 || { tail -n 3 "$run/train.log" >&2; exit 1; }

say "translating the test set with the best checkpoint, beam 5"
read -ra generate <<<"${GENERATE:-}"
fairseq-generate "$out/bin" --user-dir modular_fairseq --path "$run/checkpoint_best.pt" --beam 5 --batch-size 64 --remove-bpe \
    "${generate[@]}" >"$run/generate.out" 2>"$run/generate.log" || { tail -n 3 "$run/generate.log" >&2; exit 1; }
modular-fairseq score --reference "$out/raw/test.$target" "$run/generate.out" --json "$run/score.json"
