# What the scripts of this folder, and transfer.sh above it, have in common. They set `table`, a folder of
# configs, and source this. Options are those of `modular-fairseq table`, which all of them run, with data/
# and results/ of this repository.

set -euo pipefail

case " $* " in *" --help "* | *" -h "*) sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[1]}" && echo ;; esac
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bash "$root/scripts/setup.sh"
given="$*" what=--run
case " ${given%% -- *} " in *" --dry-run "*) what="" ;; esac
exec "$root/.venv/bin/modular-fairseq" table "$root/configs/$table/table.yaml" ${what:+"$what"} --home "$root" "$@"
