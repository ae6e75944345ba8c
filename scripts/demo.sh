#!/usr/bin/env bash
# One architecture on a small synthetic corpus, from text to BLEU, in two to four minutes on two cores.
#
#     bash scripts/demo.sh                             # a mixture of attentive experts; writes everything to demo/mae_transformer_tiny_cpu/
#     bash scripts/demo.sh tim_transformer             # any other of the papers' architectures (in its size _tiny_cpu), same budget
#     bash scripts/demo.sh mae_transformer --encoder-layers 4 --streams 2 --stream-skip    # options of fairseq-train: mechanisms compose
#
# The same commands, with your data and a larger arch, are an experiment: README.md, "Your own data".

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
export PATH="$PWD/.venv/bin:$PATH"
case "${1-}" in -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' scripts/demo.sh; exit ;; esac
arch=${1:-mae_transformer} plugin=modular_fairseq
shift $(($# > 0))
arch=${arch%_tiny_cpu}
case $arch in
    modular_transformer | mae_transformer | dma_transformer | multistream_transformer | tim_transformer) arch+=_tiny_cpu ;;
    *) echo "demo: no arch $arch with a size _tiny_cpu; use modular_transformer, mae_transformer, dma_transformer, multistream_transformer or tim_transformer" >&2; exit 2 ;;
esac
out=demo/$(echo "$arch $*" | tr -c 'a-zA-Z0-9_.\n' ' ' | xargs | tr ' ' -)
gates=() note=""
case "$arch $*" in *uniform* | *joint* | *"attention-type plain"*) ;; mae_*) gates=(--mae-gate-interval 2) note=": the gates learn in every second epoch, the experts in all" ;; esac
losses=()
case "$arch $*" in
    *"attention-type plain"* | *-weight* | *aux-warmup*) ;;
    dma_* | *"attention-type dma"* | *"attention-type mae+dma"*) losses=(--aux-warmup-updates 400) note+=": its losses reach their full weight in 400 updates" ;;
esac
seconds=$SECONDS
say() { printf '\n\033[1m[%d:%02d] %s\033[0m\n' $(((SECONDS - seconds) / 60)) $(((SECONDS - seconds) % 60)) "$*"; }
quietly() { "$@" >"$out/last-command.out" 2>&1 || { tail -n 1 "$out/last-command.out" | cut -c 1-500 >&2; echo "demo: $1 failed; all it said is in $out/last-command.out" >&2; exit 1; }; }

rm -rf "$out"
mkdir -p "$out"

say "a synthetic German-English corpus"
modular-fairseq toy-corpus "$out/corpus"
paste -d '\n' <(head -n 3 "$out/corpus/test.de" | sed 's/^/  de  /') <(head -n 3 "$out/corpus/test.en" | sed 's/^/  en  /')
quietly fairseq-preprocess --source-lang de --target-lang en --destdir "$out/data" \
    --trainpref "$out/corpus/train" --validpref "$out/corpus/valid" --testpref "$out/corpus/test"

say "training $arch${*:+ $*}$note (log: $out/train.log)"
fairseq-train "$out/data" --user-dir "$plugin" --arch "$arch" "${gates[@]}" "${losses[@]}" "$@" \
    --optimizer adam --adam-betas "(0.9,0.98)" --lr 4e-3 --lr-scheduler polynomial_decay --warmup-updates 200 --total-num-update 890 \
    --criterion modular_cross_entropy --label-smoothing 0.1 --dropout 0 --max-tokens 1024 --max-epoch 5 \
    --keep-last-epochs 5 --save-dir "$out/checkpoints" --seed 1 --num-workers 0 --no-progress-bar --log-interval 50 2>&1 |
    tee "$out/train.log" |
    sed -unE 's/.*\| train_inner \| (epoch [0-9]+).* ppl=([0-9.]+).*num_updates=([0-9]+).*/  \1, update \3: training perplexity \2/p
              s/.*\| valid \| (epoch [0-9]+) .*\| ppl ([0-9.]+) .*gate_entropy ([0-9.]+).*/  \1: validation perplexity \2, gate entropy \3 nats/p; t
              s/.*\| valid \| (epoch [0-9]+) .*\| ppl ([0-9.]+) .*/  \1: validation perplexity \2/p' || { tail -n 1 "$out/train.log" | cut -c 1-500 >&2; echo "demo: training failed; see $out/train.log" >&2; exit 1; }

say "averaging the last epochs and translating the test set"
quietly modular-fairseq average --inputs "$out/checkpoints" --num-epoch-checkpoints 2 --output "$out/averaged.pt"
quietly fairseq-generate "$out/data" --user-dir "$plugin" --path "$out/averaged.pt" --beam 5
cp "$out/last-command.out" "$out/generate.out"
grep ^H- "$out/generate.out" | sed 's/^H-//' | sort -n | cut -f 3 >"$out/test.hyp"
sacrebleu "$out/corpus/test.en" -i "$out/test.hyp" --tokenize none --force -w 2 >"$out/score.json" 2>"$out/sacrebleu.log"

say "done"
field() { sed -nE "s/^ *\"$1\": \"?([^\",]*)\"?,?$/\1/p" "$out/score.json"; }
gate_summary() { quietly modular-fairseq analyze gates "$out/data" --path "$1" && tail -n 1 "$out/last-command.out"; }
echo "BLEU                    $(field score)   ($(field signature))"
if [ ${#gates[@]} -gt 0 ]; then
    before=$(gate_summary "$out/checkpoints/checkpoint1.pt")
    after=$(gate_summary "$out/averaged.pt")
    echo "gates before learning   $before"
    echo "gates after             $after"
fi
echo "parameters              $(sed -nE 's/.*num\. (shared )?model params: ([0-9,]+).*/\2/p' "$out/train.log" | head -n 1)"
echo "what is where           in $out: corpus (text), data (binarized), checkpoints, averaged.pt, test.hyp, score.json, train.log"
cat <<END
next                    look inside, and open $out/report.html in a browser:
    .venv/bin/modular-fairseq analyze all $out/data --path $out/averaged.pt --out $out/inside
    .venv/bin/modular-fairseq report $out/inside --log $out/train.log --out $out/report.html
END
if [ ${#gates[@]} -gt 0 ]; then
    cat <<END
next                    let the one most specialised expert of each layer translate alone, and random ones:
    .venv/bin/modular-fairseq analyze single-expert $out/data --path $out/averaged.pt
END
fi
cat <<END
next                    train on your own text:
    bash scripts/train_and_score.sh FOLDER de en results ${arch%_tiny_cpu}
END
