#!/usr/bin/env bash
# Run a command with MKL's AVX-512 or AVX2 kernels on an AMD processor.
#
#     bash scripts/mkl_on_amd.sh .venv/bin/fairseq-train DATA --user-dir modular_fairseq ...
#     bash scripts/mkl_on_amd.sh bash scripts/evidence.sh TEXT --jobs 2
#
# torch multiplies matrices with MKL on a CPU. MKL asks whether the processor is made by Intel, and takes slower
# kernels if it is not. A library of two functions, which this script builds, answers the question with yes. Its
# name is that of the kernels: mkl_avx512.so if the processor has AVX-512, and else mkl_avx2.so. Results differ
# by rounding. Programs on a processor with neither, or not made by AMD, run as they would without this script.
# docs/speed.md has measurements.

set -euo pipefail

root=$(CDPATH= cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

die() {
    echo "mkl_on_amd.sh: error: $1" >&2
    exit 1
}

(($#)) || die "give a command; see --help"
case $1 in -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;; esac
kernels=
if grep -q AuthenticAMD /proc/cpuinfo; then
    if grep -qw avx512f /proc/cpuinfo; then
        kernels=AVX-512
    elif grep -qw avx2 /proc/cpuinfo; then
        kernels=AVX2
    fi
fi
if [[ -z $kernels ]]; then
    echo "mkl_on_amd.sh: this is no AMD processor with AVX2; MKL chooses its kernels itself" >&2
    exec "$@"
fi
name=${kernels/-/}
library=$root/.venv/lib/mkl_${name,,}.so
[[ $library != *[[:space:]:]* ]] || die "LD_PRELOAD takes no path with a space or a colon, such as $root; move the project"
if [[ ! -e $library ]]; then
    bash "$root/scripts/setup.sh" >&2
    trap 'rm -f "$library.$$"' EXIT
    "${CC:-cc}" -shared -fPIC -x c -o "$library.$$" - <<'C' ||
int mkl_serv_intel_cpu(void) { return 1; }
int mkl_serv_intel_cpu_true(void) { return 1; }
C
        die "the C compiler failed; install one, or run the command without this script"
    used=$(LD_PRELOAD=$library.$$ MKL_VERBOSE=1 "$root/.venv/bin/python" -c 'import torch; torch.eye(2) @ torch.eye(2)')
    [[ $used == *"$kernels"* ]] ||
        die "the MKL of this torch takes no $kernels kernels on this processor; run the command without this script"
    mv "$library.$$" "$library"
fi
export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}
exec "$@"
