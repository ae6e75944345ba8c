#!/usr/bin/env bash
# Makes .venv in the root of the repository: the packages pinned in constraints.txt, and this project, editable.
#
#     bash scripts/setup.sh             # the first time 4 to 8 minutes, later silent and at once
#     . .venv/bin/activate              # puts fairseq-train, modular-fairseq, ... on your PATH
#
# It may be interrupted and called again at any point: what is installed stays, and the stamp that makes it silent is written last.
# Everything pip says is in .venv/setup.log. What you may set:
#     PYTHON            the Python to make .venv with (3.11 or 3.12)
#     CXX               the C++ compiler that builds fairseq-fixed
#     TORCH_VERSION     another torch than constraints.txt pins, such as 2.6.0; a .venv that was made with it keeps it
#     TORCH_CPU_INDEX   where a CPU build of torch is looked for, beside pip's own index
#     SETUP_DISK_GIB    the free space it insists on
#
# demo.sh and test.sh call this script instead of sourcing it: a failure ends it alone, and nothing of it is left in their shell.
#
# Editable, because a copy in .venv would be a second `modular_fairseq` beside the one that `--user-dir modular_fairseq` names,
# which fairseq refuses as "not globally unique" once both are imported, and the copy would fall behind the source.

set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=.venv
python=$venv/bin/python
log=$venv/setup.log
unset PYTHONPATH PYTHONHOME  # packages found there would count as installed, and would be missing in another shell
unset CUDA_HOME              # where it is set, fairseq-fixed builds CUDA extensions: they need nvcc, and nothing here uses them

say() { echo "setup: $*" >&2; }
fail() { say "error: $*"; exit 1; }

# --- nothing to do? ---------------------------------------------------------------------------------------------------------------

minor_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# The torch that was asked for, now or when .venv was made: demo.sh and test.sh call this script, and must not change it back.
pinned_torch=$(sed -n 's/^torch==//p' constraints.txt)
other_torch=${TORCH_VERSION:-$(cat "$venv/setup.torch" 2>/dev/null || true)}
if [ "$other_torch" = "$pinned_torch" ]; then other_torch=""; fi
if [ -n "$other_torch" ]; then
    [[ $other_torch =~ ^([0-9]+)\.([0-9]+)\.[0-9]+$ ]] ||
        fail "TORCH_VERSION=$other_torch is not a version of torch; give one such as $pinned_torch."
    [ $((BASH_REMATCH[1] * 1000 + BASH_REMATCH[2])) -ge 2006 ] ||
        fail "TORCH_VERSION=$other_torch is too old; modular_fairseq needs torch 2.6 or newer."
fi

# What .venv depends on. The folder is part of it because the commands in .venv/bin and the editable install hold absolute paths.
fingerprint() { echo "$PWD, Python $(minor_version "$python"), $(cat constraints.txt setup.py scripts/setup.sh | cksum)${other_torch:+, torch $other_torch}"; }
is_done() { [ -f "$venv/setup.stamp" ] && [ "$(cat "$venv/setup.stamp")" = "$(fingerprint)" ]; }

if is_done; then exit 0; fi

# Of two set-ups started at once the second waits for the first and then finds its work done.
if command -v flock >/dev/null; then
    exec 9<constraints.txt
    flock -n 9 || { say "waiting for another set-up of this folder"; flock 9; }
    if is_done; then exit 0; fi
fi

# --- what this machine must offer, asked before anything is written ---------------------------------------------------------------

supported() { [ "$1" = 3.11 ] || [ "$1" = 3.12 ]; }

find_python() {
    local candidate version seen=""
    if [ -n "${PYTHON:-}" ]; then
        version=$(minor_version "$PYTHON") || fail "PYTHON=$PYTHON cannot be run; it must name a Python 3.11 or 3.12."
        supported "$version" || fail "PYTHON=$PYTHON is Python $version; modular_fairseq needs Python 3.11 or 3.12."
        base_python=$PYTHON
        return
    fi
    for candidate in python3 python3.12 python3.11; do
        # A name on PATH is not yet a Python: version managers put names there that only print a hint.
        version=$(minor_version "$candidate") || continue
        if supported "$version"; then base_python=$candidate; return; fi
        seen=" ($candidate is Python $version)"
    done
    fail "modular_fairseq needs Python 3.11 or 3.12, and neither is on PATH$seen; install one, for example with" \
        "\`apt-get install python3.12 python3.12-venv python3.12-dev\`, or name one with PYTHON=/path/to/python."
}

