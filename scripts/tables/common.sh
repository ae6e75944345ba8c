# What the scripts of this folder, and transfer.sh above it, have in common; they set `table`, a folder of configs, and `corpora`, what its
# rows are trained on, and source this. Options are those of `modular-fairseq table`, which all of them run.

set -euo pipefail

script=$(realpath "${BASH_SOURCE[1]}")
repository=$(realpath "$(dirname "${BASH_SOURCE[0]}")/../..")
bash "$repository/scripts/setup.sh"
export PATH="$repository/.venv/bin:$PATH"

scale=paper data="" out=$repository/results given=("$@") what=(--run)
while [ $# -gt 0 ]; do
    case $1 in
        --scale) scale=${2-} ;;
        --scale=*) scale=${1#*=} ;;
        --data) data=${2-} ;;
        --data=*) data=${1#*=} ;;
        --out) out=${2-} ;;
        --out=*) out=${1#*=} ;;
        --dry-run) what=() ;;
        -h | --help)
            sed -n '2,/^$/s/^# \{0,1\}//p' "$script"
            echo
            exec modular-fairseq table --help
            ;;
        --) break ;;
    esac
    shift
done
if [ "$scale" = smoke ] && [ -z "$data" ]; then
    data=$out/smoke/data
    if [ "${what[*]}" = --run ]; then
        bash "$repository/scripts/tables/smoke-corpora.sh" "$data" "${corpora[@]}"
        what+=(--jobs 2)
    fi
fi
exec modular-fairseq table "$repository/configs/$table/table.yaml" "${what[@]}" --data "${data:-$repository/data}" --out "$out" "${given[@]}"
