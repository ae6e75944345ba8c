#!/usr/bin/env bash
# `modular-fairseq demo` in this repository's .venv, which is made first: one architecture on a small
# synthetic corpus, from text to BLEU and a page of what the model learnt, in two to four minutes on two
# cores.
#
#     bash scripts/demo.sh                             # a mixture of attentive experts; writes everything to demo/mae_transformer_tiny_cpu/
#     bash scripts/demo.sh tim_transformer             # any other of the papers' architectures (in its size _tiny_cpu), same budget
#     bash scripts/demo.sh mae_transformer --encoder-layers 4 --streams 2 --stream-skip    # options of fairseq-train: mechanisms compose

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/modular-fairseq demo "$@"
