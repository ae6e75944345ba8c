#!/usr/bin/env bash
# Run a command with the AVX-512 kernels of MKL on an AMD processor.
#
#     bash scripts/mkl_avx512.sh .venv/bin/fairseq-train DATA --user-dir modular_fairseq ...
#     bash scripts/mkl_avx512.sh bash scripts/evidence.sh TEXT --jobs 2
#
# torch multiplies matrices with MKL on a CPU. MKL asks whether the processor is made by Intel, and takes kernels
# without AVX-512 if it is not. A library of two functions, which this script builds, answers the question
# with yes. Results differ by rounding. Programs on a processor without AVX-512, or not made by AMD, run as they
# would without this script. docs/speed.md has measurements.

set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
library=$root/.venv/lib/mkl_avx512.so

die() {
    echo "mkl_avx512.sh: error: $1" >&2
    exit 1
}

(($#)) || die "give a command; see --help"
case $1 in -h | --help) sed -n '2,/^$/s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" && exit ;; esac
if ! grep -q AuthenticAMD /proc/cpuinfo || ! grep -qw avx512f /proc/cpuinfo; then
    echo "mkl_avx512.sh: this is no AMD processor with AVX-512; MKL chooses its kernels itself" >&2
    exec "$@"
fi
if [[ ! -e $library ]]; then
    bash "$root/scripts/setup.sh" >&2
    trap 'rm -f "$library.$$"' EXIT
    "${CC:-cc}" -shared -fPIC -x c -o "$library.$$" - <<'C' ||
int mkl_serv_intel_cpu(void) { return 1; }
int mkl_serv_intel_cpu_true(void) { return 1; }
C
        die "the C compiler failed; install one, or run the command without this script"
    used=$(LD_PRELOAD=$library.$$ MKL_VERBOSE=1 "$root/.venv/bin/python" -c 'import torch; torch.eye(2) @ torch.eye(2)')
    [[ $used == *AVX-512* ]] ||
        die "the MKL of this torch takes no AVX-512 kernels on this processor; run the command without this script"
    mv "$library.$$" "$library"
fi
export LD_PRELOAD=$library${LD_PRELOAD:+:$LD_PRELOAD}
exec "$@"
