#!/usr/bin/env bash
# Make the runs that results/claims.yaml registers, and write a record of each into results/evidence/.
# With --claims FILE, make the runs that this file registers. Their records lie in the folder evidence beside it.
#
#     bash scripts/evidence.sh TEXT                  # TEXT has the raw text of the corpora in folders
#     bash scripts/evidence.sh TEXT --jobs 2         # two runs at a time, each on one thread
#     bash scripts/evidence.sh TEXT --device cuda    # on a GPU, as many runs at a time as fit
#     bash scripts/evidence.sh TEXT --only mae-4     # the runs of one table
#     bash scripts/evidence.sh --status              # what is done, and the time left
#     bash scripts/evidence.sh --table               # what the records say about the claims
#     bash scripts/evidence.sh TEXT --claims results/narrow/claims.yaml    # the runs of other claims
#
# The runs are made by a frozen clone at the commit that the claims name, so work in this checkout may go on.
# They run at nice 19, which on many Linux systems yields only to other work of the same terminal session
# (autogroups, man 7 sched). The script may be killed at any time; the same command continues. Finished runs
# lie in results/evidence/ and are not made again. This is so also if EVIDENCE is lost, the folder for the clone,
# the corpora and the checkpoints (default: evidence).

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
claims=$root/results/claims.yaml

die() {
    echo "evidence.sh: error: $1" >&2
    exit 1
}

text=
mode=run
options=()
tables=()
while (($#)); do
    case $1 in
    --status | --table)
        [[ $mode == run ]] || die "--$mode and $1 exclude each other; leave one of them out"
        mode=${1#--}
        ;;
    --claims)
        (($# > 1)) || die "$1 needs a value; see --help"
        [[ -f $2 ]] || die "--claims $2 is no file; give a file such as results/claims.yaml"
        claims=$(CDPATH= cd "$(dirname "$2")" && pwd)/$(basename "$2")
        shift
        ;;
    --jobs | --device | --only)
        (($# > 1)) || die "$1 needs a value; see --help"
        options+=("$1" "$2")
        [[ $1 != --only ]] || tables+=("$1" "$2")
        shift
        ;;
    -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
    -*) die "$1 is no option; see --help" ;;
    *)
        [[ -z $text ]] || die "$1: the folder of the raw text is $text already; leave one of them out"
        text=$(CDPATH= cd "$1" 2>/dev/null && pwd) || die "$1 is no folder; give the folder of the raw text"
        ;;
    esac
    shift
done
commit=$(sed -n 's/^commit: *\([0-9a-f]*\).*/\1/p' "$claims")
((${#commit} == 40)) || die "$claims names no commit yet; put its hash of 40 digits into the line commit:"

mkdir -p "${EVIDENCE:-$root/evidence}"
work=$(CDPATH= cd "${EVIDENCE:-$root/evidence}" && pwd)
clone=$work/$commit

if [[ $mode != run ]]; then
    [[ -z $text ]] || die "$text has no effect with --$mode; leave it out"
    [[ -e $clone/done ]] || die "$work has no clone of commit $commit yet; the runs make it, or show the records by: modular-fairseq evidence $claims"
    [[ $mode == table ]] || options=(--status "${options[@]}")
else
    [[ -n $text ]] || die "give the folder of the raw text"
    if command -v flock >/dev/null; then
        exec 9>"$work/lock"
        flock -n 9 || die "another evidence.sh works in $work; wait for it, or set EVIDENCE to another folder"
    fi
    if [[ ! -e $clone/done ]]; then
        rm -rf "$clone"
        git clone --quiet --no-checkout "$root" "$clone"
        git -C "$clone" checkout --quiet --detach "$commit" || die "commit $commit is not in this repository"
        bash "$clone/scripts/setup.sh"
        touch "$clone/done"
    fi
    # Records have the commands of their runs. They name files as if the working folder were evidence/.
    pattern=$(sed 's/[][\.*^$#]/\\&/g' <<<"$work/")
    records=$(dirname "$claims")/evidence
    shorten() {
        [[ ! -d $records ]] ||
            find "$records" -name '*.json' -exec sed -i "s#$pattern#evidence/#g" {} +
    }
    trap shorten EXIT
fi
# Python prefers modules in the present folder and in these variables to the modules of the clone.
cd "$clone"
unset PYTHONPATH PYTHONHOME
command=("$clone/.venv/bin/modular-fairseq" evidence "$claims" --data "$work/data" --out "$work/runs")
if [[ $mode == run ]]; then
    "${command[@]}" --prepare "$text" "${tables[@]}"
    options+=(--run --commit "$commit")
fi
# A signal to this script ends the runs, too. Without that they would go on, and keep the lock.
nice -n 19 "${command[@]}" "${options[@]}" &
child=$!
trap 'kill -TERM "$child" 2>/dev/null || true' INT TERM HUP
status=0
wait "$child" || status=$?
while kill -0 "$child" 2>/dev/null; do wait "$child" || status=$?; done
exit "$status"