check_compiler() {
    local compiler
    if [ -n "${CXX:-}" ]; then
        command -v "${CXX%% *}" >/dev/null || fail "the C++ compiler named by CXX=$CXX was not found; correct CXX or unset it."
        return
    fi
    for compiler in g++ c++; do
        if command -v "$compiler" >/dev/null; then return; fi
    done
    if command -v clang++ >/dev/null; then  # not what a Python built with gcc calls by itself
        export CXX=clang++ CC="${CC:-clang}"
        return
    fi
    fail "fairseq-fixed is built from source and needs a C++ compiler, and none of g++, c++ and clang++ is on PATH;" \
        "install one, for example with \`apt-get install g++\`."
}

check_headers() {  # $1: a Python
    "$1" -c 'import os, sysconfig; open(os.path.join(sysconfig.get_path("include"), "Python.h")).close()' 2>/dev/null ||
        fail "fairseq-fixed is built from source and needs Python's headers, and $1 has no Python.h;" \
            "install them, for example with \`apt-get install python$(minor_version "$1")-dev\`."
}

check_venv_module() {  # $1: a Python
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$1 cannot make a virtual environment, its venv module is missing;" \
            "install it, for example with \`apt-get install python$(minor_version "$1")-venv\`."
}

check_disk() {  # $1: GiB
    local where=. needed=${SETUP_DISK_GIB:-$1} free
    if [ -d "$venv" ]; then where=$venv/.; fi
    free=$(df -Pk "$where" | awk 'END { print int($4 / 1048576) }')
    [ "$free" -ge "$needed" ] ||
        fail "about $needed GiB are needed and the disk of $PWD/$venv has $free GiB free; free some space," \
            "or set SETUP_DISK_GIB if you know better."
}

has_pip() { "$python" -m pip --version >/dev/null 2>&1; }

has_package() {  # $1: a line of constraints.txt; true where .venv has that version, whatever its build label
    [ -x "$python" ] && "$python" - "${1%%==*}" "${1##*==}" 2>/dev/null <<'PY'
import importlib.metadata
import sys

sys.exit(importlib.metadata.version(sys.argv[1]).partition("+")[0] != sys.argv[2])
PY
}

load_fairseq() { "$python" -c 'import torch, fairseq.libbase, fairseq.libnat, fairseq.data.data_utils_fast, alignment_train_cpu_binding'; }
has_fairseq() { has_package "$fairseq" && load_fairseq >/dev/null 2>&1; }

torch=torch==${other_torch:-$pinned_torch}
fairseq=$(grep '^fairseq-fixed==' constraints.txt)
cpu_gib=3 gpu_gib=10
gpu=no
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi

if version=$(minor_version "$python"); then
    supported "$version" ||
        fail "$PWD/$venv holds Python $version and modular_fairseq needs 3.11 or 3.12; remove it (rm -r $venv) and run this again."
    # `-ef`: the same folder, by whatever name or link. In a copied or moved one the commands still call the old place.
    made_in=$(cat "$venv/setup.folder" 2>/dev/null) || made_in=$venv
    [ "$made_in" -ef "$venv" ] ||
        fail "$PWD/$venv was made for another folder, $made_in; remove it (rm -r $venv) and run this again."
    base_python=$python
else
    find_python
fi
has_pip || check_venv_module "$base_python"
has_fairseq || { check_compiler; check_headers "$base_python"; }
has_package "$torch" || check_disk "$([ $gpu = yes ] && echo $gpu_gib || echo $cpu_gib)"

# --- .venv ------------------------------------------------------------------------------------------------------------------------

ticker=""
tick() {  # a sign of life every half minute; ends with this script, and leaves no `sleep` behind
    local elapsed=0 sleeper=""
    trap 'if [ -n "$sleeper" ]; then kill "$sleeper"; fi; exit' TERM
    while kill -0 $$ 2>/dev/null; do
        sleep 30 >/dev/null 2>&1 &
        sleeper=$!
        wait "$sleeper"
        elapsed=$((elapsed + 30))
        say "    ... $elapsed s"
    done
}
stop_ticker() {
    if [ -n "$ticker" ]; then { kill "$ticker" && wait "$ticker"; } 2>/dev/null || true; fi
    ticker=""
}
trap stop_ticker EXIT
trap 'say "interrupted; run it again to go on"; exit 130' INT  # pip answers an interrupt like any failure

step() {  # $1: what is done, then the command
    local status=0
    say "$1"
    shift
    tick 9>&- &
    ticker=$!
    "$@" || status=$?
    stop_ticker
    return $status
}

log_start=0
logged() {
    log_start=$(wc -c <"$log")
    "$@" >>"$log" 2>&1
}
logged_text() { tail -c "+$((log_start + 1))" "$log"; }
logged_says() { logged_text | grep -i -E "$1" >/dev/null; }
pip_install_alone() { logged "$python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@"; }
pip_install() { pip_install_alone -c "$constraints" "$@"; }

no_network() {
    # An index that cannot be reached is to pip an index without any versions; told not to retry, it does not even mention the connection.
    logged_says 'requirement (setuptools|wheel|cython|numpy)[^ ]* \(from versions: none\)' && return
    logged_says 'connection broken' && logged_says '\(from versions: none\)' && return
    logged_text | tail -n 10 | grep -i -E 'connection ?error|connect ?timeout|read ?timeout|timed out|proxyerror|sslerror' >/dev/null
}

give_up() {  # $1: what failed
    if logged_says 'no space left on device|disk quota exceeded'; then
        fail "$1 failed because a disk is full, that of $PWD/$venv or that of ${TMPDIR:-/tmp}; free some space and run this again."
    elif no_network; then
        fail "$1 failed because pip could not reach the package index; check the network or the proxy and run this again;" \
            "the log is $PWD/$log."
    fi
    logged_text | tail -n 20 | sed 's/^/    /' >&2
    fail "$1 failed; above are the last lines of the log, $PWD/$log."
}

if ! has_pip; then  # without pip it is absent, or what an interrupted run left, which `-m venv` completes
    step "making $venv with Python $(minor_version "$base_python")" "$base_python" -m venv "$venv" >&2 ||
        fail "\`$base_python -m venv $venv\` failed; its message is above."
fi
(cd "$venv" && pwd -P >setup.folder)
echo "$other_torch" >"$venv/setup.torch"
date >>"$log"

constraints=constraints.txt
if [ -n "$other_torch" ]; then
    # Torch itself pins sympy (2.6) and wants setuptools below 82 (2.11); ours needs 77.
    constraints=$venv/setup.constraints
    sed "s/^torch==.*/$torch/; s/^setuptools==.*/setuptools>=77,<82/; /^sympy==/d" constraints.txt >"$constraints"
fi

# --- packages ---------------------------------------------------------------------------------------------------------------------

# First what fairseq-fixed needs while it is built. Its own build environment would ask for any `torch>=1.10` and fetch a second torch,
# several gigabytes of it; so it is built without one (--no-build-isolation), against the torch that is used later.
step "installing build tools" pip_install setuptools wheel cython numpy || give_up "installing the build tools"

# On Linux the plain pin means the CUDA build of PyPI, 3 GB with its libraries. Without an NVIDIA GPU the CPU build is asked for by its
# label, from pip's own sources (a mirror may hold it) and from PyTorch's CPU index in one call: whichever has it serves it. Where none
# has it, or that index cannot be reached, pip says so in seconds and the plain pin is taken. Alone: all else comes from pip's own sources,
# and beside a constraint pip calls a missing build a conflict.
install_torch() {
    if [ $gpu = no ]; then
        if step "installing $torch, the CPU build (200 MB, about a minute)" pip_install_alone --no-deps --retries 1 --timeout 10 \
            --extra-index-url "${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}" "$torch+cpu"; then return; fi
        logged_says 'no matching distribution' || give_up "installing torch"
        say "no CPU build of $torch is offered here"
        if [ "$(uname -s)" = Linux ]; then check_disk $gpu_gib; fi
    fi
    step "installing $torch, the default build (3 GB where that is the CUDA build, a few minutes)" pip_install "$torch" ||
        give_up "installing torch"
}
remove_fairseq() { logged "$python" -m pip uninstall --disable-pip-version-check --yes fairseq-fixed; }
has_package "$torch" || {
    # Built against another torch it may load all the same, and be wrong.
    if has_package "$fairseq"; then remove_fairseq || give_up "removing the fairseq-fixed of another torch"; fi
    install_torch
}

grep -v '^fairseq-fixed==' "$constraints" >"$venv/setup.requirements"
step "installing the other packages (about a minute)" pip_install --no-build-isolation -r "$venv/setup.requirements" ||
    give_up "installing the other packages"

# --no-binary: for Python 3.12 PyPI has a wheel too, made for an older torch; its C++ parts do not load with this one.
# pip's cache does not know which torch a build is for.
if [ -n "$other_torch" ]; then no_cache=--no-cache-dir; else no_cache=; fi
build_fairseq() { pip_install --no-build-isolation --no-deps --no-binary fairseq-fixed --force-reinstall "$@" "$fairseq"; }
if ! has_fairseq; then
    step "building $fairseq (2 to 4 minutes)" build_fairseq $no_cache || give_up "building fairseq-fixed"
fi
if ! has_fairseq; then  # what pip had kept of an earlier build may be of another torch
    step "building $fairseq anew, as the build in pip's cache does not load (2 to 4 minutes)" build_fairseq --no-cache-dir ||
        give_up "building fairseq-fixed"
fi

step "installing modular_fairseq" pip_install --no-build-isolation -e '.[pictures,dev,docs]' || give_up "installing modular_fairseq"

step "checking that torch and fairseq load" logged load_fairseq ||
    give_up "loading torch and fairseq"

fingerprint >"$venv/setup.stamp"
say "done; \`. $venv/bin/activate\` puts fairseq-train and modular-fairseq on your PATH"
