#!/usr/bin/env bash
# Make .venv in the root of the repository, with the packages that constraints.txt pins and this project.
#
#     bash scripts/setup.sh             # takes 4 to 8 minutes the first time; later it does nothing, silently
#     . .venv/bin/activate              # puts fairseq-train, modular-fairseq, ... on your PATH
#
# The script may be interrupted and called again at any point: installed packages stay, and the stamp that
# makes it do nothing is written last. The output of pip is in .venv/setup.log. These environment variables
# matter:
#     PYTHON            the Python that makes .venv (3.11 or 3.12)
#     CXX               the C++ compiler that builds fairseq-fixed
#     TORCH_VERSION     a version of torch other than the pinned one, such as 2.6.0; .venv keeps it later
#     TORCH_CPU_INDEX   an index with CPU builds of torch, which pip uses beside its own
#     SETUP_DISK_GIB    the free disk space that is required, in GiB
#
# Other scripts call this one and do not source it, so it cannot change their shell, and a failure ends only
# it.
#
# The project is installed editable. A copy in .venv would be a second `modular_fairseq` beside the one that
# `--user-dir modular_fairseq` names. fairseq refuses that as "not globally unique" if both are imported. The
# copy would also fall behind the source.

set -euo pipefail

case ${1:-} in
"") ;;
-h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;;
*) echo "setup: error: $1: the script has no arguments but --help, which lists its variables." >&2 && exit 1 ;;
esac

CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.."
venv=.venv
python=$venv/bin/python
log=$venv/setup.log
# Packages on these paths would count as installed, and would be missing in another shell.
unset PYTHONPATH PYTHONHOME
# If CUDA_HOME is set, fairseq-fixed builds CUDA extensions, which need nvcc and which this project does not
# use.
unset CUDA_HOME

say() { echo "setup: $*" >&2; }
fail() { say "error: $*"; exit 1; }

# --- nothing to do? -----------------------------------------------------------------------------------------

minor_version() { "$1" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null; }

# The torch that is asked for now or was asked for when .venv was made: a script that calls this one without
# TORCH_VERSION must not change it back.
pinned_torch=$(sed -n 's/^torch==//p' constraints.txt)
other_torch=${TORCH_VERSION:-$(cat "$venv/setup.torch" 2>/dev/null || true)}
if [ "$other_torch" = "$pinned_torch" ]; then other_torch=""; fi
if [ -n "$other_torch" ]; then
    [[ $other_torch =~ ^([0-9]+)\.([0-9]+)\.[0-9]+$ ]] ||
        fail "TORCH_VERSION=$other_torch is not a version of torch; give one such as $pinned_torch."
    [ $((BASH_REMATCH[1] * 1000 + BASH_REMATCH[2])) -ge 2006 ] ||
        fail "TORCH_VERSION=$other_torch is too old; modular_fairseq needs torch 2.6 or newer."
fi

# Print everything on which .venv depends. The folder belongs to it, because the commands in .venv/bin and the
# editable install hold absolute paths.
fingerprint() {
    local sum
    sum=$(cat constraints.txt setup.py scripts/setup.sh | cksum)
    echo "$PWD, Python $(minor_version "$python"), $sum${other_torch:+, torch $other_torch}"
}
is_done() { [ -f "$venv/setup.stamp" ] && [ "$(cat "$venv/setup.stamp")" = "$(fingerprint)" ]; }

if is_done; then exit 0; fi

# If two set-ups run at once, the second waits for the first, and then finds that nothing is left to do.
if command -v flock >/dev/null; then
    exec 9<constraints.txt
    flock -n 9 || { say "waiting for another set-up of this folder"; flock 9; }
    if is_done; then exit 0; fi
fi

# --- what this machine must offer, asked before anything is written -----------------------------------------

supported() { [ "$1" = 3.11 ] || [ "$1" = 3.12 ]; }

find_python() {
    local candidate version seen=""
    if [ -n "${PYTHON:-}" ]; then
        version=$(minor_version "$PYTHON") ||
            fail "PYTHON=$PYTHON cannot be run; it must name a Python 3.11 or 3.12."
        supported "$version" ||
            fail "PYTHON=$PYTHON is Python $version; modular_fairseq needs Python 3.11 or 3.12."
        base_python=$PYTHON
        return
    fi
    for candidate in python3 python3.11 python3.12; do
        # Version managers put commands with these names on PATH that only print a hint.
        version=$(minor_version "$candidate") || continue
        if supported "$version"; then base_python=$candidate; return; fi
        seen=" ($candidate is Python $version)"
    done
    fail "modular_fairseq needs Python 3.11 or 3.12, and neither is on PATH$seen; install one, for example" \
        "with \`apt-get install python3.11 python3.11-venv python3.11-dev\`, or name one with" \
        "PYTHON=/path/to/python."
}

