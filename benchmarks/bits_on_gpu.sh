#!/bin/bash
# What chunks:512 costs on this GPU where both sides of C exceed 8: a search within the order and one without, for as
# long, then one race of their tables and cuBLAS; and the seconds of verify. In 230 s on a GPU with 16 cores, each part
# (SECONDS_EACH: of a search, 75):
#     bash benchmarks/bits_on_gpu.sh OUT dev      the shapes of dev.toml
#     bash benchmarks/bits_on_gpu.sh OUT drawn    60 drawn shapes, less those with a side up to 8
# The bits themselves are tests/gpu/test_gpu_bits.py. OUT keeps databases, tables and texts.
set -u
out=$1 part=$2 bin=${BIN:-.venv/bin} seconds=${SECONDS_EACH:-75}
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

wide() { # FILE: those shapes of a suite whose both sides exceed 8
    awk 'BEGIN { RS = ""; ORS = "\n\n" } /\[\[shape\]\]/ { m = n = 0
        for (i = 1; i <= NF; i++) { if ($i == "m") m = $(i + 2); if ($i == "n") n = $(i + 2) }
        if (m > 8 && n > 8) print }' "$1"
}

if [ "$part" = dev ]; then
    wide studies/suites/dev.toml > "$out/$part.toml"
    most=48
else
    "$bin/python" benchmarks/drawn_suite.py --seed 4701 --num 60 --mixed --layouts > "$out/all.toml"
    wide "$out/all.toml" > "$out/$part.toml"
    most=26
fi
suite=$out/$part.toml
table "${part}_chunks512" $seconds $most --order chunks:512
table "${part}_free" $seconds $most
race "$out/sgemm_${part}_free" "$out/sgemm_${part}_chunks512"
time "$bin/autotune" verify "$out/sgemm_${part}_chunks512" > "$out/verify.txt" 2>&1
tail -3 "$out/verify.txt"
