#!/usr/bin/env bash
# Runs the fuzzer of peers for so many seconds (default 60), guided by what its cases reach, and prints the lines of `scheduler` and
# `overlay` that they reached together. Needs `llvm-profdata` and `llvm-cov` of the toolchain: `rustup component add llvm-tools`.
# IDLEWOOD_FUZZ_SEED and IDLEWOOD_FUZZ_KEEP are as in main.rs beside this file.
set -euo pipefail

# cargo calls this script in place of the compiler: only what is looked at counts what it runs.
if [ -n "${IDLEWOOD_COVERAGE_BUILD-}" ]; then
    case " $* " in
    *" --crate-name idlewood_overlay "* | *" --crate-name idlewood_scheduler "* | *" --crate-name fuzz_peer "*)
        exec "$@" -C instrument-coverage --cfg coverage ;;
    *) exec "$@" ;;
    esac
fi

script=$(realpath "$0")
cd "$(dirname "$script")/../../.."
tools=$(dirname "$(find "$(rustc --print sysroot)" -name llvm-profdata | head -1)")
[ -x "$tools/llvm-cov" ] || { echo 'llvm-tools are missing: rustup component add llvm-tools' >&2; exit 1; }
out=target/coverage
rm -rf "$out" && mkdir -p "$out"
test=$(IDLEWOOD_COVERAGE_BUILD=1 RUSTC_WORKSPACE_WRAPPER=$script cargo test --locked -p idlewood-scheduler --test fuzz_peer \
    --no-run --message-format json | sed -n 's/.*"executable":"\([^"]*fuzz_peer-[^"]*\)".*/\1/p' | tail -1)
status=0
(cd scheduler && IDLEWOOD_FUZZ_SECONDS=${1-60} LLVM_PROFILE_FILE=../$out/fuzz_peer.profraw \
    "$test" --ignored --nocapture minutes) || status=$?
"$tools/llvm-profdata" merge --sparse "$out"/*.profraw -o "$out/fuzz_peer.profdata"
for crate in overlay scheduler; do
    printf '\n== %s\n' "$crate"
    "$tools/llvm-cov" report "$test" --instr-profile "$out/fuzz_peer.profdata" --show-region-summary=false \
        --show-branch-summary=false "$PWD/$crate/src"
done
exit "$status"
