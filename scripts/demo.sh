#!/usr/bin/env bash
# Train one architecture on a small synthetic corpus, from text to BLEU and a page of what the model learnt.
# It takes two to four minutes on two cores. The command is `modular-fairseq demo` in the .venv of this
# repository, which is made if necessary.
#
#     # Train a mixture of attentive experts, and write everything to demo/mae_transformer_tiny_cpu/.
#     bash scripts/demo.sh
#     # Train another architecture of the papers, in its size _tiny_cpu and with the same budget.
#     bash scripts/demo.sh tim_transformer
#     # Compose mechanisms by options of fairseq-train.
#     bash scripts/demo.sh mae_transformer --encoder-layers 4 --streams 2 --stream-skip

set -euo pipefail

CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.."
bash scripts/setup.sh
exec .venv/bin/modular-fairseq demo "$@"
