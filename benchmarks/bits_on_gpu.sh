#!/bin/bash
# What a summation order costs on this GPU: searches within orders and without, for as long, then one race of their
# tables and cuBLAS. In 230 s on a GPU with 16 cores, each part:
#     bash benchmarks/bits_on_gpu.sh OUT dev      the shapes of dev.toml: chunks:512 and chain; verify; the cost by trials
#     bash benchmarks/bits_on_gpu.sh OUT drawn    60 drawn shapes: chunks:512; the logits of a transformer
# The bits themselves are tests/gpu/test_gpu_bits.py. OUT keeps databases, tables and texts.
set -u
out=$1 part=$2 bin=${BIN:-.venv/bin}
mkdir -p "$out"

table() { # NAME SECONDS TRIALS [--order ORDER]
    name=$1 seconds=$2 trials=$3
    shift 3
    "$bin/autotune" search --suite "$suite" --seconds "$seconds" --trials "$trials" --effort quick \
        --db "$out/$name.db" --quiet "$@" > "$out/$name-search.txt" 2>&1 || tail -1 "$out/$name-search.txt"
    "$bin/autotune" export-table --db "$out/$name.db" --out "$out/sgemm_$name" --max-kernels 0 "$@" > "$out/$name-export.txt" 2>&1 ||
        tail -3 "$out/$name-export.txt"
}

race() { # FREE TABLE ...
    free=$1
    shift
    "$bin/python" benchmarks/order_race.py --suite "$suite" --free "$free" --tables "$@" \
        --out "$out/$part-$(basename "$1").json"
}

if [ "$part" = dev ]; then
    suite=studies/suites/dev.toml
    table dev_chunks512 60 36 --order chunks:512
    table dev_free 60 36
    race "$out/sgemm_dev_free" "$out/sgemm_dev_chunks512"
    time "$bin/autotune" verify "$out/sgemm_dev_chunks512" > "$out/verify.txt" 2>&1
    tail -3 "$out/verify.txt"
    table dev_chain 35 20 --order chain
    race "$out/sgemm_dev_free" "$out/sgemm_dev_chain"
    "$bin/python" benchmarks/order_cost.py "$out/dev_free.db" "$out/dev_chunks512.db" "$out/dev_chain.db" --least 1
else
    suite=$out/drawn.toml
    "$bin/python" benchmarks/drawn_suite.py --seed 4701 --num 60 --mixed --layouts > "$suite"
    table drawn_chunks512 70 18 --order chunks:512
    table drawn_free 70 18
    race "$out/sgemm_drawn_free" "$out/sgemm_drawn_chunks512"
    "$bin/python" benchmarks/same_logits.py --table "$out/sgemm_drawn_chunks512"
fi
