#!/bin/sh
# Rebuilds the committed WebAssembly modules from their C sources.
#
#   build.sh [DIRECTORY]     into DIRECTORY/<name>/<name>.wasm; without it, in place
#
# Needs clang with the wasm32 target, wasm-ld, wasi-libc and its compiler-rt builtins:
#   apt install clang lld wasi-libc libclang-rt-14-dev-wasm32
# The committed modules were made with clang 14 of Debian 12; another version makes other (equally good) bytes.
set -eu
here=$(cd "$(dirname "$0")" && pwd)
into=${1:-$here}
cd "$here"
# distinct.wasm is made of distinct.wat: wat2wasm distinct/distinct.wat -o distinct/distinct.wasm
for name in chance evolve hoard noop pareto probe spin tile; do
    mkdir -p "$into/$name"
    # The default stack is 64 KiB, and overflowing it would overwrite data silently: 1 MiB, and first in memory, so
    # that an overflow leaves the memory and traps. No contraction: results must be the same on every machine.
    clang --target=wasm32-wasi --sysroot="${WASI_SYSROOT:-/usr}" -std=gnu11 -O2 -Wall -Wextra -Werror \
        -Wno-unused-result -Wno-infinite-recursion -ffp-contract=off \
        -Wl,--strip-all -Wl,-z,stack-size=1048576 -Wl,--stack-first \
        -o "$into/$name/$name.wasm" "$name/$name.c"
    chmod 644 "$into/$name/$name.wasm"
done
