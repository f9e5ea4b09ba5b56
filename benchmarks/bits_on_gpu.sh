#!/bin/sh
# All that orders of sums owe a GPU, in about five minutes on an H100:
#     sh benchmarks/bits_on_gpu.sh OUT [SECONDS of each search, 45]
# Bars of bits, then searches within orders and without, on the shapes of dev.toml; what each table serves there
# against cuBLAS; the cost of an order, shape by shape; the logits of a transformer. OUT keeps databases, tables, texts.
set -eu
out=$1 seconds=${2:-45} bin=${BIN:-.venv/bin} suite=studies/suites/dev.toml
mkdir -p "$out"

"$bin/python" -m pytest tests/gpu/test_gpu_bits.py --require-gpu -q | tee "$out/tests.txt"
for order in none chain chunks:512; do
    name=$(echo "$order" | tr -d :) asked=""
    [ "$order" = none ] || asked="--order $order"
    # shellcheck disable=SC2086
    "$bin/autotune" search --suite "$suite" --seconds "$seconds" --db "$out/$name.db" --quiet $asked
    # shellcheck disable=SC2086
    "$bin/autotune" export-table --db "$out/$name.db" --out "$out/sgemm_$name" $asked
    "$bin/python" benchmarks/on_suite.py --table "$out/sgemm_$name" --suite "$suite" --rounds 7 \
        --out "$out/$name-on-suite.json" | tee "$out/$name.txt"
done
"$bin/autotune" verify "$out/sgemm_chunks512" | tee "$out/verify.txt"
for name in chain chunks512; do
    "$bin/autotune" trials compare "$out/none.db" "$out/$name.db" | tee "$out/compare-$name.txt"
done
"$bin/python" benchmarks/order_cost.py "$out/none.db" "$out/chunks512.db" "$out/chain.db" --least 1 \
    | tee "$out/order-cost.txt"
"$bin/python" benchmarks/same_logits.py --table "$out/sgemm_chunks512" | tee "$out/logits.txt"