check_compiler() {
    local compiler
    if [ -n "${CXX:-}" ]; then
        command -v "${CXX%% *}" >/dev/null ||
            fail "the C++ compiler named by CXX=$CXX was not found; correct CXX or unset it."
        return
    fi
    for compiler in g++ c++; do
        if command -v "$compiler" >/dev/null; then return; fi
    done
    if command -v clang++ >/dev/null; then  # a Python that was built with gcc does not call it by itself
        export CXX=clang++ CC="${CC:-clang}"
        return
    fi
    fail "fairseq-fixed is built from source and needs a C++ compiler, and none of g++, c++ and clang++ is" \
        "on PATH; install one, for example with \`apt-get install g++\`."
}

check_headers() {  # $1: a Python
    "$1" -c '
import os, sysconfig
open(os.path.join(sysconfig.get_path("include"), "Python.h")).close()' 2>/dev/null ||
        fail "fairseq-fixed is built from source and needs Python's headers, and $1 has no Python.h;" \
            "install them, for example with \`apt-get install python$(minor_version "$1")-dev\`."
}

check_venv_module() {  # $1: a Python
    "$1" -c 'import ensurepip, venv' 2>/dev/null ||
        fail "$1 cannot make a virtual environment, as its venv module is missing;" \
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

# $1: a line of constraints.txt. Succeeds if .venv has that version, with any build label.
has_package() {
    [ -x "$python" ] && "$python" - "${1%%==*}" "${1##*==}" 2>/dev/null <<'PY'
import importlib.metadata
import sys

sys.exit(importlib.metadata.version(sys.argv[1]).partition("+")[0] != sys.argv[2])
PY
}

load_fairseq() {
    "$python" -c 'import torch, fairseq.libbase, fairseq.libnat, fairseq.data.data_utils_fast
import alignment_train_cpu_binding'
}
has_fairseq() { has_package "$fairseq" && load_fairseq >/dev/null 2>&1; }

torch=torch==${other_torch:-$pinned_torch}
fairseq=$(grep '^fairseq-fixed==' constraints.txt)
cpu_gib=3 gpu_gib=10
gpu=no
if command -v nvidia-smi >/dev/null && nvidia-smi -L >/dev/null 2>&1; then gpu=yes; fi

if version=$(minor_version "$python"); then
    supported "$version" ||
        fail "$PWD/$venv holds Python $version and modular_fairseq needs 3.11 or 3.12; remove it" \
            "(rm -r $venv) and run this again."
    # `-ef` compares folders, whatever their names and links are. The commands in a copied or moved .venv
    # still call the old one.
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

# --- .venv --------------------------------------------------------------------------------------------------

ticker=""
# Say every half minute that the script still works. It ends with the script, and leaves no `sleep` behind.
tick() {
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
trap 'say "interrupted; run it again to continue"; exit 130' INT  # pip reports an interrupt like any failure

# $1: a description of the step; then its command.
step() {
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
pip_install_alone() {
    logged "$python" -m pip install --disable-pip-version-check --no-input --progress-bar off "$@"
}
pip_install() { pip_install_alone -c "$constraints" "$@"; }

no_network() {
    # To pip, an index that cannot be reached is an index without any version. If pip does not retry, it does
    # not even mention the connection.
    logged_says 'requirement (setuptools|wheel|cython|numpy)[^ ]* \(from versions: none\)' && return
    logged_says 'connection broken' && logged_says '\(from versions: none\)' && return
    local errors='connection ?error|connect ?timeout|read ?timeout|timed out|proxyerror|sslerror'
    logged_text | tail -n 10 | grep -i -E "$errors" >/dev/null
}

give_up() {  # $1: what failed
    if logged_says 'no space left on device|disk quota exceeded'; then
        fail "$1 failed because the disk of $PWD/$venv or of ${TMPDIR:-/tmp} is full; free some" \
            "space and run this again."
    elif no_network; then
        fail "$1 failed because pip could not reach the package index; check the network or the proxy and" \
            "run this again; the log is $PWD/$log."
    fi
    logged_text | tail -n 20 | sed 's/^/    /' >&2
    fail "$1 failed; above are the last lines of the log, $PWD/$log."
}

# Without pip, .venv is missing or was left by an interrupted run; `-m venv` completes it.
if ! has_pip; then
    step "making $venv with Python $(minor_version "$base_python")" "$base_python" -m venv "$venv" >&2 ||
        fail "\`$base_python -m venv $venv\` failed; its message is above."
fi
(cd "$venv" && pwd -P >setup.folder)
echo "$other_torch" >"$venv/setup.torch"
date >>"$log"

constraints=constraints.txt
if [ -n "$other_torch" ]; then
    # Some versions of torch pin sympy (2.6) or need setuptools below 82 (2.11); this project needs 77.
    constraints=$venv/setup.constraints
    sed "s/^torch==.*/$torch/; s/^setuptools==.*/setuptools>=77,<82/; /^sympy==/d" constraints.txt \
        >"$constraints"
fi

# --- packages -----------------------------------------------------------------------------------------------

# The tools that build fairseq-fixed come first. A build environment of its own would need any `torch>=1.10`,
# and so would fetch a second torch of several gigabytes. fairseq-fixed is therefore built without such an
# environment (--no-build-isolation), against the torch that is used later.
step "installing build tools" pip_install setuptools wheel cython numpy ||
    give_up "installing the build tools"

# On Linux the plain pin means the CUDA build of PyPI, 3 GB with its libraries. Without an NVIDIA GPU, pip is
# asked for the CPU build by its label, in one call from its own index (a mirror may have it) and from
# PyTorch's CPU index. If neither has it, or PyTorch's index cannot be reached, pip says so in seconds, and
# the plain pin is installed. The call has no other package, as these come from pip's own index, and no
# constraints, as pip would call a missing build a conflict with them.
install_torch() {
    local index=${TORCH_CPU_INDEX:-https://download.pytorch.org/whl/cpu}
    if [ $gpu = no ]; then
        if step "installing $torch, the CPU build (200 MB, about a minute)" \
            pip_install_alone --no-deps --retries 1 --timeout 10 --extra-index-url "$index" "$torch+cpu"; then
            return
        fi
        # Where pip has a constraint for torch, it says that the CPU build is in conflict with it.
        logged_says 'no matching distribution|ResolutionImpossible' || give_up "installing torch"
        say "no CPU build of $torch is offered here"
        if [ "$(uname -s)" = Linux ]; then check_disk $gpu_gib; fi
    fi
    step "installing $torch, the default build (3 GB if it is the CUDA build, a few minutes)" \
        pip_install "$torch" || give_up "installing torch"
}
remove_fairseq() { logged "$python" -m pip uninstall --disable-pip-version-check --yes fairseq-fixed; }
has_package "$torch" || {
    # A fairseq-fixed that was built against another torch may load, and yet be wrong.
    if has_package "$fairseq"; then
        remove_fairseq || give_up "removing the fairseq-fixed of another torch"
    fi
    install_torch
}

grep -v '^fairseq-fixed==' "$constraints" >"$venv/setup.requirements"
step "installing the other packages (about a minute)" \
    pip_install --no-build-isolation -r "$venv/setup.requirements" || give_up "installing the other packages"

# pip's cache does not know for which torch a build was made.
if [ -n "$other_torch" ]; then no_cache=--no-cache-dir; else no_cache=; fi
# --no-binary: for Python 3.12 PyPI also has a wheel. It was made for an older torch, so its C++ parts do not
# load with this one.
# Python's own flags ask for debug symbols, which take a third of a compiler's time and 30 MB. setuptools takes
# these flags in their place.
build_fairseq() {
    local flags="-O3 -DNDEBUG -fwrapv ${CFLAGS:-} -g0"
    CFLAGS=$flags CXXFLAGS="$flags ${CXXFLAGS:-}" pip_install --no-build-isolation --no-deps \
        --no-binary fairseq-fixed --force-reinstall "$@" "$fairseq"
}
if ! has_fairseq; then
    step "building $fairseq (2 to 4 minutes)" build_fairseq $no_cache || give_up "building fairseq-fixed"
fi
# A build in pip's cache may have been made for another torch.
if ! has_fairseq; then
    step "building $fairseq again, as the build in pip's cache does not load (2 to 4 minutes)" \
        build_fairseq --no-cache-dir || give_up "building fairseq-fixed"
fi

step "installing modular_fairseq" pip_install --no-build-isolation -e '.[pictures,dev,docs]' ||
    give_up "installing modular_fairseq"

step "checking that torch and fairseq load" logged load_fairseq ||
    give_up "loading torch and fairseq"

fingerprint >"$venv/setup.stamp"
say "done; \`. $venv/bin/activate\` puts fairseq-train and modular-fairseq on your PATH"
