#!/bin/sh
# Counts the instructions of each operation with valgrind's callgrind, by length of the queue:
#   scheduler/benches/instructions.sh [BAGS…]
# For copies it is the number of machines. The count does not depend on the machine's load; it does on the compiler.
set -eu
cd "$(dirname "$0")/../.."
command -v valgrind >/dev/null || { echo "valgrind is not here" >&2; exit 1; }
program=$(cargo bench -q -p idlewood-scheduler --bench instructions --no-run --message-format=json |
    sed -n 's/.*"executable":"\([^"]*instructions-[^"]*\)".*/\1/p' | tail -n 1)
[ $# -gt 0 ] || set -- 1 10 100 1000
printf '%-20s' operation
printf '%12s' "$@"
echo
for operation in max_stretch_exact max_stretch_search max_stretch_plain reorder summary merge merge_plain encode \
    encode_leaf decode report split route copies; do
    printf '%-20s' "$operation"
    for bags in "$@"; do
        count=$(valgrind --tool=callgrind --callgrind-out-file=/dev/null --collect-atstart=no \
            --toggle-collect='*measured*' "$program" "$operation" "$bags" 2>&1 |
            sed -n 's/.*Collected *: *\([0-9]*\).*/\1/p')
        printf '%12s' "$count"
    done
    echo
done
