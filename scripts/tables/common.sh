# The scripts of this folder and transfer.sh set `table`, the name of a folder of configs/, and source this
# file. It runs `modular-fairseq table` with their options, and with data/ and results/ of this repository.

set -euo pipefail

# --help shows the comment at the head of the script first.
case " $* " in *" --help "* | *" -h "*) sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[1]}" && echo ;; esac
root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
bash "$root/scripts/setup.sh"
# The table is trained unless --dry-run or --status stands among the options before "--".
given="$*" what=--run
case " ${given%% -- *} " in *" --dry-run "* | *" --status "*) what="" ;; esac
exec "$root/.venv/bin/modular-fairseq" table "$root/configs/$table/table.yaml" ${what:+"$what"} \
    --home "$root" "$@"
