# What the prepare-*.sh scripts begin with: --help, the packages, and `prepare`. Sourced by them.

set -euo pipefail

case " $* " in *" --help "* | *" -h "*) sed -n '2,/^$/s/^# \{0,1\}//p' "$0"; exit ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
bash "$root/scripts/setup.sh"
export PATH="$root/.venv/bin:$PATH"

prepare() { exec python -m modular_fairseq_cli.corpora.command --script "$(basename "$0" .sh)" "$@"; }
